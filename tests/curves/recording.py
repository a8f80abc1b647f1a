"""Records the curves of real small trainings: loss, gradient norm, rate, and evaluation loss.

A `Family` makes one training for each seed, in other sizes and at other rates: what it is like is
the family's, the numbers are the seed's. The trainings themselves are those of tests/clinic.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from trainings import Training

from curves.records import Record

Change = Callable[[nn.Module, int, int], None]
"""(model, update, updates planned): what becomes of the gradient before it is used."""


@dataclass(frozen=True)
class Family:
    """Trainings of one kind. Sick ones name the shape that they show, and where it begins."""

    name: str
    make: Callable[[int], Training]
    """seed -> training."""
    group: str = "from scratch"
    """"pretraining", "fine-tuning" or "from scratch": what the run is like."""
    truth: str = "healthy"
    onset: float | None = None
    """Share of the run at which the fault begins; none where nobody can say."""
    gradient: Change | None = None


def record(family: Family, seed: int, *, held: bool) -> Record:
    """Makes the training of a seed, on one thread, and keeps what a log would hold."""
    torch.set_num_threads(1)
    training = family.make(seed)
    task = training.task(seed)
    model = task.model.to(training.dtype)
    optimizer = training.optimizer(model.parameters())
    peaks = [group["lr"] for group in optimizer.param_groups]
    loss, norm, rate, steps, values = [], [], [], [], []
    for step in range(training.steps):
        factor = training.schedule(step, training.steps)
        for group, peak in zip(optimizer.param_groups, peaks, strict=True):
            group["lr"] = peak * factor
        optimizer.zero_grad()
        loss.append(_backward(training, task, model, step))
        if family.gradient is not None:
            family.gradient(model, step, training.steps)
        clip = math.inf if training.clip is None else training.clip
        norm.append(float(nn.utils.clip_grad_norm_(model.parameters(), clip)))
        rate.append(peaks[0] * factor)
        optimizer.step()
        if training.after is not None:
            training.after(model, step, training.steps)
        if (step + 1) % training.eval_every == 0:
            steps.append(step)
            values.append(_evaluated(training, task, model))
    onset = None if family.onset is None else round(family.onset * training.steps)
    return Record.of(
        family.name,
        seed,
        held=held,
        group=family.group,
        truth=family.truth,
        onset=onset,
        loss=loss,
        grad_norm=norm,
        lr=rate,
        eval_steps=steps,
        eval_loss=values,
    )


def _backward(training: Training, task, model: nn.Module, step: int) -> float:
    """The update's loss, as it is logged."""
    of_loss, total = training.loss or task.loss, 0.0
    for part in range(training.accumulate):
        inputs, target = task.batch(step * training.accumulate + part)
        if training.spoil is not None:
            inputs, target = training.spoil(step, training.steps, (inputs, target))
        loss = of_loss(_output(training, model, inputs), target) / training.accumulate
        loss.backward()
        total += float(loss.detach())
    return total


def _output(training: Training, model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    inputs = inputs.to(training.dtype) if inputs.is_floating_point() else inputs
    with torch.autocast("cpu", torch.bfloat16, enabled=training.autocast):
        return model(inputs).float()


@torch.no_grad()
def _evaluated(training: Training, task, model: nn.Module) -> float:
    model.eval()
    inputs, target = task.held_out
    loss = float(task.loss(_output(training, model, inputs), target))
    model.train()
    return loss
