"""One rise of the training loss, with what is known beside it."""

from dataclasses import dataclass, fields, replace

import numpy as np

from optdoctor.curves import meanwhile
from optdoctor.curves.gradient_norm import READ_FOR_IT
from optdoctor.curves.level import Curve, curve
from optdoctor.curves.masked import unmasked, witness
from optdoctor.curves.rates import RateSince, is_search, rate_since
from optdoctor.curves.rise import EXPLODED, Bounds, Rise, around, gravest
from optdoctor.findings import Abstain
from optdoctor.knowledge.losses import SUM, called
from optdoctor.knowledge.metrics import MOST_GAINED, direction
from optdoctor.store import Series
from optdoctor.trace import Trace

BESIDE = (
    "lr",
    "eval_loss",
    *READ_FOR_IT,
    "epoch",
    "loss_scale",
    "param_rms",
    "param_dtype",
    "warmup_steps",
    "weight_decay",
    "loss_kind",
    "loss_form",
    "metric:*",
    "metric_direction:*",
)
"""Channels that `cases` and what is said of them may read, those of `masked.FILTERED_BY` apart."""

CLEARLY_FELL, CLEARLY_ROSE = 0.95, 1.05
"""Factors on the evaluation loss below which the model became better, whatever training says, and
above which it became worse."""
GREW = 3.0
"""Factor from which the gradient norm grew with the loss."""
COLLAPSED = 0.25
"""Factor on the loss scale at which updates overflowed twice in a row or more often."""
BETTER, SURE = 0.05, 3.0
"""Gain of a metric, as a share, and its standard errors, from which the model became better:
heuristic."""
PROGRESS = 0.04
"""Least fall below the start, in logarithms, that left a checkpoint worth going back to."""


@dataclass(frozen=True, slots=True)
class Case:
    """One rise of the training loss, and what is known beside it."""

    trace: Trace
    line: Curve
    rise: Rise
    bounds: Bounds
    is_whole: bool
    """Whether the curve is all that the log holds, and no stretch after a resume."""
    around: tuple[int, int]
    """Steps within a block of its onset: what lies there can have brought it."""
    joint: int | None
    """Step of the resume at which it jumps."""
    rate: RateSince | None
    evaluation: float | None
    """Factor of the evaluation loss since."""
    gradient: float | None
    """Factor of the gradient norm since."""
    scale: float | None
    """Factor of the lowest loss scale since."""
    better: tuple[str, float] | None
    """The channel of the metric that got better since by most, and its gain as a share."""

    @property
    def before(self) -> int:
        """The last step of the good level."""
        return self.rise.onset - self.rise.is_abrupt

    @property
    def is_softened(self) -> bool:
        """Whether the model became better meanwhile: the data or the objective became harder."""
        if self.evaluation is not None and self.evaluation < CLEARLY_FELL:
            return True
        return self.better is not None and not self.is_wasted

    @property
    def is_wasted(self) -> bool:
        """Whether most of the progress is lost for the evaluation too."""
        return self.evaluation is not None and self.evaluation > CLEARLY_ROSE

    @property
    def is_damaged(self) -> bool:
        """Whether more than its height says that the rise is the model's: it comes as one jump or
        ends a hundred times above the start, the evaluation is worse, gradients grew or overflow.

        What creeps without any of these may be a target that moves, as in a game.
        """
        grew = self.gradient is not None and self.gradient > GREW
        overflows = self.scale is not None and self.scale <= COLLAPSED
        leaps = self.rise.is_abrupt or self.rise.over > EXPLODED
        return leaps or self.is_wasted or grew or overflows

    @property
    def ends_above_start(self) -> bool:
        """Whether it ends above the start of the run, as far as the log knows that."""
        return self.is_whole and self.rise.over > self.bounds.height

    @property
    def made_progress(self) -> bool:
        """Whether the loss fell clearly below its start before it rose."""
        return self.rise.fell > PROGRESS


def cases(trace: Trace, bounds: Bounds) -> list[Case] | Abstain:
    """The gravest rise of the training loss; where that is a jump at a resume, or one from a low
    start to a peak that is left again, also the gravest one of the stretch after it. None is a
    divergence to one rule and a drift to another.
    """
    kind = str(trace.facts.get("loss_kind") or "falling")
    if kind != "falling":
        return Abstain(f"{called(kind)} may rise in a good run")
    if trace.facts.get("loss_form") == SUM:
        return Abstain("the log shows sums of losses, over stretches that may differ")
    series = unmasked(trace.series["loss"], witness(trace))
    line = curve(series)
    if line is None:
        return Abstain("too few finite losses for a curve")
    if line.losses.min() < 0:
        return Abstain("losses below 0: whether a rise is good or bad is not known")
    found: list[Case] = []
    while line is not None and (rise := gravest(line, bounds)) is not None:
        if is_search(trace, line):
            return Abstain(
                "the rate grows by a constant factor, a search for one: the loss has to rise"
            )
        found.append(_case(trace, line, rise, bounds, is_whole=not found))
        after = _after(found[-1])
        line = None if after is None else curve(_since(series, after))
    return found


def _case(trace: Trace, line: Curve, rise: Rise, bounds: Bounds, *, is_whole: bool) -> Case:
    near = around(line, rise)
    joints = meanwhile.resumes(trace, *near) if rise.is_abrupt else []
    return Case(
        trace=trace,
        line=line,
        rise=rise,
        bounds=bounds,
        is_whole=is_whole,
        around=near,
        joint=joints[-1] if joints else None,
        rate=rate_since(trace, line, rise.best, rise.height),
        evaluation=meanwhile.evaluation_times(trace, rise.onset - rise.is_abrupt),
        gradient=meanwhile.gradient_times(trace, rise.onset),
        scale=meanwhile.scale_times(trace, rise.onset),
        better=_better(trace, rise.onset - rise.is_abrupt),
    )


def _better(trace: Trace, before: int) -> tuple[str, float] | None:
    found = []
    for channel, series in trace.series.items():
        if not channel.startswith("metric:"):
            continue
        name = channel.removeprefix("metric:")
        sign = direction(name, trace.facts.get(f"metric_direction:{name}"))
        gained = meanwhile.gain(series, sign, before) if sign else None
        if gained is not None and gained[0] > BETTER and gained[1] > SURE:
            found.append((channel, min(gained[0], MOST_GAINED)))
    return max(found, key=lambda one: one[1], default=None)


def _after(about: Case) -> int | None:
    """The step from which the rest is judged by itself, if it is."""
    if about.rise.learns:
        return int(about.line.block_steps[int(np.argmax(about.line.blocks))])
    return None if about.joint is None else max(about.joint, about.rise.onset)


def _since(series: Series, step: int) -> Series:
    kept = series.steps >= step
    return replace(series, **{f.name: getattr(series, f.name)[kept] for f in fields(series)})
