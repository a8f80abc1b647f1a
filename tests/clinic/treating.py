"""A run of the clinic that is treated: set up once more with its fault, and with the treatment from
its first update on.

A treatment is given as its finding writes it: as a change of knobs, made as a user would make it in
the loop of this clinic, or as an intervention, switched on at the optimizers. The doctor is not
there: it measures and changes nothing.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import course as courses
import makers
import torch
from course import EVALUATIONS, Course, Outcome, course, gradients
from faulting import Dose, faults
from records import Job
from setups import Setup

from optdoctor.findings import Knob, Treatment
from optdoctor.knowledge.knobs import PATTERN
from optdoctor.treatments import Intervention, interventions

OF_SETUP = ("param_dtype", "state_dtype", "math_dtype")
"""Knobs that the model is built with: in this clinic weights, state and arithmetic go together."""


class NotApplicable(Exception):
    """Nothing here can do what the treatment says: the knob, and why."""


@dataclass(frozen=True)
class Given:
    """What a run is treated with, and the optimizer that it is for."""

    treatments: tuple[Treatment, ...] = ()
    """One after the other; none for the fault's own cure."""
    part: int | None = None
    """Index into the run's optimizers, None for all."""


Turn = Callable[[Course, Sequence[Any], Any, Any], None]
"""(run, optimizers that are meant, old value, new value): turns one knob of a run set up."""


def prepared(job: Job, given: Given) -> Course:
    """The job's run, ready to train, with fault and treatment.

    Raises:
        NotApplicable: a knob that this clinic, or this optimizer, does not have.
        Refused: an intervention cannot act on this run.
    """
    changes = [change for one in given.treatments for change in one.changes.items()]
    fault = faults()[job.fault] if job.fault else None
    dose: Dose = fault.doses[job.dose] if fault else None
    setup = fault.alter(job.setup, dose) if fault else job.setup
    run = course(_in_float32(setup, changes))
    if fault:
        fault.inject(run, dose)
    optimizers = run.optimizers if given.part is None else [run.optimizers[given.part]]
    for knob, (old, new) in changes:
        _turn(knob)(run, optimizers, old, new)
    if not given.treatments and fault and fault.cure:
        fault.cure(run, dose)
    for name in dict.fromkeys(one.intervention for one in given.treatments):
        if name:
            _switch_on(run, name)
    return run


