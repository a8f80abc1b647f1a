"""What the tests of treatments of rates share: small runs, and what each such treatment keeps."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from optdoctor.treatments import Intervention


def lion(parameters: Any) -> Any:
    """Imported where it is used: processes that a test starts do not need it."""
    import pytorch_optimizer

    return pytorch_optimizer.Lion(parameters, lr=1e-3)


def blockwise(parameters: Any) -> Any:
    """Likewise."""
    import bitsandbytes

    return bitsandbytes.optim.AdamW(parameters, lr=1e-2)


MAKERS: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda ps: torch.optim.SGD(ps, lr=0.01, momentum=0.9, weight_decay=0.01),
    "AdamW": lambda ps: torch.optim.AdamW(ps, lr=1e-2),
    "fused AdamW": lambda ps: torch.optim.AdamW(ps, lr=1e-2, fused=True),
    "Adam, rate a tensor": lambda ps: torch.optim.Adam(ps, lr=torch.tensor(1e-2), foreach=False),
    "Adafactor": lambda ps: torch.optim.Adafactor(ps, lr=1e-2),
    "Lion": lion,
    "bitsandbytes AdamW": blockwise,
}
each_optimizer = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


class Blocks(nn.Module):
    """Three blocks that can be compared, a norm, a part that never gets a gradient, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(6, 10)
        self.blocks = nn.ModuleList([nn.Linear(10, 10) for _ in range(3)])
        self.norm = nn.LayerNorm(10)
        self.unused = nn.Linear(10, 10)
        self.scale = nn.Parameter(torch.ones(()))
        self.head = nn.Linear(10, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = torch.tanh(block(x))
        return self.head(self.norm(x)) * self.scale


def blocks() -> Blocks:
    torch.manual_seed(0)
    return Blocks()


def parameters_of(model: nn.Module) -> list[dict[str, Any]]:
    """Two groups and an empty one; one tensor is frozen."""
    several = list(model.parameters())
    several[1].requires_grad_(False)
    return [{"params": several[:4]}, {"params": several[4:]}, {"params": []}]


def step(model: nn.Module, optimizer: Any, number: int) -> float:
    """One on a batch that its number decides."""
    inputs = torch.randn(16, 6, generator=torch.Generator().manual_seed(number))
    optimizer.zero_grad()
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def held(optimizer: Any) -> list[Any]:
    """All that its state holds, and the settings of its groups."""
    states = [v for s in optimizer.state.values() for v in s.values()]
    return states + [v for g in optimizer.param_groups for k, v in g.items() if k != "params"]


def same(left: Any, right: Any) -> bool:
    """Bit by bit."""
    if isinstance(left, Tensor):
        return torch.equal(left, right)
    return bool(left == right)


def goes_on_untreated(
    treatment: Intervention, make: Any, feed: Callable[[int], None] = lambda number: None
) -> None:
    """Thirty steps treated; twenty after undo are bit by bit those of a copy that knows of none."""
    model = blocks()
    optimizer = make(parameters_of(model))
    treatment.apply(optimizer, model)
    for number in range(30):
        step(model, optimizer, number)
        feed(number)
    treatment.undo()
    other = copy.deepcopy(model)
    untreated = make(parameters_of(other))
    untreated.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert not optimizer._optimizer_step_pre_hooks
    for number in range(30, 50):
        step(model, optimizer, number)
        step(other, untreated, number)
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert all(map(torch.equal, model.parameters(), other.parameters()))
    assert all(map(same, held(optimizer), held(untreated)))


def settings_of_groups(optimizer: Any) -> list[dict[str, Any]]:
    """A copy of all groups, tensors by id, without what steps count."""
    return [
        {k: [*map(id, v)] if k == "params" else copy.copy(v) for k, v in g.items() if k != "step"}
        for g in optimizer.param_groups
    ]


def falling(number: int) -> float:
    """A schedule."""
    return 1 / (1 + number)


def leaves_schedules_alone(
    make_treatment: Callable[[], Intervention],
    make: Any,
    feed: Callable[[Any, int], None] = lambda treatment, number: None,
) -> None:
    """Rates and momenta between steps are those of a run without it, under two schedules."""
    schedules = torch.optim.lr_scheduler
    for schedule in (
        lambda o: schedules.LambdaLR(o, falling),
        lambda o: schedules.OneCycleLR(
            o,
            max_lr=0.01,
            total_steps=40,
            cycle_momentum=bool({"momentum", "betas"} & {*o.defaults}),
        ),
    ):
        runs = []
        for treated in (True, False):
            model = blocks()
            optimizer = make(parameters_of(model))
            scheduler = schedule(optimizer)
            treatment = make_treatment()
            if treated:
                treatment.apply(optimizer, model)
            runs.append((model, optimizer, scheduler, treatment))
        for number in range(30):
            seen = []
            for model, optimizer, scheduler, treatment in runs:
                groups = list(optimizer.param_groups)
                before = settings_of_groups(optimizer)
                step(model, optimizer, number)
                feed(treatment, number)
                assert settings_of_groups(optimizer) == before
                assert all(map(lambda a, b: a is b, optimizer.param_groups, groups))
                scheduler.step()
                names = ("lr", "momentum", "betas")
                seen.append([{n: g.get(n) for n in names} for g in optimizer.param_groups])
            assert seen[0] == seen[1]


class Seen:
    """The settings that each step of an optimizer was made with."""

    def __init__(self, optimizer: Any) -> None:
        self.groups: list[list[dict[str, Any]]] = []
        optimizer.register_step_pre_hook(self._look)

    def _look(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.groups.append([dict(group) for group in optimizer.param_groups])

    def of(self, key: str) -> list[Any]:
        """Of the first group, at each step."""
        return [groups[0][key] for groups in self.groups]


def plain(lr: float = 1.0, **options: Any) -> tuple[nn.Parameter, Any]:
    """Four weights in double precision under SGD."""
    weight = nn.Parameter(torch.zeros(4, dtype=torch.float64))
    return weight, torch.optim.SGD([weight], lr=lr, **options)


def pushed(weight: nn.Parameter, optimizer: Any, by: float = 1.0) -> float:
    """How far one step of a gradient of this size moves the weight."""
    before = weight.detach().clone()
    weight.grad = torch.full_like(weight, by)
    optimizer.step()
    return float((before - weight.detach())[0])
