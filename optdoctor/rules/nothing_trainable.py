"""The optimizer holds no parameter that requires a gradient: no weight will move.

## What it finds
An optimizer of whose tensors none requires a gradient, or that holds none at all, while the model
has parameters. Decided before step 1, when the first gradients are there: one in such a tensor
ends it. In a log: it says that 0 weights are trained, and shows no gradient above 0.
## Why it matters
Every update is empty. Where something else of the loss requires a gradient, nothing fails: the loss
is logged, the run ends normally, and the weights are those it began with.
## What to do
Call `requires_grad_(True)` on what is to be trained before the optimizer is built. An adapter that
peft loads is frozen unless it is loaded with `is_trainable=True`.
## When it is fine
An optimizer for a later phase of the training, while another one holds what is trained now: a note.
Gradients that are written into frozen parameters by hand, as evolution strategies do: they are seen
before the first update is made. Parameters of the optimizer that the model does not have, as master
copies, are not judged. Parameters without a shape yet are waited for.
## Told apart from
`parameters-without-optimizer` and `optimizer-of-another-model`: the optimizer trains something, but
not all of the model, or nothing of it.
"""

from dataclasses import dataclass, replace

import numpy as np

from optdoctor import rule
from optdoctor.findings import Abstain, Evidence, Finding, Severity, Treatment
from optdoctor.synthetic import make_trace, small_gpt
from optdoctor.trace import Trace


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 0
    """Static: decided before step 1."""


def check(trace: Trace, limits: Limits) -> list[Finding] | Abstain:
    if not trace.tensors and "loss" not in trace.series:
        return Abstain("no tensors are known")
    given = [t for t in trace.tensors if t.in_optimizer]
    trained = trace.facts["num_parameters"]
    if isinstance(trained, bool) or not isinstance(trained, int | float) or trained != 0:
        return [] if trace.tensors else Abstain("no tensors are known")
    if any(t.trainable or not t.in_model for t in given) or _had_gradients(trace):
        return []
    elsewhere = sum(t.trainable and t.held_elsewhere for t in trace.tensors)
    if not trace.tensors:
        what = "The run trains 0 weights"
    elif given:
        what = f"0 of the {len(given)} tensors of the optimizer require a gradient"
    else:
        what = f"The optimizer holds 0 of the {len(trace.tensors)} tensors of the model"
    goes_on = f"another optimizer holds {elsewhere} that do" if elsewhere else "no weight will move"
    return [
        Finding(
            severity=Severity.NOTE if elsewhere else Severity.CRITICAL,
            summary=f"{what}: {goes_on}.",
            steps=(0, 0),
            tensors=tuple(t.name for t in given),
            evidence=(
                Evidence(
                    "num_parameters", "elements being trained, at least", 0.0, 1.0, "elements"
                ),
            ),
            treatments=(
                Treatment(
                    title="Call requires_grad_(True) on what is to be trained, then build the"
                    " optimizer; load an adapter of peft with is_trainable=True",
                    when="next",
                    safety="manual",
                    basis="heuristic",
                    source="torch computes a gradient only for what requires one",
                ),
            ),
        )
    ]


def _had_gradients(trace: Trace) -> bool:
    """Whether some tensor of the optimizer had a gradient: before an update, or above 0 in a
    sample; in a log whether the run had one."""
    if not trace.tensors and "grad_norm" in trace.series:
        return bool((trace.series["grad_norm"].high > 0).any())
    if any(t.in_optimizer and t.reached == "yes" for t in trace.tensors):
        return True
    if "grad_rms" not in trace.series:
        return False
    given = np.array([t.in_optimizer for t in trace.tensors], bool)
    return bool((np.asarray(trace.series["grad_rms"].values, np.float64)[:, given] > 0).any())


def _run(trainable: bool) -> Trace:
    tensors = tuple(replace(t, trainable=trainable) for t in small_gpt())
    trained = sum(t.num_elements for t in tensors if t.trainable)
    return make_trace(num_parameters=trained, tensors=tensors)


RULE = rule.Rule(
    name="nothing-trainable",
    needs=("num_parameters",),
    uses=("grad_norm", "grad_rms", "loss"),
    explains=("early-plateau",),
    mechanism=True,
    check=check,
    limits=Limits(),
    sick=lambda: _run(False),
    healthy=lambda: _run(True),
    doc=__doc__ or "",
)
