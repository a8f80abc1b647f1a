"""What is said of a loss that rises: the sentence, and the evidence of each channel beside it."""

import numpy as np

from optdoctor.curves import meanwhile
from optdoctor.curves.gradient_norm import gradient_norm
from optdoctor.curves.rates import RATE_ROSE
from optdoctor.curves.rise import (
    ABRUPT,
    BY_CHANCE,
    CLEAR,
    DIVERGED,
    DOUBLED,
    EXPLODED,
    FAR,
    FAST,
    JUMPED,
    LEFT,
    RELAPSED,
    Bounds,
    Rise,
)
from optdoctor.findings import Evidence, Finding, Severity
from optdoctor.knowledge.rise_case import (
    BETTER,
    CLEARLY_FELL,
    CLEARLY_ROSE,
    COLLAPSED,
    GREW,
    Case,
)
from optdoctor.knowledge.rise_remedies import NORM_MOVED, treatments

WORDS = {"divergence": "Divergence", "upward-drift": "Drift"}
"""{rule: the word that begins its sentence}."""
NOISY = 2.5
"""Deviations of a row within which a median of three of them may lie by chance."""


def finding(about: Case, rule: str, severity: Severity, lost: float) -> Finding:
    """The finding of a rule; `lost` is the share of the progress beyond which it is told."""
    return Finding(
        severity=severity,
        summary=f"{WORDS[rule]}: {_story(about)}.",
        steps=(about.rise.onset, int(about.line.steps[-1])),
        evidence=(  # what can be read off the log comes first: a terminal cuts the tail
            *_height(about),
            *_occasion(about),
            *_beside(about),
            *_certainty(about.rise, about.bounds),
            *_lost(about, lost),
            *_jump(about),
        ),
        treatments=treatments(about, severity, rule),
    )


def _story(about: Case) -> str:
    """From which level to which, since which step, for how long."""
    rise, line = about.rise, about.line
    first, last = rise.onset, int(line.steps[-1])
    low = f"a level of {rise.low:.4g}"
    if rise.way == "first":
        low = f"the {rise.low:.4g} of its first {'two rows' if rise.best else 'row'}"
    if rise.way == "start":
        low = f"its first value, {rise.low:.4g} at step {line.steps[0]},"
    end = _end(about)
    if rise.low > 0:
        end += f" ({meanwhile.times_told(float(end), rise.low)})"
    began = int(about.trace.series["loss"].starts[0])
    lasting, whole = last - first + rise.is_abrupt, max(last - began + 1, 1)
    share = f"{lasting} step{'s' * (lasting != 1)}"
    share += _finite_end(about) or f", {100 * lasting / whole:.0f} % of the run"
    where = f"at step {first}" if about.joint is None else f"at the resume at step {about.joint}"
    if rise.learns:
        low = low.rstrip(",")
        return f"the training loss rises from {low}, peaks at {rise.top:.4g} and falls to {end}"
    if rise.kept < about.bounds.kept:
        moved = f"leaves {low} {where if rise.is_abrupt else f'after step {first}'}, peaks"
        return f"the training loss {moved} at {rise.top:.4g} and ends at {end} after {share}"
    if rise.is_abrupt:
        return f"the training loss jumps from {low} {_after_jump(about, end, where, share)}"
    since = "" if rise.way in ("start", "first") else f" at step {first}"
    return f"the training loss rises from {low}{since} to {end} at step {last}, over {share}"


def _finite_end(about: Case) -> str:
    """Where the finite losses end, if before the run does: a share of it would not count those."""
    series, last = about.trace.series["loss"], int(about.line.steps[-1])
    left = int(series.bad[series.steps > last].sum())
    if not left:
        return ""
    losses = "1 loss since is" if left == 1 else f"{left:,} losses since are"
    return f", to step {last}; the {losses} NaN or infinite"


