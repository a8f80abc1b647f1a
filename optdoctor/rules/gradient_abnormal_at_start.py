"""The first gradient fades or grows by a constant factor from layer to layer.

## What it finds
In a stack of `blocks` blocks or more, or of numbered layers as in a Sequential, the gradients of
the biases at the first sample: such a gradient is that of the layer's output, whatever its input
is. Where its logarithm follows a line over the depth and the last block has more than `factor`
times that of the first, or the first that of the last, the finding is a note that a symptom of the
loss makes a warning; beyond `extreme` it is one by itself. Of several biases a block, the one in
the middle is taken. Of a log it is a first loss of an Adam kind that is `factor` times what it
comes to, with a gradient above it: a warning.
## Why it matters
Each layer multiplies the gradient by about the same number. Over many layers a power of it is left:
the first layers learn from next to nothing, or every step overshoots. Adam divides the size out of
it and hides it; what is left is a badly conditioned network that learns slowly.
## What to do
Give each block a residual connection or a norm, or an initialization that keeps the size of what
passes through. A higher rate for the layers that lag is not proposed: small runs elsewhere ended
worse with it.
## When it is fine
Plain stacks of eight layers with the usual initialization of PyTorch have ratios of up to 4,500
here and learn, if slowly. Blocks that begin at 0 on purpose have no gradient yet and are left out.
Biases in front of a norm, and those of the keys of attention, have none in theory: what rounding
leaves, less than `ROUNDING` of the gradient of the layer's weights, is left out too.
## Told apart from
`gradient-never-arrives`: no gradient at all. `layer-learning-rate-mismatch`: updates that differ,
whatever the gradients do.
"""

import re
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optdoctor import rule
from optdoctor.curves.rows import lookup
from optdoctor.findings import Abstain, Evidence, Finding, Severity, Treatment
from optdoctor.knowledge.in_a_log import guess
from optdoctor.knowledge.losses import NOT_FALLING
from optdoctor.synthetic import make_trace
from optdoctor.trace import TensorInfo, Trace

BOUNDED = frozenset({"adam", "adam_mini", "adamax", "lion", "nadam", "radam", "stable_adamw"})
"""Families whose update of a weight is about one rate at most, whatever the gradient."""
ORDINARY = 0.1
"""Rate up to which ten updates of those do not bring such a loss about."""
LAST = 5
"""Losses whose median is what the loss has come to."""
LINE = 0.9
"""Smallest correlation between the logarithm and the depth that is a constant factor a layer."""
ROUNDING = 1e-4
"""Gradient of a bias, in parts of that of its weights, below which it is what rounding leaves of 0:
the weights have it times their inputs, which are not that large."""


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 1
    """The first sample with gradients decides."""
    blocks: int = 4
    """Fewest blocks with such a gradient: fewer make no line."""
    factor: float = 1000.0
    """Largest ratio over the stack that passes: in 9 small stacks of 6 to 24 blocks with norms or
    residual connections it was at most 140."""
    extreme: float = 10_000.0
    """Ratio over the stack from which it is a warning: 7 small stacks beyond it ended at ten times
    the loss of a sound one or more; 12 plain ReLU layers with PyTorch's own start are beyond it."""


class _Fade(NamedTuple):
    """The gradients of one stack over its depth."""

    blocks: int
    ratio: float
    """Of the larger end over the smaller one."""
    grows: bool
    """Whether it grows on its way back, so that the first block has the larger one."""
    tensors: list[int]
    """By depth."""


