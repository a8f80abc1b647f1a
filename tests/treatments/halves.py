"""Small trainings in 16 bits, and what treatments that step in float32 must keep."""

import copy
from collections.abc import Callable, Iterable
from typing import Any

import bitsandbytes
import pytorch_optimizer
import torch
from torch import nn
from treated import settings, tensors

from optdoctor.treatments import Intervention

Make = Callable[[Any], Any]
MAKERS: dict[str, Make] = {
    "SGD": lambda ps: torch.optim.SGD(ps, lr=0.01, momentum=0.9, weight_decay=0.01),
    "AdamW": lambda ps: torch.optim.AdamW(ps, lr=1e-3),
    "fused AdamW": lambda ps: torch.optim.AdamW(ps, lr=1e-3, fused=True),
    "AdamW, tensor by tensor": lambda ps: torch.optim.AdamW(ps, lr=1e-3, foreach=False),
    "Adafactor": lambda ps: torch.optim.Adafactor(ps, lr=1e-3),
    "Lion": lambda ps: pytorch_optimizer.Lion(ps, lr=1e-3),
    "bitsandbytes AdamW": lambda ps: bitsandbytes.optim.AdamW(ps, lr=1e-3),
}


def network(dtype: torch.dtype, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)).to(dtype)


def step(model: nn.Module, optimizer: Any, number: int) -> float:
    inputs = torch.randn(32, 8, generator=torch.Generator().manual_seed(number))
    targets = inputs.sum(1, keepdim=True).sin()
    optimizer.zero_grad()
    output = model(inputs.to(next(model.parameters()).dtype)).float()
    loss = (output - targets).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def train(model: nn.Module, optimizer: Any, numbers: Iterable[int]) -> list[float]:
    return [step(model, optimizer, number) for number in numbers]


def check_undo_of_halves(make: Make, treatment: Intervention, dtype: torch.dtype) -> None:
    """Treated under a schedule, undone, and trained on, against a copy that goes on untreated."""
    model = network(dtype)
    optimizer = make(model.parameters())
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.98)
    treatment.apply(optimizer, model)
    for number in range(15):
        before = settings(optimizer)
        step(model, optimizer, number)
        for own, old in zip(settings(optimizer), before, strict=True):  # some count in their groups
            assert {**own, "step": 0} == {**old, "step": 0}
        assert all(p.dtype == p.grad.dtype == dtype for p in model.parameters())
        schedule.step()
    treatment.undo()
    assert not optimizer._optimizer_step_pre_hooks
    assert not any("failed" in note for note in treatment.notes), list(treatment.notes)
    other = copy.deepcopy(model)
    untreated = make(other.parameters())
    untreated.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(model, optimizer, range(15, 20))
    train(other, untreated, range(15, 20))
    left = [*model.parameters(), *tensors(optimizer)]
    right = [*other.parameters(), *tensors(untreated)]
    assert len(left) == len(right)
    for one, two in zip(left, right, strict=True):  # AdamW in float16 dies of NaN, in both alike
        assert one.dtype == two.dtype
        assert torch.equal(one.nan_to_num(12.0), two.nan_to_num(12.0))