def trained(run: Course) -> Outcome:
    """As `course.train` makes it, without the doctor. That module is part of the name of every
    record, so what is private there stays so and is called from here."""
    torch.manual_seed(run.setup.seed + 1)
    losses: list[float] = []
    evaluations = [courses._evaluate(run)]
    every = max(1, run.steps // EVALUATIONS)
    run.schedulers = [courses._scheduler(run, optimizer) for optimizer in run.optimizers]
    for step in range(run.steps):
        if step == run.resume_at:
            courses._resume(run, step)
        run.zero(run)
        loss = gradients(run, step)
        losses.append(float(loss.detach()))
        _observe(run, loss=losses[-1])
        courses._update(run, step)
        if (step + 1) % every == 0:
            evaluations.append(courses._evaluate(run))
            _observe(run, eval_loss=evaluations[-1])
    return Outcome(tuple(losses), tuple(evaluations))


def _in_float32(setup: Setup, changes: Sequence[tuple[str, tuple[Knob, Knob]]]) -> Setup:
    asked = {knob: new for knob, (_, new) in changes if knob in OF_SETUP}
    if not asked:
        return setup
    if {*asked.values()} != {"float32"}:
        raise NotApplicable(f"{', '.join(asked)} = {', '.join(map(str, asked.values()))}")
    if setup.precision not in makers.DTYPES:
        raise NotApplicable(f"{', '.join(asked)} of what is put into a float32 model by hand")
    return replace(setup, precision="bfloat16-autocast")


def _turn(knob: str) -> Turn:
    if knob.startswith(PATTERN):
        return lambda run, several, old, new: _apart(run, several, knob, old, new)
    if knob in OF_SETUP:
        return lambda run, several, old, new: None  # done before the model was built
    if knob not in TURNS:
        raise NotApplicable(knob)
    return TURNS[knob]


def _factor(knob: str, old: Any, new: Any) -> float:
    if not all(isinstance(v, int | float) and math.isfinite(v) and v > 0 for v in (old, new)):
        raise NotApplicable(f"{knob} from {old} to {new}")
    return float(new / old)


def _rate(run: Course, several: Sequence[Any], old: Any, new: Any) -> None:
    """By a factor and not to a value: groups with rates of their own keep their ratios."""
    factor = _factor("lr", old, new)
    for optimizer in several:
        for group in optimizer.param_groups:
            group["lr"] *= factor


def _apart(run: Course, several: Sequence[Any], knob: str, old: Any, new: Any) -> None:
    """The tensors under that name get groups of their own."""
    factor, layer = _factor(knob, old, new), knob.removeprefix(PATTERN)
    if run.resume_at is not None:
        raise NotApplicable(f"{PATTERN} of a run whose second process builds one group")
    inside = {id(p) for n, p in run.model.named_parameters() if f".{layer}." in f".{n}."}
    found = 0
    for optimizer in several:
        for group in list(optimizer.param_groups):
            chosen = [p for p in group["params"] if id(p) in inside]
            found += len(chosen)
            if len(chosen) == len(group["params"]):
                group["lr"] *= factor
            elif chosen:
                group["params"] = [p for p in group["params"] if id(p) not in inside]
                options = {k: v for k, v in group.items() if k not in ("params", "initial_lr")}
                rate = factor * group["lr"]
                optimizer.add_param_group({**options, "params": chosen, "lr": rate})
    if not found:
        raise NotApplicable(f"{PATTERN} of no tensor of this optimizer")


def _setting(knob: str, *places: tuple[str, int | None]) -> Turn:
    """Writes it into all groups that have it, at the first of the places: (key, index) or key."""

    def turn(run: Course, several: Sequence[Any], old: Any, new: Any) -> None:
        written = 0
        for group in (group for optimizer in several for group in optimizer.param_groups):
            for key, index in places:
                if (held := group.get(key)) is None or isinstance(held, tuple) != (
                    index is not None
                ):
                    continue
                if index is None:
                    group[key] = new
                else:
                    group[key] = (*held[:index], new, *held[index + 1 :])
                written += 1
                break
        if not written:
            raise NotApplicable(f"{knob}, which this optimizer lacks")

    return turn


def _decay(run: Course, several: Sequence[Any], old: Any, new: Any) -> None:
    """Groups without decay, of norms and biases, stay so."""
    groups = [g for o in several for g in o.param_groups if g.get("weight_decay")]
    if not groups:
        raise NotApplicable("weight_decay, of which this optimizer has none")
    for group in groups:
        group["weight_decay"] = new


def _clip(run: Course, several: Sequence[Any], old: Any, new: Any) -> None:
    run.clip = float(new) if new else None
    run.facts["max_grad_norm"] = run.clip or 0.0


def _warmup(run: Course, several: Sequence[Any], old: Any, new: Any) -> None:
    """Linearly up to where the old schedule stands then, which goes on from there."""
    before, updates = run.schedule, int(new)

    def longer(step: int, total: int) -> float:
        return before(max(step, updates), total) * min(1.0, (step + 1) / updates)

    run.schedule = longer
    run.facts["warmup_steps"] = updates


def _schedule(run: Course, several: Sequence[Any], old: Any, new: Any) -> None:
    if new not in makers.SCHEDULES:
        raise NotApplicable(f"schedule = {new}")
    run.schedule, run.facts["schedule"] = makers.SCHEDULES[str(new)], str(new)


def _accumulation(run: Course, several: Sequence[Any], old: Any, new: Any) -> None:
    if run.task.backward is not None:
        raise NotApplicable("accumulation_steps of a task with a backward pass of its own")
    run.accumulate, run.divide = int(new), True
    run.facts["accumulation_steps"] = run.accumulate


def _compute(run: Course, several: Sequence[Any], old: Any, new: Any) -> None:
    if new not in ("float32", "bfloat16"):
        raise NotApplicable(f"compute_dtype = {new}")
    run.autocast, run.scaler = torch.bfloat16 if new == "bfloat16" else None, None


TURNS: Mapping[str, Turn] = {
    "lr": _rate,
    "peak_lr": _rate,
    "eps": _setting("eps", ("eps", None)),
    "beta1": _setting("beta1", ("betas", 0)),
    "beta2": _setting("beta2", ("betas", 1), ("alpha", None)),
    "momentum": _setting("momentum", ("momentum", None)),
    "weight_decay": _decay,
    "max_grad_norm": _clip,
    "warmup_steps": _warmup,
    "schedule": _schedule,
    "accumulation_steps": _accumulation,
    "compute_dtype": _compute,
}
"""{knob: how it is turned}; besides these there are `OF_SETUP` and the rates of tensors."""


def _switch_on(run: Course, name: str) -> None:
    """At every optimizer, as `optdoctor.watch(treat=[..])` does; in a second process once more."""
    if name not in interventions():
        raise NotApplicable(f"intervention {name}, of which there is no file")
    made = [_applied(run, name, optimizer) for optimizer in run.optimizers]
    before = run.on_resume

    def again(run: Course, step: int) -> None:
        before(run, step)
        for i, optimizer in enumerate(run.optimizers):
            state = made[i].state_dict()
            made[i].undo()
            made[i] = _applied(run, name, optimizer)
            made[i].load_state_dict(state)

    run.on_resume = again
    run.notes["interventions"] = [*run.notes.get("interventions", []), made]


def _applied(run: Course, name: str, optimizer: Any) -> Intervention:
    try:
        made = interventions()[name]()
    except (TypeError, ValueError) as error:
        raise NotApplicable(f"intervention {name} without arguments: {error}") from error
    return made.apply(optimizer, run.model, facts=run.facts)


def _observe(run: Course, **values: float) -> None:
    """What the loop would log goes to those interventions that ask for it."""
    for one in (one for made in run.notes.get("interventions", ()) for one in made):
        if hasattr(one, "observe"):
            one.observe(values)
