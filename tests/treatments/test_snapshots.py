"""Snapshots: whatever a step does to weights, state and settings, it is put back to the bit."""

from typing import Any

import pytest
import torch
from small_training import bits, leaves
from torch import nn
from treated import MAKERS, small, step

from optdoctor.treatments.snapshots import Snapshot


def adamw_8bit(ps: Any) -> Any:
    return pytest.importorskip("bitsandbytes").optim.AdamW8bit(ps, lr=1e-2, min_8bit_size=16)


def adamw_torchao(ps: Any) -> Any:
    return pytest.importorskip("torchao.optim").AdamW8bit(ps, lr=1e-2, block_size=4)


def schedule_free(ps: Any) -> Any:
    optimizer = pytest.importorskip("schedulefree").AdamWScheduleFree(ps, lr=1e-2)
    optimizer.train()
    return optimizer


def prodigy(ps: Any) -> Any:
    return pytest.importorskip("prodigyopt").Prodigy(ps)


def soap(ps: Any) -> Any:
    return pytest.importorskip("pytorch_optimizer").SOAP(ps, precondition_frequency=2)


OTHERS = {f.__name__: f for f in (adamw_8bit, schedule_free, prodigy, soap)}
COMPILED = pytest.param(adamw_torchao, id="adamw_torchao", marks=pytest.mark.slow)
NAMED = [pytest.param(make, id=name) for name, make in {**MAKERS, **OTHERS}.items()]


def everything(model: nn.Module, optimizer: Any) -> list[Any]:
    found = [bits(t) for t in (*model.parameters(), *model.buffers())]
    return [*found, *leaves(optimizer.state_dict())]


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("make", [*NAMED, COMPILED])
def test_all_is_back_to_the_bit_and_goes_on_the_same(make: Any, device: str | None) -> None:
    model = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Linear(16, 1))
    optimizer = make(list(model.parameters()))
    for number in range(3):
        step(model, optimizer, number)
    own = {key for group in optimizer.param_groups for key in group}
    snapshot = Snapshot(optimizer, model, 3, device)
    at = everything(model, optimizer)
    runs = []
    for _ in range(2):
        for number in range(3, 6):
            step(model, optimizer, number)
        runs.append(everything(model, optimizer))
        assert runs[-1] != at
        snapshot.restore(own)
        assert everything(model, optimizer) == at
    assert runs[0] == runs[1]


def test_state_that_came_later_goes_and_tensors_stay_the_same_objects() -> None:
    model = small()
    optimizer = MAKERS["AdamW"](model.parameters())
    fresh = Snapshot(optimizer, model, 0)
    step(model, optimizer, 0)
    later = Snapshot(optimizer, model, 1)
    held = optimizer.state[model[0].weight]["exp_avg"]
    weight = model[0].weight
    step(model, optimizer, 1)
    later.restore()
    assert optimizer.state[model[0].weight]["exp_avg"] is held
    assert model[0].weight is weight
    assert torch.equal(optimizer.state[weight]["step"], torch.tensor(1.0))
    fresh.restore()
    assert not optimizer.state
