"""One run of the clinic while it is made: what it is made of can be changed before it starts, which
is how a fault is brought in."""

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import makers
import numpy as np
import torch
from setups import Family, Setup, families, families_apart
from tasks import Batch, Task
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from trainings import Schedule

import optdoctor
from optdoctor.live.doctor import Doctor
from optdoctor.trace import Fact

INTERVAL = 5
"""Updates between two samples: of a fixed number, so that a record does not hang on the clock."""
OVERHEAD = 1e-9
"""Share of the time for what is not sampled: the rules look at records later, again and again."""
EVALUATIONS = 20
LAST = 3
"""Evaluations at the end whose mean is the final loss."""
Act = Callable[["Course", int], None]
"""(course, number of the update, from 0)."""


@dataclass
class Course:
    """A run that is set up and not begun. Whatever stands here, a fault may replace."""

    setup: Setup
    family: Family
    task: Task
    steps: int
    optimizers: list[Any]
    schedule: Schedule
    """(update, updates planned) -> factor of each group's rate."""
    batch: Callable[[int], Batch]
    """Number of the micro-batch, from 0 -> inputs and targets."""
    loss: Callable[[Tensor, Tensor], Tensor]
    """In training."""
    facts: dict[str, Fact]
    """What a framework would tell the doctor of the configuration."""
    scaler: Any = None
    accumulate: int = 1
    divide: bool = True
    """Whether the loss of a micro-batch is divided by their number."""
    clip: float | None = None
    autocast: torch.dtype | None = None
    zero: Callable[["Course"], None] = lambda course: [o.zero_grad() for o in course.optimizers]
    before_backward: list[Act] = field(default_factory=list)
    before_step: list[Act] = field(default_factory=list)
    """After the clip."""
    after_step: list[Act] = field(default_factory=list)
    schedulers_step: int = 1
    """How often the scheduler is stepped an update."""
    resume_at: int | None = None
    """Update before which the process ends and another goes on."""
    on_resume: Act = lambda course, step: None
    """What the new process forgets; it holds everything when this is called."""
    notes: dict[str, Any] = field(default_factory=dict)
    """What a fault writes down for its probe."""
    schedulers: list[Any] = field(default_factory=list)

    @property
    def model(self) -> nn.Module:
        return self.task.model


@dataclass(frozen=True)
class Outcome:
    """What became of a run, as the clinic needs it."""

    losses: tuple[float, ...]
    eval_losses: tuple[float, ...]
    """The first is from before the first update."""

    @property
    def final(self) -> float:
        """Mean of the last evaluations; infinite where one is not finite."""
        last = np.array(self.eval_losses[-LAST:])
        return float(last.mean()) if np.isfinite(last).all() else math.inf


def course(setup: Setup) -> Course:
    """The run of this setup, ready to train."""
    torch.set_num_threads(1)
    family = {**families(), **families_apart()}[setup.family]
    batch = max(1, round(family.batch * setup.batch_factor))
    torch.manual_seed(setup.seed)
    task = family.build(setup.seed, setup.size, batch)
    if setup.precision in makers.DTYPES:
        task.model.to(makers.DTYPES[setup.precision])
    optimizers = _optimizers(setup, family, task)
    schedule = makers.SCHEDULES[setup.schedule]
    facts: dict[str, Fact] = {
        "total_steps": family.steps,
        "batch_size": batch,
        "accumulation_steps": setup.accumulate,
        "max_grad_norm": float(setup.clip or 0.0),
        "schedule": setup.schedule,
        "loss_kind": family.loss_kind,
        "loss_base": "nats",
    }
    if task.num_classes is not None:
        facts["num_classes"] = task.num_classes
    autocast = {"bfloat16-autocast": torch.bfloat16, "float16-scaler": torch.float16}
    return Course(
        setup=setup,
        family=family,
        task=task,
        steps=family.steps,
        optimizers=optimizers,
        schedule=schedule,
        batch=task.batch,
        loss=task.loss,
        facts=facts,
        scaler=torch.amp.GradScaler("cpu") if setup.precision == "float16-scaler" else None,
        accumulate=setup.accumulate,
        clip=setup.clip,
        autocast=autocast.get(setup.precision),
    )


def _optimizers(setup: Setup, family: Family, task: Task) -> list[Any]:
    parts = [task.model.get_submodule(name) for name in task.optimized_parts] or [task.model]
    rate, options = family.rates[setup.optimizer] * setup.rate_factor, dict(setup.optimizer_options)
    return [
        optimizer
        for part in parts
        for optimizer in makers.make(setup.optimizer, part, rate, setup.weight_decay, **options)
    ]


