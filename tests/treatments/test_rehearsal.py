"""Treatments that widen weights and state are refused where a step would fail for it."""

import copy
from typing import Any

import pytest
import pytorch_optimizer
import schedulefree
import torch
from halves import Make, network, step, train
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor
from treated import same

from optdoctor.treatments import Intervention, Refused
from optdoctor.treatments.float32_state import Float32State
from optdoctor.treatments.kahan_compensation import KahanCompensation
from optdoctor.treatments.rehearsal import rehearse, stand_in
from optdoctor.treatments.stochastic_rounding import StochasticRounding

KINDS = (Float32State, StochasticRounding, KahanCompensation)
UNSUITED: dict[str, tuple[Make, str]] = {
    "lists of matrices": (lambda ps: pytorch_optimizer.SOAP(ps), "same dtype"),
    "a buffer for 16 bits": (lambda ps: pytorch_optimizer.StableAdamW(ps), "TypeError"),
    "weights exchanged between steps": (lambda ps: schedulefree.SGDScheduleFree(ps), "dtype"),
    "another optimizer inside": (
        lambda ps: pytorch_optimizer.Lookahead(torch.optim.SGD(ps, lr=0.1)),
        "built around another",
    ),
}
NAMES = sorted(pytorch_optimizer.get_supported_optimizers())


def ready(optimizer: Any) -> Any:
    getattr(optimizer, "train", lambda: None)()
    return optimizer


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("make", "why"), UNSUITED.values(), ids=UNSUITED)
@pytest.mark.parametrize("first", [0, 3])
def test_it_is_refused_where_a_step_would_fail_and_the_run_does_not_feel_it(
    kind: type[Intervention], make: Make, why: str, first: int
) -> None:
    model, other = network(torch.bfloat16), network(torch.bfloat16)
    optimizer, untouched = ready(make(model.parameters())), ready(make(other.parameters()))
    train(model, optimizer, range(first))
    train(other, untouched, range(first))
    with pytest.raises(Refused, match=why):
        kind().apply(optimizer, model)
    train(model, optimizer, range(first, 6))
    train(other, untouched, range(first, 6))
    assert same(model, optimizer, other, untouched)


def test_of_lookahead_the_optimizer_inside_can_be_treated() -> None:
    model = network(torch.bfloat16)
    inside = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    optimizer = pytorch_optimizer.Lookahead(inside, k=2)
    treatment = Float32State().apply(inside)
    losses = train(model, optimizer, range(20))
    assert losses[-1] < losses[0]
    assert treatment.applied
    treatment.undo()
    train(model, optimizer, range(20, 23))


def test_tensors_with_operations_of_their_own_are_refused() -> None:
    ones = torch.ones(3, dtype=torch.bfloat16)
    weight = nn.Parameter(TwoTensor(ones, ones.clone()))
    with pytest.raises(Refused, match="operations of its own"):
        Float32State().apply(torch.optim.SGD([weight], lr=0.1))


def test_an_optimizer_that_holds_the_model_is_not_tried() -> None:
    class Holds(torch.optim.SGD):
        def __init__(self, model: nn.Module) -> None:
            super().__init__(model.parameters(), lr=0.1)
            self.model = model

    assert "holds a model" in rehearse(Holds(network(torch.bfloat16)), lambda one: one.zero_grad)


def test_random_numbers_of_a_step_that_was_tried_are_put_back() -> None:
    class Noisy(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            drawn.append(torch.rand(()))
            super().step()

    drawn: list[Tensor] = []
    optimizer = Noisy(network(torch.bfloat16).parameters(), lr=0.1)
    random = torch.get_rng_state()
    Float32State().apply(optimizer)
    assert len(drawn) > 4
    assert torch.equal(torch.get_rng_state(), random)


def test_the_stand_in_is_small_and_shares_nothing_that_a_step_changes() -> None:
    class Counts(torch.optim.AdamW):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.seen = [0]
            self.scale = torch.ones(2)

        def step(self, closure: Any = None) -> None:
            self.seen.append(self.seen[-1] + 1)
            self.scale.mul_(2)
            super().step()

    weights = [nn.Parameter(torch.ones(100, 30)), nn.Parameter(torch.ones(50, 70))]
    bias = nn.Parameter(torch.ones((), dtype=torch.bfloat16))
    rate = torch.tensor(0.1)
    optimizer = Counts([{"params": weights}, {"params": [bias], "lr": rate}], eps=1e-3)
    torch.optim.lr_scheduler.LinearLR(optimizer)
    optimizer.register_step_pre_hook(lambda *told: pytest.fail("a hook of the user's"))
    before = [copy.deepcopy(optimizer.state_dict()), optimizer.param_groups[1]["lr"].clone()]

    other = stand_in(optimizer)
    assert type(other) is Counts
    shapes = [[tuple(p.shape) for p in group["params"]] for group in other.param_groups]
    assert shapes == [[(4, 4)], [()]]
    assert other.param_groups[1]["params"][0].dtype == torch.bfloat16
    assert [group["eps"] for group in other.param_groups] == [1e-3, 1e-3]
    for group in other.param_groups:
        for p in group["params"]:
            p.grad = torch.ones_like(p)
    other.step()
    other.param_groups[1]["lr"].mul_(2)
    assert other.seen == [0, 1]
    assert optimizer.seen == [0]
    assert optimizer.scale.tolist() == [1.0, 1.0]
    assert optimizer.state_dict() == before[0]
    assert torch.equal(optimizer.param_groups[1]["lr"], before[1])
    assert not optimizer.state
    assert all(isinstance(p, Tensor) and p.eq(1).all() for p in [*weights, bias])


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_refused_trains_treated_and_undone(name: str, first: int) -> None:
    model = network(torch.bfloat16)
    try:
        optimizer = ready(pytorch_optimizer.load_optimizer(name)(model.parameters()))
        train(model, optimizer, range(first or 2))
    except Exception:
        pytest.skip("untreated it fails too")
    if not first:
        model = network(torch.bfloat16)
        optimizer = ready(pytorch_optimizer.load_optimizer(name)(model.parameters()))
    try:
        treatment = Float32State().apply(optimizer, model)
    except Refused as refused:
        pytest.skip(str(refused))
    train(model, optimizer, range(first, first + 3))
    assert treatment.applied
    treatment.undo()
    step(model, optimizer, 9)
    assert all(p.dtype == torch.bfloat16 for p in model.parameters())
