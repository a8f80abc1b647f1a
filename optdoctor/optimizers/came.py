"""CAME: a factored second moment, and a factored measure of how sure the momentum is.

Luo et al. 2023, algorithm 2, of pytorch_optimizer. `exp_avg` is a mean of steps that were divided
by √v already, so of size 1, not of gradients. With R and C the row and column means of
(step - exp_avg)²: -lr * exp_avg / √(R ⊗ C / mean(R)). Tensors of fewer than two dimensions have a
whole second moment and no such measure.
"""

import torch
from torch import Tensor

from optdoctor.optimizers.lamb import decay_apart
from optdoctor.optimizers.probe import Elements, Group, Layout, Moment, Probe, State
from optdoctor.optimizers.settings import named


def layout(state: State, group: Group) -> Layout:
    """exp_avg; exp_avg_sq, or its row and column means."""
    if "exp_avg_sq_row" not in state:
        return Layout(Moment("exp_avg"), Moment("exp_avg_sq"))
    return Layout(Moment("exp_avg"), Moment("exp_avg_sq_row", "factored", second_moment))


def second_moment(state: State, group: Group) -> Tensor:
    """R ⊗ C / mean(R) of the squared gradients, [..., rows, columns]."""
    return product(state["exp_avg_sq_row"], state["exp_avg_sq_col"])


def product(rows: Tensor, columns: Tensor) -> Tensor:
    """[..., R] and [..., C] -> [..., R, C], normalized by the mean over the rows; in float32 at
    least."""
    rows, columns = (t.to(torch.promote_types(t.dtype, torch.float32)) for t in (rows, columns))
    return (rows / rows.mean(dim=-1, keepdim=True)).unsqueeze(-1) * columns.unsqueeze(-2)


def facts(group: Group) -> dict[str, float]:
    """Betas and decay; its two epsilons lie on the optimizer and stand elsewhere than Adam's."""
    beta1, beta2 = group["betas"][:2]
    return named(beta1=beta1, beta2=beta2, weight_decay=group["weight_decay"])


def foretell(e: Elements) -> Tensor:
    """-lr * exp_avg / √(R ⊗ C / mean(R)), and the decay where it is decoupled."""
    assert e.first is not None
    step = e.first
    if "exp_avg_res_row" in e.state:
        step = step * product(e.state["exp_avg_res_row"], e.state["exp_avg_res_col"]).rsqrt()
    return -e.rate * step + decay_apart(e.group) * e.weight


PROBES = (
    Probe(
        family="came",
        matches=("pytorch_optimizer.optimizer.came.CAME",),
        layout=layout,
        facts=facts,
        foretell=foretell,
        scope="tensor",
        reads=("exp_avg_res_row", "exp_avg_res_col"),
        decay_apart=decay_apart,
    ),
)
