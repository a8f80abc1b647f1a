"""The moving limit against its own definition in plain numbers."""

import math

import pytest
import torch

from optdoctor.treatments.moving_limit import SPIKE, MovingLimit

DEVICE = torch.device("cpu")


def slowly(norms: list[float], factor: float, memory: int) -> list[float]:
    """The limit at each of these norms, as the docstring tells it."""
    mean, seen, row, limits = 0.0, 0, 0, []
    for norm in norms:
        limit = factor * math.exp(mean) if seen >= memory else math.inf
        limits.append(limit)
        if not math.isfinite(norm) or norm <= 0:
            continue
        spike = norm > SPIKE * limit
        if not spike or row >= memory:
            mean += (math.log(min(norm, limit)) - mean) / min(seen + 1, memory)
            seen += 1
        row = row + 1 if spike else 0
    return limits


@pytest.mark.parametrize("jump", [1.0, 3.0, 1000.0])
def test_many_norms_side_by_side_are_each_limited_as_one_alone(jump: float) -> None:
    torch.manual_seed(0)
    norms = torch.randn(400, 3).mul(0.5).exp()
    norms[200:] *= jump
    norms[50, 0], norms[60, 1], norms[70, 2], norms[80, 0] = math.nan, math.inf, 0.0, 1e6
    limit = MovingLimit(1.5, 20)
    limit.start(3, DEVICE)
    found = []
    for row in norms:
        found.append(limit.limits())
        limit.learn(row, found[-1])
    for i in range(3):
        expected = slowly(norms[:, i].tolist(), 1.5, 20)
        assert torch.stack(found)[:, i].tolist() == pytest.approx(expected, rel=1e-3)


def test_gradients_that_grew_for_good_are_not_held_down_for_ever() -> None:
    limit = MovingLimit(1.5, 10)
    limit.start(1, DEVICE)
    for norm in [1.0] * 20 + [100.0] * 200:
        limit.learn(torch.tensor([norm]), limit.limits())
    assert float(limit.limits()) > 100


def test_spikes_that_are_not_in_a_row_never_move_it() -> None:
    limit = MovingLimit(1.5, 10)
    limit.start(1, DEVICE)
    for norm in [1.0] * 20 + [100.0, 1.0] * 100:
        limit.learn(torch.tensor([norm]), limit.limits())
    assert float(limit.limits()) == pytest.approx(1.5)


def test_what_was_not_there_is_not_learnt() -> None:
    limit = MovingLimit(2.0, 2)
    limit.start(2, DEVICE)
    for _ in range(5):
        limit.learn(torch.tensor([3.0, 0.0]), limit.limits())
    assert limit.limits().tolist() == pytest.approx([6.0, math.inf])


def test_the_ceiling_holds_before_anything_is_learnt() -> None:
    limit = MovingLimit(2.0, 2, ceiling=5.0)
    limit.start(1, DEVICE)
    assert limit.limits().tolist() == [5.0]


def test_a_state_goes_on_where_it_was_left() -> None:
    torch.manual_seed(0)
    one, other = MovingLimit(1.5, 5), MovingLimit(1.5, 5)
    one.start(2, DEVICE)
    for row in torch.rand(20, 2):
        one.learn(row, one.limits())
    other.load_state_dict(one.state_dict(), DEVICE)
    for row in torch.rand(20, 2):
        one.learn(row, one.limits())
        other.learn(row, other.limits())
    assert torch.equal(one.limits(), other.limits())
