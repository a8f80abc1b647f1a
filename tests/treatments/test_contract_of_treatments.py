"""What every treatment keeps, whatever it does: walks over all that there are."""

import copy
import inspect
import pickle
from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import optdoctor
from optdoctor.findings import Safety
from optdoctor.treatments import Intervention, Refused, interventions
from optdoctor.treatments.decay_groups import DecayGroups
from optdoctor.treatments.layer_rates import LayerRates

ARGUMENTS: dict[str, Callable[[], dict[str, Any]]] = {
    "freeze-module": lambda: {"modules": "blocks.0"},
    "gradient-projection": lambda: {"against": second_gradient},
}
"""Of those that cannot act without."""
HALF = {"float32-state", "kahan-compensation", "stochastic-rounding"}
"""Those that act on weights of 16 bits alone."""
each = pytest.mark.parametrize("name", interventions())


class Net(nn.Module):
    """Something for each: an embedding, blocks to compare, a norm, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 10)
        self.blocks = nn.ModuleList([nn.Linear(10, 10) for _ in range(3)])
        self.norm = nn.LayerNorm(10)
        self.head = nn.Linear(10, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = torch.tanh(block(x))
        return self.head(self.norm(x)).float()


def second_gradient() -> list[Tensor | None]:
    """Of another objective, for tensors of this network; against all of the first."""
    return [torch.full_like(p, -0.01) for p in Net().parameters()]


def training(name: str) -> tuple[Net, torch.optim.Optimizer]:
    """Two steps old, so that there is a state."""
    torch.manual_seed(0)
    model = Net()
    if name in HALF:
        model = model.to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    train(model, optimizer, -2, 0)
    return model, optimizer


def loss_of(model: nn.Module, number: int) -> Tensor:
    tokens = torch.randint(12, (8, 3), generator=torch.Generator().manual_seed(number + 100))
    return (model(tokens).squeeze(-1) - tokens.float().sin()).square().mean()


def train(model: nn.Module, optimizer: Any, since: int, until: int, treatment: Any = None) -> None:
    for number in range(since, until):
        optimizer.zero_grad()
        loss = loss_of(model, number)
        loss.backward()
        if hasattr(treatment, "observe") and treatment.applied:
            treatment.observe({"loss": loss.item()})
        optimizer.step()


def made(name: str) -> Intervention:
    """With its defaults, or what the table gives it."""
    return interventions()[name](**ARGUMENTS.get(name, dict)())


def settings(optimizer: Any) -> list[dict[str, Any]]:
    """A copy of the groups, tensors by id."""
    return [
        {k: [id(p) for p in v] if k == "params" else copy.copy(v) for k, v in group.items()}
        for group in optimizer.param_groups
    ]


def copied(model: nn.Module, optimizer: Any) -> tuple[nn.Module, Any]:
    """What a run would go on with that knows of no treatment."""
    other = copy.deepcopy(model)
    untreated = type(optimizer)(other.parameters(), lr=1e-2, weight_decay=0.1)
    untreated.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    return other, untreated


def held(model: nn.Module, optimizer: Any) -> list[Tensor]:
    """Weights and state."""
    states = [v for p in model.parameters() for v in optimizer.state.get(p, {}).values()]
    return [*model.parameters(), *states]


def assert_same(left: tuple[nn.Module, Any], right: tuple[nn.Module, Any]) -> None:
    mine, theirs = held(*left), held(*right)
    assert len(mine) == len(theirs)
    assert [t.dtype for t in mine] == [t.dtype for t in theirs]
    assert all(map(torch.equal, mine, theirs))


def assert_gone(optimizer: Any) -> None:
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


def goes_on_untreated(model: nn.Module, optimizer: Any) -> None:
    """From here it is a run that knows of no treatment."""
    other, untreated = copied(model, optimizer)
    train(model, optimizer, 50, 53)
    train(other, untreated, 50, 53)
    assert_same((model, optimizer), (other, untreated))


@each
def test_its_name_is_that_of_its_file_and_it_says_what_it_is(name: str) -> None:
    kind = interventions()[name]
    assert kind.__module__.rpartition(".")[2].replace("_", "-") == name == kind.name
    assert issubclass(kind, Intervention)
    assert kind.safety in get_args(Safety)
    assert kind.__doc__
    assert kind.__doc__ != Intervention.__doc__
    assert inspect.getmodule(kind).__doc__  # type: ignore[union-attr]


@each
def test_it_is_made_by_its_name_alone_unless_an_argument_is_required(name: str) -> None:
    kind = interventions()[name]
    parameters = inspect.signature(kind).parameters.values()
    required = [p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    if required:
        assert required == list(ARGUMENTS[name]()), "the table above gives those required"
        with pytest.raises(TypeError, match=required[0]):
            kind()
    else:
        assert repr(kind()).startswith(kind.__name__)
    assert not made(name).applied


@each
def test_applied_twice_it_is_refused_and_undone_twice_it_is_undone_once(name: str) -> None:
    model, optimizer = training(name)
    before = settings(optimizer)
    treatment = made(name).apply(optimizer, model)
    with pytest.raises(Refused, match="is switched on already"):
        treatment.apply(optimizer, model)
    train(model, optimizer, 0, 3, treatment)
    assert not [note for note in treatment.notes if "failed" in note]
    assert settings(optimizer) == before
    treatment.undo()
    notes = list(treatment.notes)
    treatment.undo()
    assert list(treatment.notes) == notes
    assert not treatment.applied
    assert treatment.optimizer is treatment.model is None
    assert_gone(optimizer)
    goes_on_untreated(model, optimizer)


@each
def test_switched_on_again_it_acts_again(name: str) -> None:
    model, optimizer = training(name)
    treatment = made(name).apply(optimizer, model)
    train(model, optimizer, 0, 3, treatment)
    treatment.undo()
    treatment.apply(optimizer, model)
    train(model, optimizer, 3, 6, treatment)
    assert not [note for note in treatment.notes if "failed" in note]
    treatment.undo()
    goes_on_untreated(model, optimizer)


@each
def test_on_a_wrapper_it_acts_on_the_innermost(name: str) -> None:
    accelerate = pytest.importorskip("accelerate")
    model, optimizer = training(name)
    other, bare = training(name)
    wrapper = accelerate.Accelerator(cpu=True).prepare(optimizer)
    assert type(wrapper).__name__ == "AcceleratedOptimizer"
    treatment = made(name).apply(wrapper, model)
    assert treatment.optimizer is optimizer
    twin = made(name).apply(bare, other)
    train(model, wrapper, 0, 5, treatment)
    train(other, bare, 0, 5, twin)
    assert list(treatment.notes) == list(twin.notes)
    assert_same((model, optimizer), (other, bare))


@each
def test_one_that_raises_is_switched_off_and_says_so_and_the_training_goes_on(name: str) -> None:
    model, optimizer = training(name)
    before, flags = settings(optimizer), [p.requires_grad for p in model.parameters()]
    told: list[Any] = []
    treatment = made(name).apply(optimizer, model, tell=lambda *event: told.append(event))
    act = treatment.before

    def fails() -> None:
        act()
        raise ArithmeticError("on purpose")

    treatment.before = fails  # type: ignore[method-assign]
    train(model, optimizer, 0, 1, treatment)
    assert not treatment.applied
    said = f"{name} failed and is switched off, ArithmeticError: on purpose"
    assert ("doctor-failed", said, None, None) in told
    assert settings(optimizer) == before
    assert [p.requires_grad for p in model.parameters()] == flags
    train(model, optimizer, 1, 2)
    goes_on_untreated(model, optimizer)


@each
@pytest.mark.parametrize("way", ["undo", "step"])
def test_a_step_that_an_exception_left_is_given_back_at_the_next_or_by_undo(
    name: str, way: str
) -> None:
    model, optimizer = training(name)
    before, kinds = settings(optimizer), [p.dtype for p in model.parameters()]
    treatment = made(name).apply(optimizer, model)
    train(model, optimizer, 0, 2, treatment)
    broken = optimizer.register_step_pre_hook(leaves)
    with pytest.raises(KeyboardInterrupt):
        train(model, optimizer, 2, 3, treatment)
    broken.remove()
    if way == "step":
        optimizer.step()
    else:
        treatment.undo()
    assert settings(optimizer) == before
    assert [p.dtype for p in model.parameters()] == kinds
    treatment.undo()
    assert_gone(optimizer)
    goes_on_untreated(model, optimizer)


def leaves(optimizer: Any, args: Any, kwargs: Any) -> None:
    """A hook of the user's, which leaves the step."""
    raise KeyboardInterrupt


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("within", [False, True], ids=["left", "within"])
def test_two_that_divide_groups_are_undone_in_any_order(
    order: tuple[int, int], within: bool
) -> None:
    model, optimizer = training("")
    before, groups = settings(optimizer), list(optimizer.param_groups)
    both = [LayerRates().apply(optimizer, model), DecayGroups().apply(optimizer, model)]

    def undoes(*told: Any) -> None:
        for i in order:
            both[i].undo()

    hook = optimizer.register_step_pre_hook(undoes if within else leaves)
    if within:
        train(model, optimizer, 0, 1)
        hook.remove()
    else:
        with pytest.raises(KeyboardInterrupt):
            train(model, optimizer, 0, 1)
        hook.remove()
        undoes()
    assert settings(optimizer) == before
    assert all(map(lambda a, b: a is b, optimizer.param_groups, groups))
    goes_on_untreated(model, optimizer)


