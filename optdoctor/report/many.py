"""Many runs as one table, worst first."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from optdoctor import __version__
from optdoctor.findings import SEVERITIES, Diagnosis, Severity, Verdict
from optdoctor.report import slots
from optdoctor.report.curve import LOG_RATIO, loss_of
from optdoctor.report.own_steps import as_logged
from optdoctor.report.wording import (
    beginning,
    columns,
    counted,
    fixed,
    is_home,
    middle,
    origin_name,
    path_parts,
    plain,
    prose,
    short_name,
    shorten,
)
from optdoctor.store import Series
from optdoctor.trace import Trace

BLOCKS = "▁▂▃▄▅▆▇█"
MARKS = {Severity.CRITICAL: "▲", Severity.WARN: "△", Severity.NOTE: "·"}
ASCII = str.maketrans(
    {"▲": "!", "△": "?", "·": "-", "×": "x", "│": "|", "–": "-", "−": "-", "’": "'"}
    | dict(zip(BLOCKS, "_.-~=+*#", strict=True))
)
"""Replaces every character of a report that is no ASCII; braille is replaced where it is drawn."""

_SHARED = 1000  # largest over smallest loss up to which runs share a scale
_PARTS = 12  # medians of a run's curve
_NAME = 18  # columns that a run's name has at least: trainer_state.json


def render_many(
    runs: Sequence[tuple[Diagnosis, Trace]], *, width: int = 80, ascii: bool = False
) -> str:
    """One line per run."""
    ordered = sorted((as_logged(*run) for run in runs), key=badness)
    medians = [_medians(trace) for _, trace in ordered]
    low, high = _bounds(np.concatenate(medians) if medians else np.empty(0))
    shared = low > 0 and high / low <= _SHARED
    log = shared and high / low > LOG_RATIO
    scale = f"loss {fixed(low, 2)}-{fixed(high, 2)}" if shared else "loss"
    bars = max(_PARTS, len(scale))
    told = [row_of(diagnosis, trace) for diagnosis, trace in ordered]
    right = max((columns(f) + columns(since) + 2 for _, _, f, since in told if since), default=0)
    room = width - 2 - 2 - bars - 1 - 6 - 2 - 8 - 2 - right
    names = _fitting(run_names(ordered), max(room, _NAME))
    wide = max((columns(name) for name in names), default=3)
    header = f"  {'run':<{wide}}  {scale:<{bars}} {'end':>6}  {'severity':<8}  finding"
    header += "since".rjust(width - columns(header)) if right else ""
    lines = [
        shorten(
            f"optdoctor {__version__}   {_folder(ordered)}{counted(len(runs), 'run')}, worst first",
            width,
        ),
        "",
        *([verdict_counts(ordered, names)] if ordered else []),
        "",
        header,
    ]
    for (_, trace), name, parts, row in zip(ordered, names, medians, told, strict=True):
        mark, severity, finding, since = row
        pad = " " * (wide - columns(name))
        bounds = (low, high) if shared else _bounds(parts)
        head = f"{mark} {name}{pad}  {_bars(parts, *bounds, log):<{bars}} {loss_at_end(trace):>6}  "
        # The reason of an unknown run needs the room of a severity.
        text = head if mark == "?" else f"{head}{severity:<8}  "
        shown = beginning(finding, max(width - columns(text) - columns(since) - 1, 0))
        gap = " " * (width - columns(text) - columns(shown) - columns(since)) if since else ""
        lines.append(f"{text}{shown}{gap}{since}".rstrip())
    kind = f"one{' log' if log else ''} scale" if shared else "each row its own scale"
    lines += [
        "",
        f"loss: median of each twelfth of the run, {kind}; × not finite",
        "end: median of the last 15 rows",
        "",
        "optdoctor analyze PATH      for one run in full",
    ]
    text = "\n".join(lines)
    return text.translate(ASCII).encode("ascii", "replace").decode() if ascii else text


def badness(run: tuple[Diagnosis, Trace]) -> tuple[int, int, int, str]:
    """Sort key: severity, then first step; unknown runs above healthy ones."""
    diagnosis, trace = run
    worst = diagnosis.worst
    rank = -1 - SEVERITIES.index(worst) if worst is not None else 0
    steps = diagnosis.findings[0].steps[0] if diagnosis.findings else 0
    return rank, int(diagnosis.verdict is not Verdict.UNKNOWN), steps, trace.origin


def worst_first(
    runs: Sequence[tuple[Diagnosis, Trace]],
) -> tuple[list[tuple[Diagnosis, Trace]], list[str]]:
    """The runs and their names; a single one that is watched has none."""
    ordered = sorted((as_logged(*run) for run in runs), key=badness)
    if len(ordered) == 1:
        trace = ordered[0][1]
        is_live = trace.origin == "live" and not trace.reader
        return ordered, ["" if is_live else origin_name(trace.origin)]
    return ordered, run_names(ordered)


def run_names(runs: Sequence[tuple[Diagnosis, Trace]]) -> list[str]:
    """The runs' names, with their folders where two would be equal."""
    names = [origin_name(trace.origin) for _, trace in runs]
    return [
        origin_name(trace.origin, with_folder=names.count(name) > 1)
        for name, (_, trace) in zip(names, runs, strict=True)
    ]


