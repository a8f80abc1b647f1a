"""StableAdamW with bfloat16 weights: rounding postpones updates, and swallows decay."""

import pytest
import torch
from torch import Tensor, nn

from optdoctor.optimizers import probe_of, state_of
from optdoctor.optimizers.elements import elements, kept

RATE = 3e-4
"""Below half of bfloat16's spacing at 1, which is 2e-3."""
each_way = pytest.mark.parametrize("foreach", [True, False], ids=["foreach", "one by one"])


def changes(decay: float, foreach: bool) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """[(foretold, measured, postponed, weights before)] of some updates, in float32."""
    library = pytest.importorskip("pytorch_optimizer")
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(64, 64).to(torch.bfloat16))
    optimizer = library.StableAdamW([weight], lr=RATE, weight_decay=decay, foreach=foreach)
    probe, (group,) = probe_of(optimizer), optimizer.param_groups
    assert probe.foretell is not None
    found = []
    for _ in range(6):
        weight.grad = torch.randn(64, 64).to(torch.bfloat16)
        old, gradient = weight.detach().clone(), weight.grad.clone()
        before = kept(probe, state_of(optimizer, weight), group, lambda t: t, weight.numel())
        optimizer.step()
        around = elements(
            probe,
            state_of(optimizer, weight),
            group,
            weight=old,
            gradient=gradient,
            before=before,
            take=lambda t: t,
            num_elements=weight.numel(),
        )
        foretold, measured = probe.foretell(around), weight.detach().float() - old.float()
        compensation = around.state["kahan_comp"] - around.before.get("kahan_comp", 0.0)
        found.append((foretold, measured, compensation, old.float()))
    return found


@each_way
def test_what_rounding_postpones_is_not_told_as_lost(foreach: bool) -> None:
    for foretold, measured, postponed, _ in changes(0.0, foreach):
        asked = foretold + postponed
        assert (measured - asked).norm() > 0.5 * asked.norm(), "most of it waits"
        assert (measured - foretold).norm() < 0.02 * asked.norm()


@each_way
def test_decay_that_rounding_swallows_is_told_as_lost(foreach: bool) -> None:
    for foretold, measured, _, weight in changes(0.1, foreach):
        lost = ((foretold - measured) * weight).sum() / weight.square().sum()
        assert lost.item() == pytest.approx(-RATE * 0.1, rel=0.1)