@each
def test_switched_on_within_a_step_it_acts_from_the_next(name: str) -> None:
    model, optimizer = training(name)
    treatment, acted = made(name), []

    def switches(*told: Any) -> None:
        if not treatment.applied:
            treatment.apply(optimizer, model)
            act = treatment.before
            treatment.before = lambda: (acted.append(1), act())  # type: ignore[method-assign]

    optimizer.register_step_post_hook(lambda *told: None)
    hook = optimizer.register_step_pre_hook(switches)
    train(model, optimizer, 0, 1)
    hook.remove()
    assert treatment.applied
    assert not acted
    train(model, optimizer, 1, 2, treatment)
    assert acted


@each
def test_switched_off_within_a_step_it_does_not_act_in_the_next(name: str) -> None:
    model, optimizer = training(name)
    before = settings(optimizer)
    treatment = made(name).apply(optimizer, model)
    train(model, optimizer, 0, 1, treatment)
    hook = optimizer.register_step_pre_hook(lambda *told: treatment.undo())
    train(model, optimizer, 1, 2, treatment)
    hook.remove()
    assert not treatment.applied
    assert settings(optimizer) == before
    goes_on_untreated(model, optimizer)


@each
def test_a_doctor_sees_the_same_before_and_after_it(name: str) -> None:
    seen = []
    for doctor_first in (True, False):
        model, optimizer = training(name)
        treatment = made(name)
        if not doctor_first:
            treatment.apply(optimizer, model)
        doctor = optdoctor.watch(model, optimizer, out=None, sinks=(), interval=1)
        if doctor_first:
            treatment.apply(optimizer, model)
        for number in range(6):
            optimizer.zero_grad()
            loss = loss_of(model, number)
            loss.backward()
            doctor.log(loss=loss)
            if hasattr(treatment, "observe") and treatment.applied:
                treatment.observe({"loss": loss.item()})
            optimizer.step()
        doctor.close()
        series = doctor.runs[0].trace.series
        seen.append({k: (s.steps, s.values) for k, s in series.items() if not is_of_time(k)})
        assert not [e.text for e in doctor.runs[0].trace.events if e.kind == "doctor-failed"]
    assert seen[0].keys() == seen[1].keys()
    assert {"loss", "grad_rms"} <= seen[0].keys()
    for channel, (steps, values) in seen[0].items():
        assert np.array_equal(steps, seen[1][channel][0]), channel
        assert np.array_equal(values, seen[1][channel][1], equal_nan=True), channel


