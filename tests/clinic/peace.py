"""A short watched training with one optimizer."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from networks import BYTES
from recipes import Recipe
from tasks import Task, digits, text
from torch import Tensor, nn
from trainings import listen

import optdoctor
from optdoctor.findings import Diagnosis, Finding
from optdoctor.trace import Trace

STEPS, TAIL = 150, 20


def pairs_of_bytes(seed: int) -> Task:
    """The next byte from the last one: a table of 128 x 128 logits with sparse gradients."""
    task = text(seed, context=1)
    return replace(task, model=nn.Sequential(nn.Embedding(BYTES, BYTES, sparse=True), nn.Flatten()))


TASKS: dict[str, Callable[[int], Task]] = {
    "digits": partial(digits, batch=64),
    "cnn": partial(digits, model="cnn", batch=64),
    "text": partial(text, context=8),
    "gpt": partial(text, model="gpt", batch=8, context=16),
    "pairs": pairs_of_bytes,
}


@dataclass(frozen=True)
class Seen:
    """What became of a run."""

    losses: tuple[float, ...]
    """Of every update, before it."""
    diagnosis: Diagnosis
    trace: Trace
    announced: tuple[Finding, ...]
    """What appeared while it trained, in order."""

    @property
    def final_loss(self) -> float:
        return float(np.mean(self.losses[-TAIL:]))

    @property
    def fall(self) -> float:
        """By how much the loss fell."""
        return self.losses[0] - self.final_loss

    @property
    def failures(self) -> list[str]:
        """Parts of the doctor that gave up."""
        return [event.text for event in self.trace.events if event.kind == "doctor-failed"]


def trained(
    recipe: Recipe,
    dtype: torch.dtype = torch.float32,
    *,
    task: str | None = None,
    seed: int = 0,
    steps: int = STEPS,
    interval: int | None = 6,
) -> Seen:
    """Makes the run, watched, on one thread."""
    torch.set_num_threads(1)
    given = TASKS[task or recipe.task](seed)
    model = given.model.to(dtype)
    optimizer = recipe.make(recipe, model)
    losses: list[float] = []
    told: list[Finding] = []
    with optdoctor.watch(model, optimizer, out=None, sinks=(), interval=interval) as doctor:
        listen(doctor, told.append)
        for step in range(steps):
            inputs, target = given.batch(step)
            inputs = inputs.to(dtype) if inputs.is_floating_point() else inputs

            def loss(inputs: Tensor = inputs, target: Tensor = target, at: int = step) -> Tensor:
                value = given.loss(model(inputs).float(), target)
                if len(losses) == at:  # the first of several looks
                    losses.append(float(value.detach()))
                    doctor.log(loss=value)
                return value

            recipe.step(optimizer, loss)
    return Seen(tuple(losses), doctor.diagnosis, doctor.runs[0].trace, tuple(told))
