"""Layers that are to be trained have never had a gradient.

## What it finds
Layers whose trained tensors had no gradient, or one that is exactly 0, in every sample so far,
`samples` of them or more, while other layers had one. It is a warning where the silent ones are
the lowest in one piece, as a cut in the graph leaves them, and no part with a name of its own, are
`share` of all or more, and at least a quarter of the layers learns; or where every adapter is
silent. Else, and while the samples span fewer than 8 updates, it is a note, which a symptom of the
loss makes a warning where they are in one piece. Layers that change between the updates are moved
by something else than the optimizer, and are not judged.
## Why it matters
These weights are held in memory, carried through the optimizer and saved, and stay what they were
at the start. The rest of the network learns, so the loss falls and nothing looks broken. With
checkpoints that re-enter the graph, inputs that need no gradient leave whole blocks without one.
## What to do
Look for what cuts the graph between the loss and these layers: a `detach`, a `no_grad`, a
conversion to numbers and back, an input of a checkpointed block that needs no gradient. If they
are frozen on purpose, set `requires_grad` to False, which also saves memory of the optimizer.
## When it is fine
Experts of a mixture that no token has reached, second heads that the loss does not use, encoders
that a plan runs without gradients until a later step, a locked tower: scattered layers, the last
ones, all but a few last ones, or one whole part. They are notes; so is a part that another one
copies, tensor for tensor, as of a target network, and no symptom makes that a warning.
## Told apart from
`update-lost-to-rounding`: the gradient arrives and the update is lost.
`gradient-abnormal-at-start`: the gradient arrives and has faded on its way.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from optdoctor import rule
from optdoctor.curves.layers_in_order import layers_in_order
from optdoctor.findings import Evidence, Finding, Severity, Treatment
from optdoctor.synthetic import BLOCK, make_trace
from optdoctor.trace import TensorInfo, Trace

HEAD = 0.25
"""Share of the layers up to which those that learn may be the head of an encoder that is run
without gradients on purpose."""
ROUNDING = 1e-6
"""Relative change of a size that is none of rounding: sizes are kept in float32."""
EARLY = 8
"""Updates that the samples must span for a warning: a start may hold parts still. It is chosen."""


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 3
    """As many samples as a tensor must have been without a gradient."""
    samples: int = 3
    """Fewest samples without a gradient: the first half of an adapter has none at the first."""
    share: float = 0.5
    """Smallest share of the layers that is a warning: half of what was to be trained is not. It is
    chosen, not measured."""


def check(trace: Trace, limits: Limits) -> list[Finding]:
    gradients = trace.series["grad_rms"]
    values = np.asarray(gradients.values, np.float64)  # [T, P], NaN where there was none
    alive = (values > 0).any(axis=1)  # samples in which some tensor had a gradient
    values, steps = values[alive], gradients.steps[alive]
    looked = np.isfinite(values) | _measured(trace, steps)  # [T, P]
    silent = ~(values > 0).any(axis=0) & ~_ever(trace) & (looked.sum(axis=0) >= limits.samples)
    layers, moved = layers_in_order(trace), _moved_by_others(trace)
    dead = np.array([bool(silent[i].all() and not moved[i].any()) for i in layers.values()], bool)
    if not dead.any() or dead.all():
        return []
    piece = int(np.argmin(dead))  # layers from the lowest one up, all of them silent
    named = [i for (tensors, d) in zip(layers.values(), dead, strict=True) if d for i in tensors]
    adapters = _adapters(trace)
    all_adapters = bool(adapters.any()) and bool(silent[adapters].all())
    in_piece = piece == dead.sum() or all_adapters
    share = float(dead.mean())
    learning = int(dead.size - dead.sum())
    part = _part(trace, named, layers)
    cut = in_piece and share >= limits.share and learning >= max(HEAD * dead.size, 2) and not part
    is_warning = (cut or all_adapters) and bool(steps[-1] - steps[0] >= EARLY)
    names = [name for name, d in zip(layers, dead, strict=True) if d]
    span = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
    what = "layers without a gradient" + (", the lowest in one piece" if in_piece else "")
    return [
        Finding(
            severity=Severity.WARN if is_warning else Severity.NOTE,
            summary=(
                f"{len(names)} of {len(layers)} layers that are to be trained had no gradient in"
                f" any of {len(steps)} samples (limit 0): {span},"
                f" {int(trace.num_elements[named].sum()):,} weights."
            ),
            steps=(int(steps[0]), int(steps[-1])),
            tensors=tuple(trace.tensors[i].name for i in named),
            evidence=(
                Evidence("grad_rms", what, 100 * share, 100 * limits.share, "%"),
                Evidence("grad_rms", "samples without one", len(steps), limits.samples, "samples"),
            ),
            treatments=_treatments(),
            awaits_symptom=in_piece and not is_warning and not _has_twin(trace, part),
        )
    ]


def _measured(trace: Trace, steps: NDArray[np.int64]) -> NDArray[np.bool_]:
    """[T, P]: tensors that were looked at in those samples, with a gradient or without."""
    there = np.zeros((len(steps), len(trace.tensors)), bool)
    if "param_rms" in trace.series:
        weights = trace.series["param_rms"]
        _, at, of = np.intersect1d(steps, weights.steps, return_indices=True)
        there[at] = np.isfinite(weights.values[of])
    return there


def _moved_by_others(trace: Trace) -> NDArray[np.bool_]:
    """[P]: tensors that change between updates of which none moves them, as running averages do."""
    if "param_rms" not in trace.series or "update_rms" not in trace.series:
        return np.zeros(len(trace.tensors), bool)
    sizes, updates = trace.series["param_rms"], trace.series["update_rms"]
    low, high = np.asarray(sizes.low, np.float64), np.asarray(sizes.high, np.float64)  # [P], ever
    moved: NDArray[np.bool_] = (updates.high == 0) & (high - low > ROUNDING * high)
    return moved


def _part(trace: Trace, silent: Sequence[int], layers: Mapping[str, Sequence[int]]) -> str:
    """The path of the module that holds the silent tensors and no other trained one; "" if none."""
    names = [trace.tensors[i].name for i in silent]
    others = [trace.tensors[i].name for several in layers.values() for i in several]
    paths = [name.split(".")[:-1] for name in names]
    shared = list(takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False)))
    path = ".".join(parts[0] for parts in shared)
    inside = [name for name in others if name.startswith(f"{path}.")]
    return path if path and len(inside) == len(names) else ""


def _has_twin(trace: Trace, part: str) -> bool:
    """Whether another module beside it has the same tensors, by name within it and shape."""
    above, _, own = part.rpartition(".")
    members: dict[str, set[tuple[str, tuple[int, ...]]]] = {}
    for tensor in trace.tensors:
        name = tensor.name.removeprefix(f"{above}.") if above else tensor.name
        if not above or name != tensor.name:
            child, _, rest = name.partition(".")
            members.setdefault(child, set()).add((rest, tensor.shape))
    return bool(part) and any(c != own and m == members[own] for c, m in members.items())


def _ever(trace: Trace) -> NDArray[np.bool_]:
    """[P]: tensors that had a gradient in any sample, thinned ones included, or one not finite."""
    gradients = trace.series["grad_rms"]
    high = np.asarray(gradients.high, np.float64)
    return np.isfinite(high) & (high > 0)


def _adapters(trace: Trace) -> NDArray[np.bool_]:
    """[P]: trained adapters."""
    return np.array(
        [t.kind == "adapter" and t.in_optimizer and t.trainable for t in trace.tensors], bool
    )


def _treatments() -> tuple[Treatment, ...]:
    return (
        Treatment(
            title="Look for what cuts the graph above these layers: a detach, a no_grad, an input"
            " of a checkpointed block that needs no gradient",
            when="next",
            safety="safe",
            basis="heuristic",
            source="a backward pass ends where nothing needs a gradient; transformers#26221",
        ),
        Treatment(
            title="If they are frozen on purpose, set requires_grad to False for them",
            when="next",
            safety="safe",
            basis="heuristic",
            source="a tensor without requires_grad needs no state in the optimizer",
        ),
    )


def _run(cut: int) -> Trace:
    """Eight blocks, of which the lowest `cut` have no gradient; the first updates are skipped."""
    tensors = tuple(
        TensorInfo(f"h.{i}.{name}", (64, 64), layer=f"h.{i}", order=4 * i + j)
        for i in range(8)
        for j, name in enumerate(BLOCK)
    )
    head = replace(tensors[0], name="head.weight", layer="", kind="head", order=99)
    rows = np.full((16, len(tensors) + 1), 0.02)
    rows[:, : len(BLOCK) * cut] = np.nan
    rows[:4] = np.nan
    weights = np.full(rows.shape, 0.1)
    return make_trace(grad_rms=rows, param_rms=weights, tensors=(*tensors, head))


RULE = rule.Rule(
    name="gradient-never-arrives",
    needs=("grad_rms",),
    uses=("param_rms", "update_rms"),
    explains=("early-plateau",),
    mechanism=True,
    check=check,
    limits=Limits(),
    sick=lambda: _run(5),
    healthy=lambda: _run(0),
    doc=__doc__ or "",
)
