"""Units of a layer are silent on every example, and no gradient reaches them.

## What it finds
Layers of `few` units or more whose bias has a gradient of exactly 0 in more than `share` of them,
in more than `passing` samples in a row, while the next weight has a gradient of 0 in as large a
share of its entries, as it has where its inputs are 0, and the bias behind that has one other than
0: the layer was used. A unit behind a ReLU has that gradient exactly where it is silent on the
whole batch. A note, which a symptom of the loss makes a warning; a warning where every unit of the
layer is silent; critical where, besides, no tensor before the layer has a gradient.
## Why it matters
A ReLU that is negative for every example passes no gradient on, so that neither the unit nor what
feeds it moves again: it stays silent. A layer of none but silent units cuts the network in two;
what lies behind it can learn a constant only.
## What to do
Find out when it began. At the first sample: the initialization, a bias far below 0, or inputs that
are not scaled. Later: a step that was too large. Restart with a lower rate or a warm-up, or from a
checkpoint before it; the units do not come back by themselves. A leaky activation or a
normalization before the activation keeps a gradient alive.
## When it is fine
Sparse codes, small batches and losses that are 0 for most examples leave many units silent on a
batch and other ones on the next: those are notes. Experts that no token reached, blocks that a
batch leaves out and masked outputs are not counted: their next weight does not look like that.
Gradients in float16 may have been rounded to 0, so the rule does not judge them.
## Told apart from
`gradient-never-arrives`: whole layers without a gradient from the first sample on, for whatever
reason. `frozen-weights`: the gradient is there and the weights do not move.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optdoctor import rule
from optdoctor.curves.rows import spans
from optdoctor.findings import Abstain, Evidence, Finding, Severity, Treatment
from optdoctor.synthetic import falling_loss, make_trace
from optdoctor.trace import SAMPLED, TensorInfo, Trace

SAMPLING = 0.05
"""How far the share of a weight's entries may be from that of the units, as it comes from a sample:
three standard errors of 4096 elements are 0.024, and columns of a narrow weight are few."""
NARROW = "float16"

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 3
    """As many samples as it must last."""
    share: float = 0.8
    """Largest share of silent units of a layer that passes: heuristic, well above the half that
    is silent where units fire at random."""
    passing: int = 2
    """Most samples in a row above `share` that pass."""
    few: int = 8
    """Fewest units of a layer that is judged: a share of fewer says little. It is chosen."""


class Layer(NamedTuple):
    """Positions of the tensors that tell of one layer."""

    bias: int
    weight: int
    """The next one, which has the layer's units as inputs."""
    beyond: int
    """The next bias behind that."""
    before: tuple[int, ...]
    """All tensors before it."""


class _Dead(NamedTuple):
    """What a layer's samples say."""

    layer: Layer
    share: float
    """Of silent units, at least, between `first` and `last`."""
    began: int
    """Row since which most are silent."""
    ended: int
    """Row up to which most are."""
    first: int
    """Row since which so many are."""
    last: int
    """Row up to which they are."""
    cut: bool
    """Whether nothing before it has a gradient either."""


def check(trace: Trace, limits: Limits) -> list[Finding] | Abstain:
    if trace.facts.get("compute_dtype") == NARROW:
        return Abstain("gradients of a float16 forward pass may have been rounded to 0")
    zero = np.asarray(trace.series["grad_zero"].values, np.float64)
    units = np.minimum(trace.num_elements, SAMPLED)
    zero = np.rint(zero * units) / np.maximum(units, 1)  # float32 holds no 16 of 20
    found = [dead for layer in _layers(trace, limits) if (dead := _dead(zero, layer, limits))]
    if not found:
        return []
    worst = max(found, key=lambda dead: (dead.share, dead.cut, dead.layer.bias))
    total = worst.share == 1
    severity = Severity.NOTE
    if total:
        severity = Severity.CRITICAL if worst.cut else Severity.WARN
    began, ended, first, last = (
        int(trace.series["grad_zero"].steps[row])
        for row in (worst.began, worst.ended, worst.first, worst.last)
    )
    info = trace.tensors[worst.layer.bias]
    limit = f"({info.num_elements} units, limit {100 * limits.share:g} %)"
    layer = f'layer "{info.name.removesuffix(".bias")}" {limit}'
    said = f"Every unit of {layer} is silent on the batch from step {first} to {last}"
    if not total:  # it may be another cause of the same pattern
        said = (
            f"{100 * worst.share:.3g} % of the units of {layer} have a gradient of exactly 0, as"
            f" units have that are silent on the batch, from step {first} to {last}"
        )
    elif (began, ended) != (first, last):
        said += f", and more than {100 * limits.share:g} % from step {began} to {ended}"
    others = len(found) - 1
    besides = f", as those of {others} other layer{'s' * (others > 1)}" if others else ""
    return [
        Finding(
            severity=severity,
            awaits_symptom=not total,
            summary=f"{said}{besides}.",
            steps=(began, ended),
            tensors=tuple(
                trace.tensors[dead.layer.bias].name
                for dead in sorted(found, key=lambda dead: (-dead.share, -dead.layer.bias))
            ),
            evidence=(
                Evidence(
                    "grad_zero",
                    f"units of {info.name} with a gradient of exactly 0, at least, from step"
                    f" {first} to {last}",
                    100 * worst.share,
                    100 * limits.share,
                    "%",
                ),
            ),
            treatments=_treatments(worst.began == 0),
        )
    ]


