"""S31: a wrapper around the optimizer kept its own, empty state when a checkpoint was loaded."""

import copy
from pathlib import Path
from typing import Any

import torch
from acting import watching
from casing import Case
from tasks import waves
from torch import nn

from optdoctor.findings import Diagnosis

UPDATES, AFTER, RATE = 400, 80, 1e-2


class _Wrapper:
    """Takes the optimizer's attributes as they are now: a state that is loaded later is not its."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.__dict__ = dict(vars(optimizer))
        kind = type(optimizer)
        self.__class__ = type(f"Wrapped{kind.__name__}", (_Wrapper, kind), {})


def run(folder: Path) -> Diagnosis:
    torch.manual_seed(0)
    task = waves(0, noise=0.02)
    first = torch.optim.Adam(task.model.parameters(), lr=RATE)
    before = _train(task.model, first, task.batch, task.loss, range(UPDATES), folder)[0]
    saved = copy.deepcopy((task.model.state_dict(), first.state_dict()))

    model = waves(1).model
    model.load_state_dict(saved[0])
    inner = torch.optim.Adam(model.parameters(), lr=RATE)
    outer: Any = _Wrapper(inner)
    inner.load_state_dict(saved[1])
    assert len(inner.state) > 0
    assert len(outer.state) == 0
    steps = range(UPDATES, UPDATES + AFTER)
    after, diagnosis = _train(model, outer, task.batch, task.loss, steps, folder)
    usual = sum(before[-20:]) / 20
    assert after[0] < 1.5 * usual, "the weights are whole"
    assert max(after[1:10]) > 5 * usual, "and the first updates break them"
    return diagnosis


def _train(
    model: nn.Module, optimizer: Any, batch: Any, loss_of: Any, steps: range, folder: Path
) -> tuple[list[float], Diagnosis]:
    losses = []
    with watching(  # the step is told, as a framework's callback tells it
        model, optimizer, out=folder, first_step=steps.start + 1
    ) as doctor:
        for step in steps:
            inputs, target = batch(step)
            optimizer.zero_grad()
            loss = loss_of(model(inputs), target)
            loss.backward()
            doctor.log(loss=loss)
            optimizer.step()
            losses.append(float(loss.detach()))
    return losses, doctor.diagnosis


CASE = Case(
    number="S31",
    source="Lightning-AI/pytorch-lightning#5224",
    says="The loss jumps after the first step that follows a resume: Adam's state was left behind.",
    run=run,
    rules=("optimizer-state-lost",),
)
