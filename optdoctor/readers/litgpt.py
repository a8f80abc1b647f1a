"""LitGPT, lit-gpt and TinyLlama: a line a micro-batch, with two clocks.

`iter` counts micro-batches, `step` the updates that are finished, so a micro-batch belongs to the
update after the one that it names, unless it ends one. The loss of an old line is its own
micro-batch's, that of a new one a mean over as many as an update takes: the last of them is exact.
"""

from dataclasses import replace

from optdoctor.reading.log import Log
from optdoctor.reading.reader import Source
from optdoctor.reading.text_format import Line, TextFormat

_OLD = r"\biter <micro_step> step <step>: loss <loss>, iter time: [\d.]+ ms"
_NEW = (
    r"\biter <micro_step> step <step> \| loss train: <loss>, val: (?:<eval_loss>|n/a)"
    r" \| iter time: [\d.]+ ms"
)

_FORMAT = TextFormat(
    name="litgpt",
    lines=(
        Line(_OLD + r" (?=\(optimizer\.step\))", mark="iter "),
        Line(_OLD + r"(?! \(optimizer\.step\))", mark="iter ", offset=1),
        Line(_NEW + r" (?=\(step\))", mark="iter "),
        Line(_NEW + r"(?! \(step\))", mark="iter ", offset=1),
        Line(r"^ (?:iter|step) [\d,]+: val loss <eval_loss>, val time:", mark="val loss"),
        Line(r"^Final evaluation \| val loss: <eval_loss>", mark="Final evaluation", claims=False),
    ),
    aliases={"micro_step": ""},
    facts={"loss_kind": "falling", "loss_base": "nats"},
    from_zero=False,
    has_micro_rows=True,
    repeated=frozenset({"eval_loss"}),
    sample="""iter 1 step 1: loss 10.9375, iter time: 512.50ms (optimizer.step)
iter 2 step 2: loss 10.8125, iter time: 230.25ms (optimizer.step)
iter 3 step 3: loss 10.2500, iter time: 230.50ms (optimizer.step)
step 3: val loss 10.0625, val time: 2500.00ms
iter 4 step 4: loss nan, iter time: 230.25ms (optimizer.step)
""",
)


def _read(source: Source, log: Log) -> None:
    is_new = "| loss train:" in source.head.text
    replace(_FORMAT, has_micro_rows=not is_new).read(source, log)


READER = replace(_FORMAT.reader, read=_read)
