"""Runs the rules over records, and counts how often they were right."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from course import LAST
from faulting import Fault, faults
from records import Job, Result, damage, recorded
from sparse import as_if_sparse
from tampered import Rows, rebuilt, until

from optdoctor.engine import diagnose, ranked
from optdoctor.findings import SEVERITIES, Diagnosis, Severity
from optdoctor.readers import read
from optdoctor.trace import Trace

HARM = 0.05
"""Damage from which a fault counts as harmful."""
LOGGED = ("loss", "lr", "grad_norm", "eval_loss")
EVERY = 10
"""Updates between two lines of the log that a run is reduced to."""
FACTS = frozenset(
    {
        "optimizer",
        "optimizer_family",
        "beta1",
        "beta2",
        "eps",
        "weight_decay",
        "momentum",
        "param_dtype",
        "state_dtype",
        "math_dtype",
        "compute_dtype",
        "max_grad_norm",
        "accumulation_steps",
        "batch_size",
        "total_steps",
        "warmup_steps",
        "schedule",
        "num_parameters",
        "num_classes",
        "loss_kind",
        "loss_base",
        "peak_lr",
        "scaler",
    }
)
"""What the configuration of a run says of it."""


@dataclass(frozen=True)
class Judged:
    """One run, and what the rules said of it."""

    job: Job
    result: Result
    twin: Result | None
    ranked: tuple[str, ...]
    """Answers, best first."""
    found: tuple[tuple[str, Severity, int], ...]
    """(rule, severity, first step)."""
    sick: bool
    detected: int | None
    """The update at which the run was first called sick."""
    shown: int | None
    """The update at which the loss is visibly worse than the twin's."""
    crashed: tuple[str, ...]
    best: float
    """Least mean of three evaluations in a row."""

    @property
    def fault(self) -> Fault | None:
        return faults()[self.job.fault] if self.job.fault else None

    @property
    def harmed(self) -> bool:
        """Whether the fault was at work and did harm."""
        if self.twin is None or not self.result.probe:
            return False
        return damage(self.result, self.twin) >= HARM

    @property
    def alarms(self) -> tuple[str, ...]:
        return tuple(rule for rule, severity, _ in self.found if severity != Severity.NOTE)

    def named(self, within: int) -> bool:
        """Whether a right answer is among the first so many."""
        fault = self.fault
        return fault is not None and bool({*self.ranked[:within]} & {*fault.rules})


def judged(
    job: Job, *, as_log: bool = False, sparse: bool = False, timed: bool = False
) -> Judged | None:
    """The rules' word on one record; None where there is none, or its training failed."""
    result = recorded(job)
    if result is None or result.error:
        return None
    twin = recorded(job.twin) if job.fault else None
    traces = [as_if_sparse(t) if sparse else t for t in traces_of(job)]
    traces = [as_if_logged(t) if as_log else t for t in traces]
    several = [diagnose(trace) for trace in traces]
    worst = max(range(len(traces)), key=lambda i: _gravity(several[i]))
    trace, diagnosis = traces[worst], several[worst]
    detected = _detected(trace) if timed and _is_sick(diagnosis) else None
    shown = _shown(result, twin) if twin else None
    found = {f.rule: (f.rule, f.severity, f.steps[0]) for f in reversed(diagnosis.findings)}
    return Judged(
        job=job,
        result=result,
        twin=twin,
        ranked=ranked(diagnosis),
        found=tuple(found.values()),
        sick=_is_sick(diagnosis),
        detected=detected,
        shown=shown,
        best=_best(trace),
        crashed=tuple(n for n, o in diagnosis.outcomes.items() if o.status == "crashed"),
    )


def _best(trace: Trace) -> float:
    """Least mean of `LAST` evaluations in a row; infinite where there are fewer."""
    if "eval_loss" not in trace.series:
        return math.inf
    values = np.asarray(trace.series["eval_loss"].values, np.float64)
    if values.size < LAST:
        return math.inf
    return float(
        np.nan_to_num(np.convolve(values, np.ones(LAST) / LAST, "valid"), nan=np.inf).min()
    )


def traces_of(job: Job) -> list[Trace]:
    """One for each optimizer."""
    folder = job.folder / "run"
    parts = [part for part in sorted(folder.iterdir()) if (part / "run.json").is_file()]
    return [read(part) for part in parts or [folder]]


def _gravity(diagnosis: Diagnosis) -> int:
    return -1 if diagnosis.worst is None else SEVERITIES.index(diagnosis.worst)


def _is_sick(diagnosis: Diagnosis) -> bool:
    return any(f.severity != Severity.NOTE for f in diagnosis.findings)


def as_if_logged(trace: Trace) -> Trace:
    """The run as a log would have it: a few curves every so many updates, and the configuration."""
    facts = {name: value for name, value in trace.facts.items() if name in FACTS}
    facts["log_interval"] = EVERY
    shown = {name: trace.series[name] for name in LOGGED if name in trace.series}
    if "grad_norm_used" in trace.series and not facts.get("max_grad_norm"):
        shown.setdefault("grad_norm", trace.series["grad_norm_used"])  # nothing clips it
    reduced = rebuilt(replace(trace, series=shown), _every_few)
    return replace(reduced, facts=facts, tensors=(), events=(), reader="csv-table")


def _every_few(name: str, rows: Rows) -> Rows:
    steps, values = rows
    kept = np.full(len(steps), name == "eval_loss") | (steps % EVERY == 0)
    return steps[kept], values[kept]


def _detected(trace: Trace) -> int:
    """By bisection over the updates: a run that was called sick is taken to stay so."""
    low, high = 0, trace.steps[1]
    while low < high:
        middle = (low + high) // 2
        if _is_sick(diagnose(until(trace, middle))):
            high = middle
        else:
            low = middle + 1
    return low


def _shown(sick: Result, twin: Result) -> int | None:
    """Where the smoothed loss is above the twin's by 4 of its deviations and 5 %, five times on."""
    if not (sick.losses and twin.losses):
        return None
    a, b = _smooth(sick.losses), _smooth(twin.losses)
    length = min(len(a), len(b))
    a, b = a[:length], b[:length]
    noise = np.median(np.abs(np.diff(twin.losses))) / math.sqrt(2) * 1.4826
    worse = ~np.isfinite(a) | (a > b + np.maximum(4 * noise / math.sqrt(10), 0.05 * np.abs(b)))
    runs = np.convolve(worse, np.ones(5), "valid") == 5
    return int(np.flatnonzero(runs)[0]) + 1 if runs.any() else None


def _smooth(losses: Sequence[float], memory: int = 10) -> np.ndarray:
    level, out = losses[0], []
    for loss in losses:
        level += (loss - level) / memory
        out.append(level)
    return np.array(out)