def _end(about: Case) -> str:
    """The level at the end; that of the last row, where the loss climbs on."""
    rise, line = about.rise, about.line
    climbs = rise.still and line.losses[-1] == line.losses.max()
    return f"{float(line.losses[-1]) if climbs else rise.end:.4g}"


def _after_jump(about: Case, end: str, where: str, share: str) -> str:
    """To which level it jumps, and what the loss does from there on."""
    rise, line = about.rise, about.line
    if rise.still:
        return f"to {rise.joined:.4g} {where} and still rises, to {end} after {share}"
    moved = abs(line.level_of(rise.joined) - line.level_of(rise.end))
    if moved > max(RELAPSED, NOISY * line.noise) or about.joint is not None:
        return f"to {rise.joined:.4g} {where} and ends at {end} after {share}"
    return f"to {end} {where} and stays there for {share}"


def _height(about: Case) -> list[Evidence]:
    """How far it rises above its best level, and above its start."""
    rise, bounds = about.rise, about.bounds
    low = {
        "start": "its first value",
        "first": "its first rows",
        "few": "its lowest three rows",
        "gap": "the rows before",
        "end": "the rows before",
    }
    limit = {"start": DOUBLED, "first": DOUBLED, "run": DIVERGED, "end": DOUBLED}.get(rise.way)
    if limit is None and rise.diverges and not (rise.is_abrupt or rise.is_fast):
        limit = FAR
    if limit is None:
        limit = DIVERGED if rise.is_large else JUMPED if rise.is_gross else bounds.height
    what = f"rise above {low.get(rise.way, 'its best level')}, on a log scale"
    told = [Evidence("loss", what, rise.height, limit, "1")]
    if about.ends_above_start:
        word = "" if about.made_progress else "; it never fell clearly below its start"
        what = f"level at the end above that of the start, on a log scale{word}"
        told.append(Evidence("loss", what, rise.over, bounds.height, "1"))
    return told


def _lost(about: Case, lost: float) -> list[Evidence]:
    rise = about.rise
    if about.ends_above_start or rise.lost <= lost:
        return []
    what = "share of the progress made before that is lost again"
    return [Evidence("loss", what, rise.lost, lost, "share")]


def _certainty(rise: Rise, bounds: Bounds) -> list[Evidence]:
    """What noise explains."""
    if rise.way == "run":
        what = "rows in unbroken rise to the end; chance brings one more than the limit once in 720"
        return [Evidence("loss", what, rise.errors, BY_CHANCE, "rows")]
    if rise.way == "gap":
        what = "gap between all rows before and all rows since, in logarithms: 4.6 is 100 times"
        return [Evidence("loss", what, rise.errors, EXPLODED, "1")]
    if rise.way == "end":
        what = "gap between all rows before and the last ones over the noise of a row"
        return [Evidence("loss", what, rise.errors, CLEAR, "1")]
    what = "the rise over its standard error"
    if rise.way in ("few", "first"):
        return [Evidence("loss", f"{what} in so few rows", rise.errors, bounds.few_errors, "1")]
    if rise.errors > bounds.errors or rise.way == "start":
        limit = bounds.errors if rise.kept > LEFT else bounds.large_errors
        return [Evidence("loss", what, rise.errors, limit, "1")]
    slope = "the slope since the best level over its standard error"
    return [
        Evidence("loss", what, rise.errors, bounds.steady_errors, "1"),
        Evidence("loss", slope, rise.slope_errors, bounds.slope_errors, "1"),
    ]


def _jump(about: Case) -> list[Evidence]:
    """Whether the rise is one jump, and whether it stays."""
    rise = about.rise
    first, last = rise.jump_steps
    what = f"share of the rise that comes between step {first} and step {last}"
    word = "one jump" if rise.is_abrupt else "no single jump"
    told = [Evidence("loss", f"{what}: {word}", rise.jump, ABRUPT, "share")]
    if rise.diverges and rise.is_fast and not rise.is_abrupt:
        what += ", less its standard error: fast, but no single jump"
        told = [Evidence("loss", what, rise.speed, FAST, "share")]
    if rise.kept < about.bounds.kept:
        what = f"share of the highest rise, to {rise.top:.4g}, that still stands: it is coming back"
        told.append(Evidence("loss", what, rise.kept, about.bounds.kept, "share"))
    return told