def check(trace: Trace, limits: Limits) -> list[Finding] | Abstain:
    gradients = trace.series["grad_rms"]
    values = np.asarray(gradients.values, np.float64)  # [T, P]
    stacks = _stacks(trace)
    if not stacks:
        return Abstain("no numbered layers with biases: gradients of outputs are not known")
    rows = np.flatnonzero((values > 0).any(axis=1))
    if not rows.size:
        return []
    step, row = int(gradients.steps[rows[0]]), _without_rounding(trace, values[rows[0]])
    fades = [fade for lines in stacks.values() if (fade := _fade(lines, row, limits)) is not None]
    fades = [fade for fade in fades if fade.ratio > limits.factor]
    if not fades:
        return []
    worst = max(fades, key=lambda fade: fade.ratio)
    first, last = (trace.tensors[i] for i in (worst.tensors[0], worst.tensors[-1]))
    is_extreme = worst.ratio > limits.extreme
    lesser, larger = (last, first) if worst.grows else (first, last)
    way = "grows" if worst.grows else "fades"
    each = worst.ratio ** (1 / (worst.blocks - 1))
    return [
        Finding(
            severity=Severity.WARN if is_extreme else Severity.NOTE,
            summary=(
                f"The gradient {way} on its way back through {worst.blocks} blocks, by"
                f" {each:.2g} times at each: at step {step} that of {_called(larger)} is"
                f" {worst.ratio:.2g} times that of {_called(lesser)} (limit {limits.factor:,.0f})."
            ),
            steps=(step, step),
            tensors=tuple(trace.tensors[i].name for i in worst.tensors),
            evidence=(
                Evidence(
                    "grad_rms",
                    f"gradient of {larger.name} over that of {lesser.name}",
                    worst.ratio,
                    limits.extreme if is_extreme else limits.factor,
                    "times",
                ),
            ),
            treatments=_treatments(),
            awaits_symptom=not is_extreme,
        )
    ]


def check_log(trace: Trace, limits: Limits) -> list[Finding]:
    """By a first loss far above what it comes to, or that of a guess, with a gradient as large: the
    outputs are too large by as much, and so is what the layers multiply. Targets that large would
    leave the gradient far smaller than the loss."""
    family, rates = trace.facts["optimizer_family"], trace.series["lr"]
    if family not in BOUNDED or trace.facts.get("loss_kind") in NOT_FALLING:
        return []
    if not float(np.nanmax(rates.high, initial=0.0)) <= ORDINARY:
        return []  # that rate may have brought it about within the first rows
    loss, norms = trace.series["loss"], trace.series["grad_norm"]
    first, gradient = float(loss.values[0]), float(lookup(norms, loss.steps[:1])[0])
    later = loss.values[np.isfinite(loss.values)][-LAST:]
    usual = guess(trace) or float(np.median(later)) if later.size else 0.0
    if not (0 < usual < first < np.inf and np.isfinite(gradient)):
        return []
    times, step = first / usual, int(loss.steps[0])
    if not times > limits.factor or gradient < first or first < float(np.nanmax(loss.high)):
        return []
    of = "that of a guess" if guess(trace) else "what it has come to"
    return [
        Finding(
            severity=Severity.WARN,
            summary=(
                f"At step {step} the loss is {times:.2g} times {of} (limit {limits.factor:,.0f})"
                f" and the norm of its gradient {gradient:.2g}: layers enlarge what passes through."
            ),
            steps=(step, step),
            evidence=(
                Evidence("loss", f"first loss over {of}", times, limits.factor, "times"),
                Evidence("grad_norm", "its norm, which is above the loss", gradient, first, "1"),
            ),
            treatments=_treatments(),
        )
    ]


def _stacks(trace: Trace) -> dict[str, list[list[int]]]:
    """{stack: for each bias of its blocks, the tensors by depth}."""
    found: dict[str, dict[tuple[str, bool], list[int]]] = {}
    for i, tensor in enumerate(trace.tensors):
        is_bias = len(tensor.shape) == 1 and tensor.name.endswith("bias")
        block = _block(tensor)
        if is_bias and block and tensor.in_optimizer and tensor.trainable:
            stack = block.rstrip("0123456789")
            same = tensor.name.replace(block, stack, 1), tensor.kind == "norm"
            found.setdefault(stack, {}).setdefault(same, []).append(i)
    return {
        stack: [sorted(line, key=lambda i: _number(trace.tensors[i])) for line in lines.values()]
        for stack, lines in found.items()
    }