def is_of_time(channel: str) -> bool:
    return "time" in channel or "second" in channel.split("_") or "memory" in channel


@each
@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_a_copy_of_the_optimizer_knows_of_no_treatment(name: str, how: str) -> None:
    model, optimizer = training(name)
    treatment = made(name).apply(optimizer, model)
    train(model, optimizer, 0, 2, treatment)
    both = (model, optimizer)
    again = copy.deepcopy(both) if how == "deepcopy" else pickle.loads(pickle.dumps(both))
    assert_gone(again[1])
    assert_same(both, again)
    again[0].requires_grad_(True)
    if name in HALF:  # who knows of float32 moments: load_state_dict brings them to the weights'
        again = copied(*again)
    goes_on_untreated(*again)
    train(model, optimizer, 2, 3, treatment)
    assert not [note for note in treatment.notes if "failed" in note]


@each
def test_what_it_remembers_can_be_written_and_is_taken_back(name: str) -> None:
    model, optimizer = training(name)
    treatment = made(name).apply(optimizer, model)
    train(model, optimizer, 0, 3, treatment)
    state = pickle.loads(pickle.dumps(treatment.state_dict()))
    treatment.undo()
    other = made(name).apply(optimizer, model)
    other.load_state_dict(state)
    train(model, optimizer, 3, 4, other)
    assert not [note for note in other.notes if "failed" in note]
