"""One rise of the training loss, with what is known beside it."""

from dataclasses import dataclass, fields, replace

import numpy as np

from optdoctor.curves import meanwhile
from optdoctor.curves.level import Curve, curve
from optdoctor.curves.masked import unmasked, witness
from optdoctor.curves.rates import RateSince, is_search, rate_since
from optdoctor.curves.rise import Bounds, Rise, gravest
from optdoctor.findings import Abstain
from optdoctor.knowledge.losses import SUM, called
from optdoctor.store import Series
from optdoctor.trace import Trace

BESIDE = (
    "lr",
    "eval_loss",
    "grad_norm",
    "epoch",
    "loss_scale",
    "param_rms",
    "param_dtype",
    "warmup_steps",
    "weight_decay",
    "loss_kind",
    "loss_form",
)
"""Channels that `cases` and what is said of them may read, those of `masked.FILTERED_BY` apart."""

CLEARLY_FELL, CLEARLY_ROSE = 0.95, 1.05
"""Factors on the evaluation loss below which the model became better, whatever training says, and
above which it became worse."""
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

    @property
    def before(self) -> int:
        """The last step of the good level."""
        return self.rise.onset - self.rise.is_abrupt

    @property
    def is_softened(self) -> bool:
        """Whether the model became better meanwhile: the data or the objective became harder."""
        return self.evaluation is not None and self.evaluation < CLEARLY_FELL

    @property
    def is_wasted(self) -> bool:
        """Whether most of the progress is lost for the evaluation too."""
        return self.evaluation is not None and self.evaluation > CLEARLY_ROSE

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
    around = _around(line, rise)
    joints = meanwhile.resumes(trace, *around) if rise.is_abrupt else []
    return Case(
        trace=trace,
        line=line,
        rise=rise,
        bounds=bounds,
        is_whole=is_whole,
        around=around,
        joint=joints[-1] if joints else None,
        rate=rate_since(trace, line, rise.best, rise.height),
        evaluation=meanwhile.evaluation_times(trace, rise.onset - rise.is_abrupt),
    )


def _after(about: Case) -> int | None:
    """The step from which the rest is judged by itself, if it is."""
    if about.rise.learns:
        return int(about.line.block_steps[int(np.argmax(about.line.blocks))])
    return None if about.joint is None else max(about.joint, about.rise.onset)


def _around(line: Curve, rise: Rise) -> tuple[int, int]:
    block = max(int(np.diff(line.block_steps).max(initial=1)), 1)
    return rise.onset - block, rise.onset + block


def _since(series: Series, step: int) -> Series:
    kept = series.steps >= step
    return replace(series, **{f.name: getattr(series, f.name)[kept] for f in fields(series)})
