"""Trainable parameters of the model that no optimizer holds: they stay as they are.

## What it finds
Parameters of the watched model that require a gradient, get one, and that neither this optimizer,
nor another one of the same `watch`, nor any other torch optimizer alive in the process holds.
Decided before step 1, when the first gradients are there; a gradient that comes later counts from
then on, and whoever writes to them update after update ends it. A warning where weights of numbered
layers, fewer than half of them, are left out in one gap between layers that are held, or where the
last weight of the network alone is left out; elsewhere a note, which becomes a warning beside a
plateau unless what is left out are the first layers or copies of layers that are held.
## Why it matters
The optimizer never moves them. Whoever forgot them trains a smaller network than was paid for, and
their gradients are computed for nothing.
## What to do
Build the optimizer from all parameters of the model. If they are meant to stay as they are, say so
with `requires_grad_(False)`: backward then computes no gradient for them.
## When it is fine
A target or momentum network, or any part that no gradient comes to: nothing is lost, nothing told.
A linear probe, adapters, the last layers alone, a pretrained network that a loss looks through:
what is left out there is a beginning or a part of its own, neither a gap nor the last weight, and
stays a note. Layers that stand beside each other (experts, heads, critics)
are not judged as numbered layers, nor are norms, biases, embeddings, heads and adapters. A last
layer that is random and fixed on purpose is to say so with `requires_grad_(False)`. Tied weights
count once, and parameters without a shape yet are waited for.
## Told apart from
`optimizer-of-another-model`: the optimizer holds others in their place. `nothing-trainable`: it
holds none that can be trained.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from optdoctor import rule
from optdoctor.findings import Abstain, Evidence, Finding, Severity, Treatment
from optdoctor.knowledge.settings import positive
from optdoctor.synthetic import make_trace
from optdoctor.trace import TensorInfo, Trace

APART = frozenset({"norm", "bias", "embedding", "head", "adapter"})
"""Kinds that healthy recipes train or leave out by themselves."""
BESIDE = re.compile(
    r"expert|head|task|tower|member|critic|ensemble|codebook|quantiz",
    re.I,
)
"""Names of parts that stand side by side, where a number is no place in a row."""

FEW = 3
"""Weights below which leaving one out leaves out half of the network."""


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 0
    """Static: decided before step 1."""


def check(trace: Trace, limits: Limits) -> list[Finding] | Abstain:
    if not trace.tensors:
        return Abstain("no tensors are known")
    held = positive(trace.facts["num_parameters"])
    judged = [t for t in trace.tensors if t.num_elements and t.reached != "no"]
    nobodys = [t for t in judged if _is_nobodys(t)]
    if held is None or not nobodys:
        return []
    trainable = [t for t in judged if t.in_model and t.trainable]
    if len(nobodys) == len(trainable):
        return []  # the optimizer trains none of them: that is another model's, or nothing's
    gap = _gap(trainable)
    forgotten = gap or _last(trainable)
    elements = sum(t.num_elements for t in nobodys)
    share = elements / (elements + held)
    stay = "stays as it is" if len(nobodys) == 1 else "stay as they are"
    where = ""
    if forgotten:
        place = "between layers that are held" if gap else "the last weight of the network"
        where = f", {len(forgotten)} of them {place}"
    return [
        Finding(
            severity=Severity.WARN if forgotten else Severity.NOTE,
            summary=(
                f"{len(nobodys)} of {len(trainable)} trainable tensors, {100 * share:.3g} % of the"
                f" trainable elements, {'is' if len(nobodys) == 1 else 'are'} in no optimizer and"
                f" {stay}{where} (limit 0)."
            ),
            steps=(0, 0),
            tensors=tuple(dict.fromkeys(t.name for t in (*forgotten, *nobodys))),
            evidence=(
                Evidence(
                    "num_parameters",
                    "trainable elements in no optimizer, of them and of those being trained",
                    share,
                    0.0,
                    "share",
                ),
            ),
            treatments=(_GIVE, _FREEZE) if forgotten else (_FREEZE, _GIVE),
            awaits_symptom=not forgotten and not _may_be_meant(trainable),
        )
    ]


_GIVE = Treatment(
    title="If they were forgotten: build the optimizer from all parameters of the model",
    when="next",
    safety="manual",
    source="an optimizer moves what its groups list and nothing else",
)
_FREEZE = Treatment(
    title="If they are meant to stay: call requires_grad_(False) on them",
    when="now",
    safety="manual",
    source="backward computes no gradient for what does not require one",
)


def _is_nobodys(tensor: TensorInfo) -> bool:
    held = tensor.in_optimizer or tensor.held_elsewhere
    return tensor.in_model and tensor.trainable and not held


def _may_be_meant(trainable: Sequence[TensorInfo]) -> bool:
    """Whether the weights that are left out all come before those that are held, as those of a
    network of which the last layers are trained, heads and adapters not counted; or are all copies
    of some that are held, under another first name."""
    weights = [t for t in trainable if len(t.shape) > 1]
    left = [t for t in weights if _is_nobodys(t)]
    held = [t for t in weights if not _is_nobodys(t)]
    originals = {(form, t.shape) for t in held for form in (t.name, _inner(t.name))}
    if all((_inner(t.name), t.shape) in originals and "." in _inner(t.name) for t in left):
        return True
    first = min((t.order for t in held if t.kind not in APART), default=None)
    return first is None or all(t.order < first for t in left)


def _inner(name: str) -> str:
    """A name without its first part."""
    return name.partition(".")[2]


def _last(trainable: Iterable[TensorInfo]) -> list[TensorInfo]:
    """The last weight, where it is the only one that is left out and most are held."""
    weights = sorted((t for t in trainable if len(t.shape) > 1), key=lambda t: t.order)
    left = [t for t in weights if _is_nobodys(t)]
    if len(left) != 1 or left[0] is not weights[-1] or len(weights) < FEW:
        return []
    may_be_judged = left[0].kind == "head" or not _is_apart(left[0])
    return left if may_be_judged else []


def _is_apart(tensor: TensorInfo) -> bool:
    return tensor.kind in APART or bool(BESIDE.search(tensor.name))


def _gap(trainable: Iterable[TensorInfo]) -> list[TensorInfo]:
    """Weights that are left out, fewer than are held, between others of the same numbered row."""
    rows: dict[tuple[str, str], dict[int, TensorInfo]] = {}
    for tensor in trainable:
        if len(tensor.shape) < 2 or _is_apart(tensor):
            continue
        parts = tensor.name.split(".")
        for i, part in enumerate(parts):
            if part.isdecimal():
                key = ".".join(parts[:i]), ".".join(parts[i + 1 :])
                rows.setdefault(key, {})[int(part)] = tensor
    found: dict[str, TensorInfo] = {}
    for row in rows.values():
        left = sorted(n for n, tensor in row.items() if _is_nobodys(tensor))
        held = [n for n in row if n not in left]
        if not left or len(left) >= len(held):
            continue
        inside = min(held) < left[0] and left[-1] < max(held)
        if inside and not any(left[0] < n < left[-1] for n in held):
            found |= {row[n].name: row[n] for n in left}
    return list(found.values())


def _run(left_out: int | None) -> Trace:
    """Five layers, one of them perhaps in no optimizer."""
    tensors = tuple(
        TensorInfo(f"h.{i}.mlp.weight", (8, 8), kind="mlp", order=i, in_optimizer=i != left_out)
        for i in range(5)
    )
    held = sum(t.num_elements for t in tensors if t.in_optimizer)
    return make_trace(num_parameters=held, tensors=tensors)


RULE = rule.Rule(
    name="parameters-without-optimizer",
    needs=("num_parameters",),
    explains=("early-plateau",),
    mechanism=True,
    check=check,
    limits=Limits(),
    sick=lambda: _run(2),
    healthy=lambda: _run(None),
    doc=__doc__ or "",
)