def _block(tensor: TensorInfo) -> str:
    """The block of a tensor; where it is in none, its own module if that is a numbered one."""
    module = re.fullmatch(r"(.*\d)\.bias", tensor.name)
    return tensor.layer or (module[1] if module else "")


def _called(tensor: TensorInfo) -> str:
    """The block in a sentence, where a bare number would be taken for one."""
    block = _block(tensor)
    return f"layer {block}" if block.isdigit() else block


def _number(tensor: TensorInfo) -> int:
    block = _block(tensor)
    digits = block[len(block.rstrip("0123456789")) :]
    return int(digits) if digits else 0


def _without_rounding(trace: Trace, row: NDArray[np.float64]) -> NDArray[np.float64]:
    """[P]: the gradients, NaN of biases that have none in theory."""
    at = {tensor.name: i for i, tensor in enumerate(trace.tensors)}
    partners = [tensor.name.removesuffix("bias") + "weight" for tensor in trace.tensors]
    weights = [at.get(partner, i) for i, partner in enumerate(partners)]
    return np.where(row < ROUNDING * row[weights], np.nan, row)


def _fade(lines: list[list[int]], row: NDArray[np.float64], limits: Limits) -> _Fade | None:
    """Of the bias in the middle; None where too few blocks have a gradient."""
    fades = []
    for tensors in lines:
        known = [i for i in tensors if np.isfinite(row[i]) and row[i] > 0]
        if len(known) < limits.blocks:
            continue
        first, last = row[known[0]], row[known[-1]]
        ratio = float(max(first, last) / min(first, last))
        if abs(_correlation(np.log(row[known]))) < LINE or not np.isfinite(ratio):
            ratio = 1.0
        fades.append(_Fade(len(known), ratio, bool(first > last), known))
    fades.sort(key=lambda fade: fade.ratio)
    return fades[(len(fades) - 1) // 2] if fades else None


def _correlation(values: NDArray[np.float64]) -> float:
    """With the depth; 0 where all are alike."""
    if np.ptp(values) == 0:
        return 0.0
    return float(np.corrcoef(np.arange(len(values)), values)[0, 1])


def _treatments() -> tuple[Treatment, ...]:
    return (
        Treatment(
            title="Give each block a residual connection, or a norm before its activation",
            when="next",
            safety="manual",
            basis="literature",
            source="He et al., arXiv 1512.03385; Xiong et al., arXiv 2002.04745",
        ),
        Treatment(
            title="Or initialize each layer so that it keeps the size of what passes through, by"
            " the gain of its activation",
            when="next",
            safety="manual",
            basis="literature",
            source="He et al., arXiv 1502.01852; torch.nn.init.calculate_gain",
        ),
    )


def _run(factor: float) -> Trace:
    """Twelve blocks, each of which multiplies the gradient by that; a skipped update first."""
    tensors = tuple(
        TensorInfo(f"layers.{i}.fc.{name}", shape, layer=f"layers.{i}", order=2 * i + j)
        for i in range(12)
        for j, (name, shape) in enumerate((("weight", (64, 64)), ("bias", (64,))))
    )
    gradients = np.full((6, len(tensors)), 1e-3)
    gradients[:, 1::2] = 0.1 * factor ** np.arange(11, -1, -1)
    gradients[0] = np.nan
    return make_trace(grad_rms=gradients, tensors=tensors)


RULE = rule.Rule(
    name="gradient-abnormal-at-start",
    needs=("grad_rms",),
    uses=("loss_base", "loss_kind", "num_classes"),
    explains=(
        *("divergence", "early-plateau", "first-loss-above-chance", "nan-pulse"),
        "nonfinite-gradient",
    ),
    early=True,
    check=check,
    on_log=rule.LogForm(("grad_norm", "loss", "lr", "optimizer_family"), check_log),
    limits=Limits(),
    sick=lambda: _run(0.3),
    healthy=lambda: _run(0.9),
    doc=__doc__ or "",
)
