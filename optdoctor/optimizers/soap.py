"""SOAP: Adam in the eigenbases of Shampoo's preconditioners (Vyas et al. 2024, algorithm 3).

m stays in the basis of the weights; v lies in the eigenbasis, and its elements are those of no
weight, except where nothing is rotated: vectors unless `precondition_1d`, and tensors all of whose
sides exceed `max_precondition_dim`. There it is AdamW, with a decay after the step that acts on
what the step left. The first call of `step` only starts the preconditioners: it moves nothing, not
even by decay, and the means count from the second.
"""

from typing import Any

from torch import Tensor

from optdoctor.optimizers.probe import (
    Elements,
    Group,
    Layout,
    Moment,
    Number,
    Probe,
    State,
    rate_times_decay,
)
from optdoctor.optimizers.settings import adam_facts


def layout(state: State, group: Group) -> Layout:
    """exp_avg, exp_avg_sq; `Q` holds a matrix for each side that is rotated, [] for others."""
    rotated = any(len(basis) for basis in state.get("Q") or ())
    second = Moment("exp_avg_sq", "projected" if rotated else "full")
    return Layout(Moment("exp_avg"), second)


def corrections(group: Group, step: Number) -> tuple[Number, Number]:
    """Adam's, of one update less; epsilon joins the uncorrected root: 1 / c1 scales by sqrt(c2)."""
    if not group.get("correct_bias", True):
        return 1.0, 1.0
    beta1, beta2 = group["betas"]
    seen = step - 1
    c1, c2 = 1 - beta1**seen, 1 - beta2**seen
    return c1 / c2**0.5 if _moved(step) else 1.0, 1.0


def _moved(step: Any) -> bool:
    return isinstance(step, Tensor) or step > 1


def foretell(e: Elements) -> Tensor:
    """-lr * m / (c1 * (sqrt(v) + eps)), then decay of the sum."""
    assert e.first is not None
    assert e.second is not None
    if not _moved(e.step):
        return e.weight * 0
    change = -e.rate * e.first / (e.c1 * (e.second.sqrt() + e["eps"]))
    return change + rate_times_decay(e.group) * (e.weight + change)


def knows(group: Group) -> bool:
    """`normalize_gradient` divides by a mean over the whole tensor."""
    return not group.get("normalize_gradient")


PROBES = (
    Probe(
        family="soap",
        matches=("pytorch_optimizer.optimizer.soap.SOAP",),
        layout=layout,
        facts=adam_facts,
        corrections=corrections,
        foretell=foretell,
        knows=knows,
        decay_apart=rate_times_decay,
    ),
)
