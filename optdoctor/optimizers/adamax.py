"""Adamax: divides by the largest gradient that is remembered (Kingma & Ba 2015, algorithm 2).

torch.optim.adamax: `exp_inf` = max(beta2 * exp_inf, |g| + eps) is of the size of a gradient, is not
corrected and holds epsilon already; decay is part of the gradient.
"""

from torch import Tensor

from optdoctor.optimizers.probe import (
    Elements,
    Group,
    Layout,
    Moment,
    Number,
    Probe,
    State,
    adam_corrections,
)
from optdoctor.optimizers.settings import adam_facts


def layout(state: State, group: Group) -> Layout:
    """exp_avg, exp_inf."""
    return Layout(Moment("exp_avg"), Moment("exp_inf", "rooted"))


def foretell(e: Elements) -> Tensor:
    """-lr / c1 * m / exp_inf."""
    assert e.first is not None
    assert e.second is not None
    return -e.rate * (e.first / e.c1) / e.second


def corrections(group: Group, step: Number) -> tuple[Number, Number]:
    """A maximum needs none."""
    return adam_corrections(group, step)[0], 1.0


PROBES = (
    Probe(
        family="adamax",
        matches=("torch.optim.adamax.Adamax",),
        layout=layout,
        facts=adam_facts,
        corrections=corrections,
        foretell=foretell,
    ),
)
