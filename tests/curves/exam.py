"""Sits the exam: which rules speak, and what the baseline says, on healthy and sick runs."""

import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from curves.baseline import margins
from curves.faults import FAULTS, level
from curves.recorded import recorded
from curves.runs import Floats, Run
from curves.views import ALL_VIEWS, CHANNELS, SHORT_VIEWS, VIEWS, trace_of
from optdoctor.engine import diagnose
from optdoctor.findings import Severity, Status
from optdoctor.trace import Trace

HEALTHY, MADE_UP = "healthy", "made up"
OFTEN_LOGGED = (
    (0.5, CHANNELS),
    (0.2, CHANNELS - {"grad_norm"}),
    (0.15, CHANNELS - {"eval_loss", "lr"}),
    (0.15, frozenset({"epoch"})),
)
"""Shares of logs, and what they hold beside the loss."""
NEEDED = {
    "overfitting": {"eval_loss"},
    "spike of evaluation": {"eval_loss"},
    "gradient outlier": {"grad_norm"},
    "x1.5 over 5": {"grad_norm"},
    "gradients not finite": {"grad_norm"},
    "scale to nothing": {"loss_scale", "step_skipped"},
    "stop with the rate": {"lr"},
}
"""Channels without which a log could not show a fault of that kind."""
UNSUITED = frozenset({"epoch running mean", "other averaging", "hinge", "margins, Pegasos"})
"""Families into which no fault is put: what a log makes of it there is not what `faults` makes, or
a batch of the healthy run weighs as much as the fault."""


PROMISED = ("x1.5 over 5", "gradient outlier")
"""Faults to be found on every run that is like a pretraining or a fine-tuning."""
PRETRAINING = frozenset(
    {
        "power law",
        "cosine",
        "warm-up, stable, decay",
        "two phases",
        "inverse square root",
        "batch-size ramp",
        "two exponentials",
        "late drop",
        "long warm-up",
        "lengths of documents",
        "overshoot",
        "longer sequences",
        "two late decays",
        "early tail",
        "restarted polynomial",
        "walking noise",
        "better data",
    }
)
FINE_TUNING = frozenset(
    {"fine-tune", "epoch staircase", "smoothed labels", "gradual unfreezing", "lengths in order"}
)


def likeness(family: str, group: str) -> str:
    """What a run is like: "pretraining", "fine-tuning", or something else."""
    if group != MADE_UP:
        return group
    if family in PRETRAINING:
        return "pretraining"
    return "fine-tuning" if family in FINE_TUNING else "other"


@dataclass(frozen=True)
class Task:
    """One healthy run, or one recorded run, and the faults to put into it."""

    held: bool
    family: str
    n: int
    """Steps; for recorded runs the place in the file."""
    seed: int
    is_recorded: bool = False
    faults: tuple[str, ...] = ()
    views: tuple[str, ...] = tuple(ALL_VIEWS)
    sick_views: tuple[str, ...] = (*VIEWS, "8 rows", "12 rows", "30 rows")


@dataclass(frozen=True)
class Result:
    """What was said of one view of one run."""

    family: str
    group: str
    """"made up", or what the recorded run is like."""
    n: int
    seed: int
    view: str
    truth: str
    """The rule that should speak; "healthy" where none should."""
    kind: str
    dose: float
    is_visible: bool
    """Whether this log differs at all from that of the run without the fault."""
    found: Mapping[str, str]
    """{rule: its gravest severity}."""
    alarm: str
    """What the first warning on a healthy run says."""
    margins: Mapping[str, float]
    """Of the baseline."""
    crashed: tuple[str, ...] = ()
    noise: float = 0.0
    """Spread of one row of the healthy run, on the scale of doses."""

    @property
    def alarms(self) -> tuple[str, ...]:
        """Rules that warn or worse."""
        return tuple(rule for rule, severity in self.found.items() if severity != Severity.NOTE)

    @property
    def curve(self) -> tuple[str, int, int]:
        """Which run it is."""
        return self.family, self.n, self.seed


def families(held: bool) -> Mapping[str, object]:
    """{name: made-up family}. The ones held apart are only loaded when asked for."""
    if not held:
        from curves.families import FAMILIES
        from curves.opened import OPENED

        return {**FAMILIES, **OPENED}
    from curves.held import GENERATED

    return GENERATED