def _occasion(about: Case) -> list[Evidence]:
    """What happened where it jumps."""
    rise, line = about.rise, about.line
    if not rise.is_abrupt:
        return []
    if about.joint is not None:
        what = f"rows between the resume at step {about.joint} and the jump"
        between, block = np.searchsorted(line.steps, (about.joint, about.around[1]))
        rows = abs(int(np.searchsorted(line.steps, rise.onset)) - int(between))
        limit = max(int(block - between), 1)
        return [Evidence("loss", what, rows, limit, "rows"), *_as_new(about)]
    if (step := meanwhile.epoch_end(about.trace, *about.around)) is not None:
        what = "step at which an epoch ends: a change of data there looks the same"
        return [Evidence("epoch", what, step, rise.onset, "step")]
    return []


def _as_new(about: Case) -> list[Evidence]:
    """Whether a resume went on at the level of a new model."""
    rise, line = about.rise, about.line
    first = float(np.median(line.losses[:3]))
    if not about.made_progress or not first > 0 or rise.joined < CLEARLY_FELL * first:
        return []
    what = f"the loss right after the resume over that of the first rows, {first:.4g}: as if no"
    times = round(meanwhile.times(rise.joined, first), 2)
    return [Evidence("loss", f"{what} weights had been loaded", times, CLEARLY_FELL, "times")]


def _beside(about: Case) -> list[Evidence]:
    """What the other channels did since: the differential of a log."""
    trace, first = about.trace, about.rise.onset
    told = []
    if (rate := about.rate) is not None:
        what = f"the rate at the end, {rate.now:.3g}, over that of the best step, {rate.best:.3g}"
        told.append(Evidence("lr", what, rate.times, RATE_ROSE, "times"))
        if rate.above is not None:
            what = "rise above the level at an equal rate before the best step"
            told.append(Evidence("loss", what, rate.above, rate.allowed, "log"))
    if (peak := meanwhile.peak_reached(trace, first)) is not None:
        what = "step at which the warm-up reached the peak rate, just before: it may be too high"
        told.append(Evidence("lr", what, peak, first, "step"))
    if (times := about.gradient) is not None:
        word = "it grew with the loss" if times > GREW else "it hardly grew with the loss"
        what = f"the gradient norm since step {first} over that before: {word}"
        told.append(Evidence(gradient_norm(trace), what, times, GREW, "times"))
    if (times := about.scale) is not None and times <= COLLAPSED:
        what = f"the lowest loss scale since step {first} over that before: gradients overflow"
        told.append(Evidence("loss_scale", what, times, COLLAPSED, "times"))
    if (times := about.evaluation) is not None:
        limit, word = CLEARLY_ROSE, "it rises too" if times > CLEARLY_ROSE else "it hardly moves"
        if times < CLEARLY_FELL:
            limit, word = CLEARLY_FELL, "it falls: the training data or objective became harder"
        what = f"the evaluation loss at the end over that of step {about.before}; {word}"
        told.append(Evidence("eval_loss", what, times, limit, "times"))
    if (better := about.better) is not None:
        what = f"gain of the metric {better[0].removeprefix('metric:')} since step {about.before}"
        what += ": it gets better while the loss rises"
        told.append(Evidence(better[0], what, round(100 * better[1], 2), 100 * BETTER, "%"))
    times = meanwhile.norm_times(trace, about.before)
    if times is not None and abs(times - 1) > NORM_MOVED:
        what = f"the norm of all weights over that of step {about.before}"
        limit = 1 + NORM_MOVED if times > 1 else 1 - NORM_MOVED
        told.append(Evidence("param_rms", what, times, limit, "times"))
    return told
