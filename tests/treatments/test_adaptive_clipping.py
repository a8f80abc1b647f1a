"""Adaptive clipping against its own arithmetic in plain numbers."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import nn

from optdoctor.treatments import Refused
from optdoctor.treatments.adaptive_clipping import AdaptiveClipping
from optdoctor.treatments.moving_limit import SPIKE


class Fed:
    """An optimizer of one tensor whose gradients are given."""

    def __init__(self, **options: Any) -> None:
        self.weight = nn.Parameter(torch.zeros(4))
        self.optimizer = torch.optim.SGD([self.weight], lr=1.0)
        self.clip = AdaptiveClipping(**options).apply(self.optimizer)

    def norm_after(self, norm: float) -> float:
        """The norm that the optimizer used of a gradient of this norm."""
        self.weight.grad = torch.full((4,), norm / 2)
        self.optimizer.step()
        return float(self.weight.grad.norm())


def limits(norms: list[float], factor: float, memory: int) -> list[float]:
    """What the docstring says, slowly: the limit at each of these norms."""
    mean, seen, out = 0.0, 0, []
    for norm in norms:
        limit = factor * math.exp(mean) if seen >= memory else math.inf
        out.append(limit)
        if not math.isfinite(norm) or norm <= 0 or norm > SPIKE * limit:
            continue
        mean += (math.log(min(norm, limit)) - mean) / min(seen + 1, memory)
        seen += 1
    return out


def test_dynamic_clipping_is_k_times_the_moving_mean_of_unclipped_norms() -> None:
    """H61: dynamic clipping = k x moving mean (default 1.5) on un-clipped norms with floor/ceiling
    and spike exclusion, and ignores non-finite values."""
    torch.manual_seed(0)
    norms = torch.randn(400).mul(0.5).exp().tolist()
    for at, value in ((60, math.nan), (90, math.inf), (120, 1e6), (150, 0.0), (200, 30.0)):
        norms[at] = value
    fed, expected = Fed(memory=20), limits(norms, 1.5, 20)
    for norm, limit in zip(norms, expected, strict=True):
        used = fed.norm_after(norm)
        if math.isfinite(norm):
            assert used == pytest.approx(min(norm, limit), rel=1e-4)
    pairs = zip(norms, expected, strict=True)
    clipped = sum(math.isfinite(n) and n > limit for n, limit in pairs)
    fed.clip.undo()
    assert fed.clip.notes[-1] == f"adaptive-clipping clipped {clipped} steps"
    assert clipped > 50


def test_a_spike_does_not_move_the_limit() -> None:
    fed, quiet = Fed(memory=10), Fed(memory=10)
    for one in (fed, quiet):
        for _ in range(30):
            one.norm_after(1.0)
    assert fed.norm_after(1000.0) == pytest.approx(1.5, rel=1e-4)
    assert fed.norm_after(1.4) == quiet.norm_after(1.4)
    assert fed.norm_after(2.0) == pytest.approx(quiet.norm_after(2.0))


def test_it_follows_gradients_that_grow_for_good() -> None:
    fed = Fed(memory=10)
    for _ in range(30):
        fed.norm_after(1.0)
    used = [fed.norm_after(3.0) for _ in range(100)]
    assert used[0] == pytest.approx(1.5, rel=1e-4)
    assert used[-1] == pytest.approx(3.0, rel=1e-4)


def test_nothing_is_clipped_until_the_memory_is_full() -> None:
    fed = Fed(memory=10)
    assert [fed.norm_after(10.0**i) for i in range(-4, 6)] == pytest.approx(
        [10.0**i for i in range(-4, 6)], rel=1e-5
    )


def test_floor_and_ceiling_hold() -> None:
    fed = Fed(memory=5, floor=2.0, ceiling=4.0)
    for _ in range(10):
        fed.norm_after(1.0)
    assert fed.norm_after(10.0) == pytest.approx(2.0, rel=1e-4)
    fed = Fed(memory=5, floor=2.0, ceiling=4.0)
    for _ in range(10):
        fed.norm_after(100.0)
    assert fed.norm_after(100.0) == pytest.approx(4.0, rel=1e-4)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"factor": 1.0}, "factor must be above 1"),
        ({"factor": math.nan}, "factor must be above 1"),
        ({"memory": 1}, "memory must be at least 2"),
        ({"floor": 2.0, "ceiling": 1.0}, "are no range"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(options: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        AdaptiveClipping(**options)


def test_it_is_refused_where_the_loop_clips() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    with pytest.raises(Refused, match="this run clips at 1; set max_grad_norm to 0"):
        AdaptiveClipping().apply(optimizer, facts={"max_grad_norm": 1.0})
    assert not optimizer._optimizer_step_pre_hooks


def test_a_fused_step_that_unscales_itself_is_clipped_in_true_units() -> None:
    torch.manual_seed(0)
    plain, fused = (nn.Linear(8, 1) for _ in range(2))
    fused.load_state_dict(plain.state_dict())
    first = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    second = torch.optim.AdamW(fused.parameters(), lr=1e-2, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for optimizer in (first, second):
        AdaptiveClipping(1.2, memory=4).apply(optimizer)
    for number in range(30):
        inputs = torch.randn(8, 8, generator=torch.Generator().manual_seed(number))
        for model, optimizer in ((plain, first), (fused, second)):
            optimizer.zero_grad()
            loss = model(inputs).square().mean()
            if optimizer is first:
                loss.backward()
                optimizer.step()
            else:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
    assert torch.allclose(plain.weight, fused.weight, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["SGD", "AdamW", "Adafactor"])
def test_after_undo_the_run_is_bit_identical_to_one_that_goes_on_untreated(name: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    make = getattr(torch.optim, name)
    optimizer = make(model.parameters(), lr=1e-2)
    clip = AdaptiveClipping(1.05, memory=5).apply(optimizer)

    def train(model: nn.Module, optimizer: Any, steps: range) -> None:
        for number in steps:
            inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(number))
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()

    train(model, optimizer, range(40))
    clip.undo()
    assert int(clip.notes[-1].split()[-2]) > 5, "it did act"
    other = copy.deepcopy(model)
    untreated = make(other.parameters(), lr=1e-2)
    untreated.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(model, optimizer, range(40, 60))
    train(other, untreated, range(40, 60))
    assert all(map(torch.equal, model.parameters(), other.parameters()))
