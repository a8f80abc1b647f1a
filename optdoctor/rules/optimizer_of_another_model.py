"""The optimizer holds parameters that the watched model does not have.

## What it finds
Parameters of the optimizer that are none of the model's. Decided before step 1, when the first
gradients are there. Critical where all of the optimizer's are foreign, no optimizer holds a
trainable one of the model, and both are alike: as many tensors of each shape, but for the first
dimension, and dtype; or the model's have been flattened into `_flat_param`. A warning where that is
true of a part of the model. Else a note, as where a foreign tensor has a gradient: the loss is made
of it then.
## Why it matters
An optimizer keeps the tensors that it was given. Whatever gives the model new ones afterwards (a
new head, a wrapper that shards or flattens, a copy, a conversion that makes new parameters) leaves
the optimizer with the old: backward fills the gradients of the new, the update moves the old, and
nothing fails.
## What to do
Build the optimizer after the model is what will be trained: after wrapping, after replacing a head,
after resizing embeddings. A model that FullyShardedDataParallel has wrapped keeps its own
parameters with `use_orig_params=True`.
## When it is fine
A part of a larger model is watched, a loss brings parameters of its own, or the optimizer works on
master copies: a note. Watch `nn.ModuleList([model, loss])` to see all under their names.
## Told apart from
`parameters-without-optimizer`: nothing stands in the place of what is left out.
`nothing-trainable`: the optimizer's parameters are the model's, and require no gradient.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from optdoctor import rule
from optdoctor.findings import Abstain, Evidence, Finding, Severity, Treatment
from optdoctor.knowledge.settings import positive
from optdoctor.synthetic import make_trace, small_gpt
from optdoctor.trace import TensorInfo, Trace

FLAT = "_flat_param"
"""The name that FullyShardedDataParallel gives what it flattens (torch 2.13)."""


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 0
    """Static: decided before step 1."""


def check(trace: Trace, limits: Limits) -> list[Finding] | Abstain:
    if not trace.tensors:
        return Abstain("no tensors are known")
    tensors = [t for t in trace.tensors if t.trainable and t.num_elements]
    foreign = [t for t in tensors if t.in_optimizer and not t.in_model]
    trained = positive(trace.facts["num_parameters"])
    if not foreign or trained is None:
        return []
    own = [t for t in tensors if t.in_model]
    nobodys = [t for t in own if not t.in_optimizer and not t.held_elsewhere]
    replaced = _stand_for(foreign, nobodys) and not _had_gradients(trace, foreign)
    total = replaced and len(nobodys) == len(own)
    count = len(foreign)
    verb = "is" if count == 1 else "are"
    of_model = f"{len(nobodys)} of its {len(own)} trainable tensors are in no optimizer"
    elements = sum(t.num_elements for t in foreign)
    return [
        Finding(
            severity=Severity.CRITICAL if total else Severity.WARN if replaced else Severity.NOTE,
            summary=(
                f"{count} of the optimizer's {count + sum(t.in_optimizer for t in own)} trainable"
                f" tensors {verb} not the watched model's (limit 0)"
                + (f", and {of_model}." if nobodys else ".")
            ),
            steps=(0, 0),
            tensors=tuple(t.name for t in (*foreign, *(nobodys if replaced else ()))),
            evidence=(
                Evidence(
                    "num_parameters",
                    "elements that the model does not have, of those being trained",
                    elements / trained,
                    0.0,
                    "share",
                ),
            ),
            treatments=(_REBUILD,) if replaced else (_WATCH,),
        )
    ]


_REBUILD = Treatment(
    title="Build the optimizer after the model has the parameters that will be trained",
    when="next",
    safety="manual",
    source="huggingface/accelerate#3256, huggingface/accelerate#2665",
)
_WATCH = Treatment(
    title="Watch nn.ModuleList([model, loss, ...]) so that all that is trained has its name",
    when="next",
    safety="safe",
    source="names and kinds of tensors come from the watched model",
)


def _stand_for(old: Sequence[TensorInfo], new: Sequence[TensorInfo]) -> bool:
    """Whether `new` are what has come in the place of `old`."""
    if not any(len(t.shape) > 1 for t in old):
        return False
    if new and all(FLAT in t.name for t in new):
        return True
    return Counter(map(_form, old)) == Counter(map(_form, new))


def _form(tensor: TensorInfo) -> tuple[str, int, tuple[int, ...]]:
    """What a new head shares with the old one: all but the number of its outputs."""
    return tensor.dtype, len(tensor.shape), tensor.shape[1:]


def _had_gradients(trace: Trace, foreign: Sequence[TensorInfo]) -> bool:
    """Whether some of them had a gradient, before an update or above 0 in a sample: then the loss
    is made of them."""
    if any(t.reached == "yes" for t in foreign):
        return True
    if "grad_rms" not in trace.series:
        return False
    names = {t.name for t in foreign}
    among = np.array([t.name in names for t in trace.tensors], bool)
    return bool((np.asarray(trace.series["grad_rms"].values, np.float64)[:, among] > 0).any())


def _run(replaced: bool) -> Trace:
    """An optimizer of the model, or of the one it was before it was wrapped."""
    model = small_gpt()
    trained = sum(t.num_elements for t in model)
    if not replaced:
        return make_trace(num_parameters=trained, tensors=model)
    left = [replace(t, in_optimizer=False) for t in model]
    old = [replace(t, name=f"group0.{i}", in_model=False) for i, t in enumerate(model)]
    return make_trace(num_parameters=trained, tensors=(*left, *old))


RULE = rule.Rule(
    name="optimizer-of-another-model",
    needs=("num_parameters",),
    uses=("grad_rms",),
    explains=(
        "parameters-without-optimizer",
        "gradient-never-arrives",
        "step-too-small",
        "early-plateau",
    ),
    mechanism=True,
    check=check,
    limits=Limits(),
    sick=lambda: _run(True),
    healthy=lambda: _run(False),
    doc=__doc__ or "",
)
