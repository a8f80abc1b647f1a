"""GaLore: Adam on gradients that are projected to a low rank (Zhao et al. 2024, algorithm 2).

Matrices of a group with a `rank` are projected: their m and v have the shape of the projection,
[rows, rank] or [rank, columns], and belong to no weight. All others follow AdamW, with epsilon
beside the uncorrected root and a decay after the step that acts on what the step left.
"""

from torch import Tensor

from optdoctor.optimizers.probe import (
    Elements,
    Form,
    Group,
    Layout,
    Moment,
    Number,
    Probe,
    State,
    adam_corrections,
    rate_times_decay,
)
from optdoctor.optimizers.settings import adam_facts


def layout(state: State, group: Group) -> Layout:
    """exp_avg, exp_avg_sq; a `projector` beside them tells that they are of low rank."""
    form: Form = "projected" if state.get("projector") is not None else "full"
    return Layout(Moment("exp_avg", form), Moment("exp_avg_sq", form))


def corrections(group: Group, step: Number) -> tuple[Number, Number]:
    """Both in c1, as epsilon is added to the uncorrected root: lr * sqrt(c2) / c1 is the step."""
    if not group.get("correct_bias", True):
        return 1.0, 1.0
    c1, c2 = adam_corrections(group, step)
    return c1 / c2**0.5, 1.0


def step_of(e: Elements) -> Tensor:
    """What a tensor without projection is moved by, decay apart."""
    assert e.first is not None
    assert e.second is not None
    return -e.rate * e.first / (e.c1 * (e.second.sqrt() + e["eps"]))


def foretell(e: Elements) -> Tensor:
    """The step, then decay of the sum."""
    change = step_of(e)
    return change + rate_times_decay(e.group) * (e.weight + change)


PROBES = (
    Probe(
        family="galore",
        matches=("pytorch_optimizer.optimizer.galore.GaLore", "galore_torch.adamw.AdamW"),
        layout=layout,
        facts=adam_facts,
        corrections=corrections,
        adaptive=True,
        foretell=foretell,
        decay_apart=rate_times_decay,
    ),
)