def _layers(trace: Trace, limits: Limits) -> list[Layer]:
    """Biases followed by a weight that takes as many inputs, and by a bias behind that."""
    order = sorted(range(len(trace.tensors)), key=lambda i: trace.tensors[i].order)
    found = []
    for place, i in enumerate(order):
        info, later = trace.tensors[i], order[place + 1 :]
        if not _is_bias(info) or not _is_judged(info) or info.num_elements < limits.few:
            continue
        weight = next((j for j in later if len(trace.tensors[j].shape) > 1), None)
        if weight is None or trace.tensors[weight].shape[1] % info.num_elements:
            continue
        block = ".".join(trace.tensors[weight].name.split(".")[:-2])
        beyond = next((j for j in later if _is_beyond(trace, j, weight, block)), None)
        if beyond is not None:
            found.append(Layer(i, weight, beyond, tuple(order[:place])))
    return found


def _is_bias(info: TensorInfo) -> bool:
    return len(info.shape) == 1 and info.name.rpartition(".")[2].startswith("bias")


def _is_beyond(trace: Trace, position: int, weight: int, block: str) -> bool:
    """Whether it is a bias behind that weight, in the same block: another may be in use alone."""
    info = trace.tensors[position]
    within = not block or info.name.startswith(f"{block}.")
    return _is_bias(info) and within and info.order > trace.tensors[weight].order


def _is_judged(info: TensorInfo) -> bool:
    return info.in_optimizer and info.trainable and info.grad_dtype != NARROW


def _dead(zero: Floats, layer: Layer, limits: Limits) -> _Dead | None:
    """The first long stretch of samples in which most units were silent, of those in which all were
    for long where there are such; None without.
    """
    share, inputs, beyond = zero[:, layer.bias], zero[:, layer.weight], zero[:, layer.beyond]
    with np.errstate(invalid="ignore"):
        # Silent inputs, and of the others those that go to silent units. What was rounded to 0 has
        # no such pattern.
        wanted = share + (1 - share) * beyond
        silent = (share > limits.share) & (np.abs(inputs - wanted) <= SAMPLING) & (beyond < share)
    stretches = _lasting(silent, limits)
    if not stretches:
        return None
    # Where all units died one after the other, what counts is that none is left.
    all_silent = _lasting(silent & (share == 1), limits)
    start = (all_silent or stretches)[0][0]
    began, ended = next((a, b) for a, b in stretches if a <= start <= b)
    inside = [(a, b) for a, b in all_silent if a <= ended]
    first, last = max(inside or [(began, ended)], key=lambda rows: (rows[1] - rows[0], rows))
    before = zero[first : last + 1, list(layer.before)]
    return _Dead(
        layer,
        float(share[first : last + 1].min()),
        began,
        ended,
        first,
        last,
        not bool((before < 1).any()),
    )


def _lasting(mask: NDArray[np.bool_], limits: Limits) -> list[tuple[int, int]]:
    return [(a, b) for a, b in spans(mask) if b - a + 1 > limits.passing]


def _treatments(at_start: bool) -> tuple[Treatment, ...]:
    look = Treatment(
        title="See what lies before the activation on one batch: its mean over examples, unit by"
        " unit, beside the bias",
        when="check",
        safety="safe",
        basis="heuristic",
        source="a unit is silent where that is below 0 for every example",
    )
    begun = "scale the inputs and start the biases at 0"
    died = "go back to a checkpoint before it, with a lower rate or a warm-up"
    cure = Treatment(
        title=f"Restart: {begun if at_start else died}",
        safety="manual",
        basis="heuristic",
        source="no gradient reaches a silent unit, so that it does not come back",
    )
    return look, cure


def _net(width: int = 32, depth: int = 3) -> tuple[TensorInfo, ...]:
    """A perceptron of so many hidden layers."""
    tensors: list[TensorInfo] = []
    for i in range(depth + 1):
        inputs, outputs = 64 if i == 0 else width, 10 if i == depth else width
        for name, shape in (("weight", (outputs, inputs)), ("bias", (outputs,))):
            tensors.append(TensorInfo(f"net.{2 * i}.{name}", shape, order=len(tensors)))
    return tuple(tensors)


def _run(dead: bool) -> Trace:
    """20 samples, in the second half of which the last hidden layer is silent."""
    tensors = _net()
    zero = np.tile([0.2, 0.1], (20, len(tensors) // 2))
    zero[:, -1] = 0.0
    if dead:
        zero[10:, :-1] = 1.0
    return make_trace(grad_zero=zero, loss=falling_loss(20), tensors=tensors)


RULE = rule.Rule(
    name="dead-units",
    needs=("grad_zero",),
    uses=("compute_dtype",),
    explains=("early-plateau", "gradient-never-arrives", "step-too-small"),
    mechanism=True,
    symptom_too=True,
    check=check,
    limits=Limits(),
    sick=lambda: _run(dead=True),
    healthy=lambda: _run(dead=False),
    doc=__doc__ or "",
)
