"""What to do about a gradient scaler that skips update after update."""

from optdoctor.findings import Basis, Knob, Treatment, When

GREW = 3.0
"""How many times the usual norm the gradients have where they grew before it."""


def _do(
    title: str, when: When, basis: Basis, source: str, **changes: tuple[Knob, Knob]
) -> Treatment:
    return Treatment(title=title, changes=changes, when=when, basis=basis, source=source)


READ_ON = _do(
    "Read on: a search ends at the first update that is made, and stays near its scale",
    "check",
    "heuristic",
    "a scaler starts at 2 to the 16 or the 32 and halves until nothing overflows",
)
FLOAT32 = _do(
    "Compute softmax, logarithms and attention logits in float32",
    "next",
    "heuristic",
    "they overflow first in float16, and no loss scale reaches a forward pass",
)


def remedies(
    step: int, precision: object, growth: float, row: int | None = None
) -> tuple[Treatment, ...]:
    """From update `step` on; `growth` of the gradient norm before it, 1 where nobody knows.

    Where updates have no numbers, `row` is the row of the last one before it.
    """
    first = f"step {step}" if row is None else f"the update after step {row}"
    find = _do(
        f"Repeat {first} without autocast and find the first value that is not finite: loss,"
        " activation or gradient",
        "check",
        "heuristic",
        "a loss or an activation beyond 65504 overflows before the scale is applied to it",
    )
    range_of_float32 = _do(
        "Use bfloat16 autocast, which needs no scaler, in place of float16",
        "next",
        "literature",
        "bfloat16 has the range of float32: Kalamkar et al., arXiv 1905.12322",
        **({"compute_dtype": ("float16", "bfloat16")} if precision == "float16" else {}),
    )
    slower = _do(
        f"Restart from before {first} with a lower learning rate: the gradient norm had grown"
        f" {growth:.2g} times",
        "next",
        "heuristic",
        "gradients that grow until float16 overflows are those of a run that diverges",
    )
    return (find, range_of_float32, FLOAT32, *([slower] if growth > GREW else []))
