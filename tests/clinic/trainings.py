"""Real small trainings for the clinic: the loop, and the faults that it can be given.

A `Training` says all that a run needs; `train` makes it, watched, with the same bits every time.
The registries are in `sick.py` and `healthy.py`.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tasks import Batch, Task
from torch import Tensor, nn

import optdoctor
from optdoctor.findings import Diagnosis, Finding, Severity
from optdoctor.live.doctor import Doctor
from optdoctor.trace import Trace

TAIL = 20
"""Losses at the end whose mean is the final loss."""
Schedule = Callable[[int, int], float]
"""(update, updates planned) -> factor, as of the learning rate."""
Spoil = Callable[[int, int, Batch], Batch]
"""(update, updates planned, batch) -> the batch that is trained on instead."""


def constant(step: int, total: int) -> float:
    return 1.0


@dataclass(frozen=True)
class Training:
    """One run. Sick ones say what is wrong, and `cure` holds the fields of the healthy twin."""

    name: str
    task: Callable[[int], Task]
    optimizer: Callable[[Iterable[nn.Parameter]], Any]
    schedule: Schedule = constant
    steps: int = 400
    seed: int = 0
    eval_every: int = 20
    clip: float | None = None
    """Largest gradient norm; a run that clips logs the norm too, as loops do."""
    accumulate: int = 1
    dtype: torch.dtype = torch.float32
    autocast: bool = False
    loss: Callable[[Tensor, Tensor], Tensor] | None = None
    """A loss in place of the task's, for training only."""
    spoil: Spoil | None = None
    after: Callable[[nn.Module, int, int], None] | None = None
    """(model, update, updates planned): what happens to the weights after each update."""
    shape: str | None = None
    mechanism: str = ""
    causes: frozenset[str] = frozenset()
    """Rules that would be right to name as the cause; empty where none of ours knows it."""
    cure: dict[str, Any] = field(default_factory=dict)

    @property
    def twin(self) -> "Training":
        """The same run without the fault."""
        return replace(self, **{"name": f"{self.name}, cured", **self.cure})


@dataclass(frozen=True)
class Result:
    """What became of a run."""

    diagnosis: Diagnosis
    trace: Trace
    losses: tuple[float, ...]
    """Of every update."""
    eval_losses: tuple[float, ...]
    announced: tuple[str, ...]
    """Rules whose findings were told while it trained, in order."""

    @property
    def final_loss(self) -> float:
        return float(np.mean(self.losses[-TAIL:]))

    @property
    def final_eval_loss(self) -> float:
        return self.eval_losses[-1]


def train(training: Training, *, interval: int = 10, out: Path | None = None) -> Result:
    """Makes the run under the doctor's eye, on one thread."""
    torch.set_num_threads(1)
    task = training.task(training.seed)
    model = task.model.to(training.dtype)
    optimizer = training.optimizer(model.parameters())
    peaks = [group["lr"] for group in optimizer.param_groups]
    losses: list[float] = []
    eval_losses: list[float] = []
    told: list[str] = []
    with optdoctor.watch(model, optimizer, out=out, sinks=(), interval=interval) as doctor:
        listen(doctor, lambda finding: told.append(finding.rule))
        for step in range(training.steps):
            factor = training.schedule(step, training.steps)
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["lr"] = peak * factor
            optimizer.zero_grad()
            loss, norm = _gradients(training, task, step)
            logged = {"loss": loss} if norm is None else {"loss": loss, "grad_norm": norm}
            doctor.log(**logged)
            optimizer.step()
            if training.after is not None:
                training.after(model, step, training.steps)
            losses.append(float(loss))
            if (step + 1) % training.eval_every == 0:
                eval_losses.append(_evaluate(training, task))
                doctor.log(eval_loss=eval_losses[-1])
    return Result(
        doctor.diagnosis, doctor.runs[0].trace, tuple(losses), tuple(eval_losses), tuple(told)
    )


def _gradients(training: Training, task: Task, step: int) -> tuple[Tensor, Tensor | None]:
    """The update's loss, and the norm of its gradient where it is clipped."""
    of_loss, total = training.loss or task.loss, torch.zeros(())
    for part in range(training.accumulate):
        batch = task.batch(step * training.accumulate + part)
        if training.spoil is not None:
            batch = training.spoil(step, training.steps, batch)
        inputs = _cast(batch[0], training.dtype)
        with torch.autocast("cpu", torch.bfloat16, enabled=training.autocast):
            output = task.model(inputs)
        loss = of_loss(output.float(), batch[1]) / training.accumulate
        loss.backward()
        total = total + loss.detach()
    if training.clip is None:
        return total, None
    return total, nn.utils.clip_grad_norm_(task.model.parameters(), training.clip)


@torch.no_grad()
def _evaluate(training: Training, task: Task) -> float:
    task.model.eval()
    inputs, target = task.held_out
    loss = task.loss(task.model(_cast(inputs, training.dtype)).float(), target)
    task.model.train()
    return float(loss)


def _cast(inputs: Tensor, dtype: torch.dtype) -> Tensor:
    return inputs.to(dtype) if inputs.is_floating_point() else inputs


def listen(doctor: Doctor, hear: Callable[[Finding], None]) -> None:
    """Hears every finding above a note when it appears: notes wait for the report."""
    journal = doctor.runs[0].journal
    write = journal.notices

    def notices(several: Any) -> None:
        several = list(several)
        for notice in several:
            if notice.what == "appeared" and notice.finding.severity is not Severity.NOTE:
                hear(notice.finding)
        write(several)

    journal.notices = notices  # type: ignore[method-assign]


# Schedules


def ramp(start: float, slope: float) -> Schedule:
    """0 until the share `start` of the run, then up by `slope` a run."""
    return lambda step, total: max(0.0, slope * (step / total - start))


def cosine(step: int, total: int) -> float:
    return 0.5 * (1 + math.cos(math.pi * step / total))


def linear(step: int, total: int) -> float:
    """A tenth of warm-up, then down to 0."""
    return min((step + 1) / (0.1 * total), (total - step) / (0.9 * total))


def warm_cosine(step: int, total: int) -> float:
    return min(1.0, (step + 1) / (0.1 * total)) * cosine(step, total)


def stable_decay(step: int, total: int) -> float:
    """Warm-up, a long constant part, a fifth of decay."""
    return min(1.0, (step + 1) / (0.05 * total), (total - step) / (0.2 * total))


def milestones(*shares: float, factor: float = 0.1) -> Schedule:
    """Times `factor` at each share of the run."""
    return lambda step, total: factor ** sum(step >= share * total for share in shares)


def restarts(cycles: int) -> Schedule:
    """Cosine to 0, again and again."""
    return lambda step, total: cosine(step % (total // cycles), total // cycles)


def one_cycle(step: int, total: int) -> float:
    """Up for a third, down to 0 afterwards."""
    at = step / total
    return cosine(int(1000 * abs(at - 0.3) / (0.3 if at < 0.3 else 0.7)), 1000)