def _fitting(names: list[str], width: int) -> list[str]:
    """The names in at most `width` columns, as far apart as they were."""
    short = [short_name(name, width) for name in names]
    apart = len(set(short)) == len(set(names))
    return short if apart else [shorten(name, width) for name in names]


def _folder(runs: Sequence[tuple[Diagnosis, Trace]]) -> str:
    """`runs/   ` if all runs come from one folder, else nothing."""
    parents = {path_parts(trace.origin)[:-1] for _, trace in runs}
    parent = next(iter(parents)) if len(parents) == 1 else ()
    return f"{plain(parent[-1])}/   " if parent and not is_home(parent) else ""


def verdict_counts(runs: Sequence[tuple[Diagnosis, Trace]], names: Sequence[str]) -> str:
    """`2 of 12 runs are sick, 9 healthy, 1 unknown. Worst: run-3.`"""
    counts = {
        verdict: sum(diagnosis.verdict is verdict for diagnosis, _ in runs) for verdict in Verdict
    }
    sick = counts[Verdict.SICK]
    head = f"{sick} of {counted(len(runs), 'run')} {'is' if sick == 1 else 'are'} sick"
    tail = f", {counts[Verdict.HEALTHY]} healthy, {counts[Verdict.UNKNOWN]} unknown."
    return head + tail + (f" Worst: {names[0]}." if sick else "")


def row_of(diagnosis: Diagnosis, trace: Trace) -> tuple[str, str, str, str]:
    """(mark, severity, finding, since)."""
    if diagnosis.worst is None:
        unknown = diagnosis.verdict is Verdict.UNKNOWN
        reason = f"unknown: {prose(diagnosis.reason or '')}" if unknown else "healthy"
        return "?" if unknown else " ", "", reason, ""
    first = slots.ordered(diagnosis)[0]
    unit = slots.unit(trace)
    word = "" if unit == "step" else f"{unit} "
    since = f"{word}{first.steps[0]}" if first.steps[0] else "start"
    return MARKS[diagnosis.worst], str(diagnosis.worst), plain(first.rule), since


def _medians(trace: Trace) -> NDArray[np.float64]:
    """[12]: the median loss of each twelfth; NaN where half of its rows are not finite."""
    series = loss_of(trace)
    if series is None or not series.steps.size:
        return np.empty(0)
    parts = np.array_split(np.arange(series.steps.size), min(_PARTS, series.steps.size))
    return np.array([_median(series, part) for part in parts])


def _median(series: Series, rows: NDArray[np.int64]) -> float:
    values = np.asarray(series.values[rows], np.float64)
    finite = values[np.isfinite(values)]
    return middle(finite) if finite.size * 2 > values.size else float("nan")


def _bounds(values: NDArray[np.float64]) -> tuple[float, float]:
    finite = values[np.isfinite(values)]
    return (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)


def _bars(parts: NDArray[np.float64], low: float, high: float, log: bool) -> str:
    def height(value: float) -> int:
        if high == low:
            return 0
        # Halves keep the difference of the two largest floats finite.
        share = (value / 2 - low / 2) / (high / 2 - low / 2)
        if log:
            share = float(np.log(value / low) / np.log(high / low))
        return min(int(share * len(BLOCKS)), len(BLOCKS) - 1)

    return "".join(BLOCKS[height(float(v))] if np.isfinite(v) else "×" for v in parts)


def loss_at_end(trace: Trace) -> str:
    """The median loss of the last 15 rows."""
    series = loss_of(trace)
    if series is None or not series.steps.size:
        return "–"
    return fixed(_median(series, np.arange(series.steps.size)[-15:]))
