"""Float32 state: a model in 16 bits learns as one in float32 does."""

import copy
import math

import pytest
import torch
from halves import MAKERS, Make, check_undo_of_halves, network, step, train
from torch import Tensor, nn
from treated import SignOfMomentum, same, tensors

from optdoctor.treatments import Refused
from optdoctor.treatments.float32_state import Float32State

HALVES = (torch.float16, torch.bfloat16)


def adamw(parameters: object) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3, eps=1e-8)  # type: ignore[arg-type]


def test_adamw_in_float16_dies_untreated_and_learns_treated_as_in_float32() -> None:
    last = {}
    for name, dtype in (
        ("float32", torch.float32),
        ("untreated", torch.float16),
        ("treated", None),
    ):
        model = network(dtype or torch.float16)
        optimizer = adamw(model.parameters())
        if dtype is None:
            Float32State().apply(optimizer)
        losses = train(model, optimizer, range(60))
        last[name] = sum(losses[-20:]) / 20
    assert math.isnan(last["untreated"])
    assert last["treated"] == pytest.approx(last["float32"], rel=0.01)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_each_step_is_that_of_float32_weights_under_the_same_gradients(
    make: Make, dtype: torch.dtype
) -> None:
    half, wide = network(dtype), network(dtype).float()
    optimizer, twin = make(half.parameters()), make(wide.parameters())
    Float32State().apply(optimizer)
    for number in range(6):
        step(half, optimizer, number)
        for p, q in zip(half.parameters(), wide.parameters(), strict=True):
            q.grad = p.grad.float()
        twin.step()
        for p, q in zip(half.parameters(), wide.parameters(), strict=True):
            assert torch.equal(p, q.to(dtype))
    assert all(map(torch.equal, tensors(optimizer), tensors(twin)))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_undone_a_run_goes_on_as_one_that_was_never_treated(make: Make, dtype: torch.dtype) -> None:
    check_undo_of_halves(make, Float32State(), dtype)


def test_gradients_are_the_very_tensors_that_they_were() -> None:
    model = network(torch.bfloat16)
    optimizer = adamw(model.parameters())
    bucket = torch.zeros(sum(p.numel() for p in model.parameters()), dtype=torch.bfloat16)
    views, start = [], 0
    for p in model.parameters():
        p.grad = bucket[start : start + p.numel()].view_as(p)
        views.append(p.grad)
        start += p.numel()
    Float32State().apply(optimizer)
    bucket.fill_(0.5)
    optimizer.step()
    assert all(p.grad is view for p, view in zip(model.parameters(), views, strict=True))
    assert bucket.eq(0.5).all()
    pointers = {p.grad.data_ptr() for p in model.parameters() if p.grad is not None}
    assert min(pointers) == bucket.data_ptr()


def test_what_is_written_into_the_weights_between_steps_is_taken_over() -> None:
    weight = nn.Parameter(torch.full((4,), 1.0, dtype=torch.bfloat16))
    optimizer = torch.optim.SGD([weight], lr=1e-3)
    Float32State().apply(optimizer)

    def step_down() -> None:
        weight.grad = torch.ones_like(weight)
        optimizer.step()

    step_down()
    assert weight.detach().eq(1.0).all(), "0.999 rounds to 1"
    with torch.no_grad():
        weight[0] = 2.0
    for _ in range(3):
        step_down()
    assert weight.detach().tolist() == pytest.approx([2.0, 0.99609375, 0.99609375, 0.99609375])


def test_of_float32_weights_half_moments_are_widened() -> None:
    model = network(torch.float32)
    optimizer = adamw(model.parameters())
    step(model, optimizer, 0)
    for state in optimizer.state.values():
        state["exp_avg"] = state["exp_avg"].bfloat16()
    Float32State().apply(optimizer)
    step(model, optimizer, 1)
    assert all(t.dtype == torch.float32 for t in tensors(optimizer))


def resumed(with_its_state: bool) -> tuple[bool, bool]:
    """Whether a run that is stopped and resumed equals one that goes on; whether it learns on."""
    model = network(torch.float16)
    optimizer = adamw(model.parameters())
    treatment = Float32State().apply(optimizer)
    train(model, optimizer, range(20))
    weights, held, own = copy.deepcopy(
        (model.state_dict(), optimizer.state_dict(), treatment.state_dict())
    )
    before = step(model, optimizer, 20)
    train(model, optimizer, range(21, 30))

    other = network(torch.float16, seed=1)
    other.load_state_dict(weights)
    second = adamw(other.parameters())
    again = Float32State().apply(second)
    second.load_state_dict(held)
    assert {t.dtype for t in tensors(second) if t.dim()} == {torch.float16}
    if with_its_state:
        again.load_state_dict(own)
    losses = train(other, second, range(20, 30))
    assert {t.dtype for t in tensors(second) if t.dim()} == {torch.float32}
    assert losses[0] == before
    return same(model, optimizer, other, second), math.isfinite(losses[-1])


def test_resumed_with_its_state_a_run_goes_on_to_the_bit() -> None:
    assert resumed(True) == (True, True)


def test_resumed_without_its_state_a_run_goes_on() -> None:
    assert resumed(False) == (False, True)


def test_the_optimizer_takes_a_checkpoint_between_steps() -> None:
    model = network(torch.bfloat16)
    optimizer = adamw(model.parameters())
    treatment = Float32State().apply(optimizer)
    train(model, optimizer, range(5))
    kept = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    first = train(model, optimizer, range(5, 8))
    model.load_state_dict(kept[0])
    optimizer.load_state_dict(kept[1])
    second = train(model, optimizer, range(5, 8))
    assert first[0] == second[0]
    assert first == pytest.approx(second, rel=1e-2)
    assert treatment.applied


def test_it_is_refused_where_nothing_is_of_16_bits() -> None:
    optimizer = adamw(network(torch.float32).parameters())
    with pytest.raises(Refused, match="nothing to do"):
        Float32State().apply(optimizer)
    assert not optimizer._optimizer_step_pre_hooks


def test_it_is_refused_for_packed_moments_before_there_are_any() -> None:
    import bitsandbytes

    model = nn.Linear(64, 64).bfloat16()
    for kind in (bitsandbytes.optim.AdamW8bit, bitsandbytes.optim.Lion8bit):
        with pytest.raises(Refused, match="packed"):
            Float32State().apply(kind(model.parameters()))


def test_it_is_refused_for_steps_that_take_gradients_within() -> None:
    with pytest.raises(Refused, match="within"):
        Float32State().apply(torch.optim.LBFGS(network(torch.bfloat16).parameters()))


def test_a_step_of_any_optimizer_sees_float32() -> None:
    seen: list[tuple[torch.dtype, torch.dtype]] = []

    class Looks(SignOfMomentum):
        def step(self, closure: object = None) -> None:
            for p in self.param_groups[0]["params"]:
                seen.append((p.dtype, p.grad.dtype))
            super().step()

    weight = nn.Parameter(torch.ones(3, dtype=torch.float16))
    optimizer = Looks([weight])
    Float32State().apply(optimizer)
    seen.clear()  # what it was tried on
    weight.grad = torch.ones(3, dtype=torch.float16)
    optimizer.step()
    assert set(seen) == {(torch.float32, torch.float32)}
    assert isinstance(weight, nn.Parameter)
    assert weight.dtype == weight.grad.dtype == torch.float16
    assert all(isinstance(t, Tensor) and t.dtype == torch.float32 for t in tensors(optimizer))