def train(run: Course, out: Path | None) -> Outcome:
    """Makes the run under the doctor's eye, with its record in `out`."""
    torch.manual_seed(run.setup.seed + 1)
    losses: list[float] = []
    evaluations = [_evaluate(run)]
    every = max(1, run.steps // EVALUATIONS)
    with contextlib.ExitStack() as stack:
        doctor = stack.enter_context(_watch(run, out))
        run.schedulers = [_scheduler(run, optimizer) for optimizer in run.optimizers]
        for step in range(run.steps):
            if step == run.resume_at:
                stack.close()
                _resume(run, step)
                doctor = stack.enter_context(_watch(run, out, first_step=step + 1))
            run.zero(run)
            loss = gradients(run, step)
            doctor.log(loss=loss)
            _update(run, step)
            losses.append(float(loss))
            if (step + 1) % every == 0:
                evaluations.append(_evaluate(run))
                doctor.log(eval_loss=evaluations[-1])
    return Outcome(tuple(losses), tuple(evaluations))


def gradients(run: Course, step: int) -> Tensor:
    """The update's loss; its gradients are in place afterwards."""
    for act in run.before_backward:
        act(run, step)
    if run.task.backward is not None:
        return run.task.backward(run, step)
    total = torch.zeros(())
    for part in range(run.accumulate):
        inputs, target = run.batch(step * run.accumulate + part)
        loss = of_batch(run, inputs, target)
        if run.divide:
            loss = loss / run.accumulate
        (loss if run.scaler is None else run.scaler.scale(loss)).backward()
        if run.accumulate == 1:
            return loss
        total = total + loss.detach().float()
    return total


def of_batch(run: Course, inputs: Any, target: Any) -> Tensor:
    """The training loss of one micro-batch, in the precision of the run."""
    half = makers.DTYPES.get(run.setup.precision)
    if half is not None and isinstance(inputs, Tensor) and inputs.is_floating_point():
        inputs = inputs.to(half)
    with torch.autocast("cpu", run.autocast, enabled=run.autocast is not None):
        output = run.model(inputs)
    return run.loss(output.float() if isinstance(output, Tensor) else output, target)


def _update(run: Course, step: int) -> None:
    if run.scaler is not None and (run.clip is not None or run.before_step):
        for optimizer in run.optimizers:
            run.scaler.unscale_(optimizer)
    if run.clip is not None:
        nn.utils.clip_grad_norm_(run.model.parameters(), run.clip)
    for act in run.before_step:
        act(run, step)
    for optimizer in run.optimizers:
        optimizer.step() if run.scaler is None else run.scaler.step(optimizer)
    if run.scaler is not None:
        run.scaler.update()
    for act in run.after_step:
        act(run, step)
    for scheduler in run.schedulers:
        for _ in range(run.schedulers_step):
            scheduler.step()


def _watch(run: Course, out: Path | None, first_step: int | None = None) -> Doctor:
    watched = run.optimizers if len(run.optimizers) > 1 else run.optimizers[0]
    doctor = optdoctor.watch(
        run.model,
        watched,
        out=out,
        overhead=OVERHEAD,
        interval=INTERVAL,
        sinks=(),
        scaler=run.scaler,
        first_step=first_step,
    )
    for one in doctor.runs:
        one.learn(run.facts)
    return doctor


def _scheduler(run: Course, optimizer: Any) -> Any:
    if hasattr(optimizer, "train"):
        optimizer.train()  # schedule-free kinds
    return LambdaLR(optimizer, lambda step: run.schedule(min(step, run.steps), run.steps))


def _resume(run: Course, step: int) -> None:
    """The same run in a new process: new optimizers and schedulers with the state of the old."""
    kept = [optimizer.state_dict() for optimizer in run.optimizers]
    rates = [scheduler.state_dict() for scheduler in run.schedulers]
    run.optimizers = _optimizers(run.setup, run.family, run.task)
    for optimizer, state in zip(run.optimizers, kept, strict=True):
        optimizer.load_state_dict(state)
    run.schedulers = [_scheduler(run, optimizer) for optimizer in run.optimizers]
    for scheduler, state in zip(run.schedulers, rates, strict=True):
        scheduler.load_state_dict(state)
    run.on_resume(run, step)


@torch.no_grad()
def _evaluate(run: Course) -> float:
    """The held-out loss, of weights as they are used after training."""
    away = [o for o in run.optimizers if hasattr(o, "eval")]
    run.model.eval()
    for optimizer in away:
        optimizer.eval()
    state = torch.get_rng_state()
    value = run.task.evaluate(run.model) if run.task.evaluate else _held_out_loss(run)
    torch.set_rng_state(state)
    for optimizer in away:
        optimizer.train()
    run.model.train()
    return value


def _held_out_loss(run: Course) -> float:
    inputs, target = run.task.held_out
    half = makers.DTYPES.get(run.setup.precision)
    if half is not None and inputs.is_floating_point():
        inputs = inputs.to(half)
    output = run.model(inputs)
    return float(run.task.loss(output.float() if isinstance(output, Tensor) else output, target))