def tasks(
    held: bool,
    lengths: Collection[int],
    seeds: int,
    first: int = 0,
    views: tuple[str, ...] = tuple(VIEWS),
    short_views: tuple[str, ...] = tuple(SHORT_VIEWS),
) -> Iterator[Task]:
    """Every run of the exam: each family at each length with each seed, and the recorded ones.

    Faults go into the first seed. Short and rounded logs are looked at on the second length.

    Args:
        first: the first seed; recorded runs come with 0 alone.
    """
    every_fault, second = tuple(FAULTS), sorted(lengths)[:2][-1]
    some_short = tuple(view for view in ("12 rows", "30 rows") if view in short_views)
    for name in families(held):
        for n in lengths:
            healthy = (*views, *short_views) if n == second else views
            sick = (*views, *some_short) if n == second else views if n < second else views[:1]
            for seed in range(first, first + seeds):
                if name in UNSUITED:
                    yield Task(held, name, n, seed, views=healthy)
                elif seed == first:
                    yield Task(held, name, n, seed, False, every_fault, healthy, sick)
                else:
                    is_likely = likeness(name, MADE_UP) != "other"
                    chosen = PROMISED if is_likely else ()
                    yield Task(held, name, n, seed, False, chosen, healthy, ("raw",))
    if first:
        return
    seen: Counter[str] = Counter()
    for place, record in enumerate(records(held)):
        seen[record.family] += 1
        about = (held, record.family, place, record.seed, True)
        is_suited = record.healthy and record.family not in UNSUITED
        if seen[record.family] == 1:
            chosen = every_fault if is_suited else ()
            yield Task(*about, chosen, (*views, *short_views), views)
        else:
            yield Task(*about, PROMISED if is_suited else (), views, ("raw",))


@cache
def records(held: bool) -> tuple:  # type: ignore[type-arg]
    """The recorded runs; none where they have not been recorded yet."""
    try:
        return recorded(held=held)
    except FileNotFoundError:
        return ()


def sit(task: Task, judge: Callable[[Trace, tuple], Any] | None = None) -> list[Any]:  # type: ignore[type-arg]
    """The results of a healthy run and of the faults put into it, or of a recorded sick run.

    Args:
        judge: (trace, what it is) -> result, in place of what our rules and the baseline say.
    """
    judge = judge or _judged
    rng = np.random.default_rng([zlib.crc32(task.family.encode()), task.n, task.seed])
    if task.is_recorded:
        record = records(task.held)[task.n]
        run, truth, group = as_run(record), record.truth, record.group
    else:
        run, truth, group = families(task.held)[task.family](task.n, rng), HEALTHY, MADE_UP  # type: ignore[operator]
    shares, patterns = zip(*OFTEN_LOGGED, strict=True)
    logged = patterns[int(rng.choice(len(shares), p=shares))] | run.telling
    if truth != HEALTHY:
        logged = CHANNELS
    results = []
    for view in task.views:
        trace = trace_of(run, view, logged)
        kind = truth if truth == HEALTHY else f"recorded {truth}"
        about = (task.family, group, task.n, task.seed, view, truth, kind, 0.0, True)
        results.append(judge(trace, about))
    for kind in task.faults:
        sick = FAULTS[kind](run, rng)
        if sick is None:
            continue
        shown = logged | NEEDED.get(kind, set())
        for view in task.sick_views:
            trace = trace_of(sick.run, view, shown)
            is_visible = _differ(trace, trace_of(sick.without, view, shown))
            about = (
                task.family, group, task.n, task.seed, view, sick.truth, kind, sick.dose, is_visible
            )  # fmt: skip
            results.append(judge(trace, about))
    noise = noise_of(run)
    return [replace(r, noise=noise) if isinstance(r, Result) else r for r in results]


def noise_of(run: Run) -> float:
    """Spread of one row on the scale of doses, from differences of neighbours."""
    steps = np.diff(level(run, run.loss)[np.isfinite(run.loss)])
    if not steps.size:
        return 0.0
    return float(1.4826 * np.median(np.abs(steps - np.median(steps))) / np.sqrt(2))


def as_run(record) -> Run:  # type: ignore[no-untyped-def]
    """A recorded curve as a run; its clean loss is a running median."""
    return Run(
        loss=record.loss,
        clean=running_median(record.loss, max(len(record.loss) // 20, 5)),
        lr=record.lr,
        grad_norm=record.grad_norm,
        eval_steps=record.eval_steps.astype(np.int64) + 1,
        eval_loss=record.eval_loss,
        facts={"loss_kind": "falling"},
    )


def running_median(values: Floats, half_width: int) -> Floats:
    """[n]: over +-`half_width` rows, edges repeated."""
    padded = np.pad(values, half_width, mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * half_width + 1)
    return np.asarray(np.median(windows, axis=1), np.float64)


def _judged(trace: Trace, about: tuple) -> Result:  # type: ignore[type-arg]
    diagnosis = diagnose(trace)
    found: dict[str, str] = {}
    for finding in diagnosis.findings:  # gravest first
        found.setdefault(finding.rule, str(finding.severity))
    warnings = [f.summary for f in diagnosis.findings if f.severity != Severity.NOTE]
    crashed = tuple(
        f"{name}: {outcome.reason[-400:]}"
        for name, outcome in diagnosis.outcomes.items()
        if outcome.status is Status.CRASHED
    )
    alarm = warnings[0] if warnings else ""
    return Result(*about, found, alarm, margins(trace), crashed)


def _differ(trace: Trace, other: Trace) -> bool:
    return trace.series.keys() != other.series.keys() or any(
        not np.array_equal(series.values, other.series[name].values, equal_nan=True)
        for name, series in trace.series.items()
    )
