"""A small training for treatments, and what all of them must keep."""

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from optdoctor.treatments import Intervention

Make = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


class SignOfMomentum(torch.optim.Optimizer):
    """Lion, as short as it can be."""

    def __init__(self, params: Any, lr: float = 1e-3) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                mean = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                p.sub_(mean.mul(0.9).add(p.grad, alpha=0.1).sign(), alpha=group["lr"])
                mean.lerp_(p.grad, 0.01)


MAKERS: dict[str, Make] = {
    "SGD": lambda ps: torch.optim.SGD(ps, lr=0.05, momentum=0.9, weight_decay=0.01),
    "AdamW": lambda ps: torch.optim.AdamW(ps, lr=1e-2),
    "fused AdamW": lambda ps: torch.optim.AdamW(ps, lr=1e-2, fused=True),
    "Adafactor": lambda ps: torch.optim.Adafactor(ps, lr=1e-2),
    "sign": lambda ps: SignOfMomentum(ps, lr=1e-3),
}


def small(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def inputs_of(number: int) -> Tensor:
    """Every tenth batch is an outlier."""
    values = torch.randn(8, 4, generator=torch.Generator().manual_seed(number))
    return values * (30.0 if number % 10 == 9 else 1.0)


def step(model: nn.Module, optimizer: Any, number: int) -> float:
    optimizer.zero_grad()
    loss = (model(inputs_of(number)) - 1).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def train(model: nn.Module, optimizer: Any, numbers: Iterable[int]) -> None:
    for number in numbers:
        step(model, optimizer, number)


def tensors(optimizer: Any) -> list[Tensor]:
    """All of the optimizer's state, in the order of its parameters."""
    return [v for s in optimizer.state.values() for v in s.values() if isinstance(v, Tensor)]


def same(model: nn.Module, optimizer: Any, other: nn.Module, untreated: Any) -> bool:
    """Whether weights and state are equal to the bit."""
    first, second = (
        [*m.parameters(), *m.buffers(), *tensors(o)]
        for m, o in ((model, optimizer), (other, untreated))
    )
    return len(first) == len(second) and all(map(torch.equal, first, second))


def settings(optimizer: Any) -> list[dict[str, Any]]:
    """Of the groups, parameters by their ids."""
    return [
        {k: [id(p) for p in v] if k == "params" else v for k, v in group.items()}
        for group in optimizer.param_groups
    ]


def check_undo(make: Make, treatment: Intervention, steps: int = 40) -> list[str]:
    """Trains treated under a schedule, undoes, and trains on, against a copy that goes on untreated
    from the moment of the undo; settings are the user's between all steps. Gives the notes."""
    model = small()
    optimizer = make(model.parameters())
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    treatment.apply(optimizer, model)
    for number in range(steps):
        before = settings(optimizer)
        loss = step(model, optimizer, number)
        assert settings(optimizer) == before
        if hasattr(treatment, "observe"):
            treatment.observe({"loss": loss})
        schedule.step()
    treatment.undo()
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert not any("failed" in note for note in treatment.notes), list(treatment.notes)
    other = copy.deepcopy(model)
    untreated = make(other.parameters())
    untreated.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(model, optimizer, range(steps, steps + 15))
    train(other, untreated, range(steps, steps + 15))
    assert same(model, optimizer, other, untreated)
    return list(treatment.notes)


class Fed:
    """An SGD of some tensors whose gradients are given by their norms."""

    def __init__(self, treatment: Intervention, *shapes: tuple[int, ...], lr: float = 1.0) -> None:
        self.weights = [nn.Parameter(torch.zeros(shape)) for shape in shapes or ((4,),)]
        self.optimizer = torch.optim.SGD(self.weights, lr=lr)
        self.treatment = treatment.apply(self.optimizer)

    def used(self, *norms: float | None) -> list[float]:
        """Norms that the optimizer used of gradients of these norms; None for no gradient."""
        for weight, norm in zip(self.weights, norms, strict=True):
            weight.grad = None
            if norm is not None:
                weight.grad = torch.full_like(weight, norm / max(weight.numel(), 1) ** 0.5)
        self.optimizer.step()
        return [float(w.grad.norm()) for w in self.weights if w.grad is not None]


def odd_gradients(optimizer_of: Make) -> tuple[Any, list[nn.Parameter]]:
    """An optimizer of tensors of every kind, with gradients: 0-dim, empty, complex, half, double,
    frozen, and one without gradient; one is in it alone and one group is empty."""
    torch.manual_seed(0)
    kinds = [
        torch.ones(()),
        torch.ones(0, 3),
        torch.ones(3, dtype=torch.complex64),
        torch.ones(3, dtype=torch.float16),
        torch.ones(3, dtype=torch.bfloat16),
        torch.ones(3, dtype=torch.float64),
        torch.ones(2, 2),
        torch.ones(3),
    ]
    weights = [nn.Parameter(kind) for kind in kinds]
    for weight in weights[:-2]:
        weight.grad = torch.full_like(weight, 0.5)
    weights[-2].requires_grad_(False)
    optimizer = optimizer_of(weights)
    optimizer.add_param_group({"params": []})
    return optimizer, weights


def check_true_units(first: Intervention, second: Intervention) -> tuple[str, str]:
    """Trains plainly with the one, and with the other under a scaler whose scale doubles every
    third step and whose optimizer unscales within: weights are the same. Gives the last notes."""
    plain, scaled = small(), small()
    make = MAKERS["fused AdamW"]
    one, other = make(plain.parameters()), make(scaled.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0, growth_interval=3)
    first.apply(one, plain)
    second.apply(other, scaled)
    for number in range(30):
        step(plain, one, number)
        other.zero_grad()
        scaler.scale((scaled(inputs_of(number)) - 1).square().mean()).backward()
        scaler.step(other)
        scaler.update()
    assert scaler.get_scale() > 500
    for p, q in zip(plain.parameters(), scaled.parameters(), strict=True):
        assert torch.allclose(p, q, rtol=1e-4, atol=1e-6)
    first.undo()
    second.undo()
    return first.notes[-1], second.notes[-1]
