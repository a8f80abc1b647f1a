"""The training loss jumps, or rises far, and stays up: at its end the run is worse than it was.

## What it finds
A training loss that ends far above the best level that it had. The run is cut into 40 blocks of
equal length, the level of a block is its median, and heights are differences of the logarithm of
the loss, to which 5 % of the first losses are added so that losses near 0 do not count as far
apart: 0.3 is a loss higher by a third, 1 one nearly three times as high. Told is a rise above 0.3
that came fast: more than 0.35 of it, and more than a standard error, within three blocks, as where
it takes a fifth of the run (of fewer than 40 rows, up to two fifths); one above 1, however slow;
and one above 0.15 of which more than 0.6 came in one such jump. Each has to exceed what the noise
of the blocks allows. A rise of which 0.35 or less is left since its peak is told only above
0.3, from ten standard errors on. A loss that ends far above its very first value, and above the
second one, exploded before any level could be measured, as with a rate far too high. So did the end
of a run whose last rows, three at least, all lie above all rows since its first tenth: twice as
high and by ten times the noise of a row, or a hundred times as high. In 8 to 29 rows it is told
where the last three rows all lie above the lowest three in a row before, or all rows above the
first one or two at twice their level, by more than the noise of so few rows allows; where six rows
or more rise in unbroken order to the end, as far or as fast as above; or, whatever the noise, where
three rows or more, to the end, all lie a hundred times above all rows before.
It is critical where a large rise of ten standard errors still stands, or most of the progress is
lost and the evaluation loss rises too (of few rows, any rise above 0.3 is that certain), or ten
last rows stand up, or fewer ten times as high; a note where the loss began low, rose, and clearly
falls from its peak, as a running mean that starts from 0 does: it learns. It is a warning where it
is less certain, is coming back, where the evaluation loss or a metric gets better meanwhile, or
where the rate that rises again may explain it. So is a rise without a jump beside which nothing
else speaks of damage: no gradient norm that trebles, no loss scale that collapses, no evaluation
loss that rises, no end a hundred times above the start.
## Why it matters
From the jump on each step is spent on a model that is worse than the last good checkpoint, and most
runs that stay up do not come back by themselves.
## What to do
Now: go back to the checkpoint before the rise, with a lower rate. A run that never got below its
start has none: restart it with a tenth of the rate. To tell the causes apart, evaluate an early
checkpoint on today's batches: if that is worse too, the data changed. The evidence says what the
rate, the gradient norm, the loss scale, the evaluation loss and the weights did meanwhile, and
whether an epoch or a warm-up ended there; the last check says what to record next time.
## When it is fine
A search for a rate, which grows by a constant factor over four decades or more: the rise is its
purpose, and the rule does not judge. A small rise that comes with the rate of a warm restart or of
a warm-up. Harder data or a harder objective on purpose, and a target that moves, as in a game or
with a target network: a curve alone does not tell them from damage. A large rise is told all the
same, as a warning where nothing but its height speaks of damage, and where the evaluation loss
falls; `facts={"loss_kind": "unknown"}` says that it is meant. A jump exactly at a resume is judged
as a joint, a note if it is not large, and the stretch after it by itself. Rewards, adversarial
losses and diffusion, and losses below 0, are not judged; up to a hundredth of the rows may lie just
below it, and count as 0.
## Told apart from
`upward-drift`: it creeps, or is smaller; a loss has the one or the other.
`loss-spike`: it comes back, to a third of its height or less and to 0.3 above the best level.
`bimodal-gap`: the evaluation loss rises alone. `nan-pulse`: no finite loss is left.
"""

from dataclasses import dataclass

import numpy as np

from optdoctor import rule
from optdoctor.curves.masked import FILTERED_BY
from optdoctor.curves.rise import Bounds, is_certain
from optdoctor.findings import Abstain, Finding, Severity
from optdoctor.knowledge.rise_case import BESIDE, Case, cases
from optdoctor.knowledge.rises import finding
from optdoctor.synthetic import falling_loss, make_trace
from optdoctor.trace import Trace

LATE_TIMES = 2.3
"""Rise of a few last rows in logarithms, ten times, from which no more of them are waited for."""
LATE_ROWS = 10
"""Last rows from which any rise that stands above all rows before is critical."""


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 8
    """Rows: from 30 on blocks of them are judged, and below, few single rows."""
    errors: float = 4.5
    """Largest rise in standard errors of a block's level that passes as noise."""
    steady_errors: float = 3.5
    """The same for a rise with a steady slope."""
    slope_errors: float = 4.6
    """Largest slope since the best level, in its own standard errors, that is not steady."""
    lost: float = 0.03
    """Largest share of the progress lost that passes: near zero a logarithm exaggerates."""
    kept: float = 0.5
    """Least share of the highest rise that still stands at the end; below, it is coming back, and
    is told only if more than 0.35 is left or it is large."""
    large_errors: float = 10.0
    """Errors that a rise above 0.3 needs to be critical, or to be told while it is coming back."""
    few_errors: float = 6.0
    """Largest rise in standard errors of single rows that passes as noise in fewer than 30 rows."""
    most: float = 0.5
    """Share of the progress lost above which it is critical, if the evaluation loss rises too."""

    @property
    def bounds(self) -> Bounds:
        """Those that say whether a curve rose."""
        return Bounds(
            errors=self.errors,
            steady_errors=self.steady_errors,
            slope_errors=self.slope_errors,
            lost=self.lost,
            kept=self.kept,
            large_errors=self.large_errors,
            few_errors=self.few_errors,
        )


def check(trace: Trace, limits: Limits) -> list[Finding] | Abstain:
    found = cases(trace, limits.bounds)
    if isinstance(found, Abstain):
        return found
    told = [about for about in found if about.rise.diverges and not _is_excused(about)]
    return [finding(about, RULE.name, *_gravity(about, limits)) for about in told]


def _is_excused(about: Case) -> bool:
    """Whether the rate explains the rise; nothing explains a large one."""
    excused = about.rate is not None and about.rate.excuses
    return excused and not is_certain(about.rise, about.bounds)


def _gravity(about: Case, limits: Limits) -> tuple[Severity, float]:
    """How bad it is, and the share of the progress lost that says so."""
    rise = about.rise
    certain = is_certain(rise, about.bounds)
    wasted = about.is_wasted and rise.lost > limits.most
    stands = rise.kept >= limits.kept
    if rise.learns or (about.joint is not None and not certain):
        return Severity.NOTE, limits.lost
    if rise.way == "end" and rise.rows < LATE_ROWS and rise.height < LATE_TIMES:
        return Severity.WARN, limits.lost
    if about.is_softened:
        return Severity.WARN if certain else Severity.NOTE, limits.lost
    if not about.is_damaged:
        return Severity.WARN, limits.lost
    if wasted or (certain and stands and about.ends_above_start):
        return Severity.CRITICAL, limits.most if wasted else limits.lost
    excused = about.rate is not None and about.rate.excuses
    if certain and stands and not excused and about.joint is None:
        return Severity.CRITICAL, limits.lost
    return Severity.WARN, limits.lost


def _sick() -> Trace:
    loss = falling_loss(400)
    loss[200:] *= np.exp(0.8)
    return make_trace(loss=loss)


RULE = rule.Rule(
    name="divergence",
    needs=("loss",),
    uses=(*BESIDE, *FILTERED_BY),
    onset="estimated",
    check=check,
    limits=Limits(),
    sick=_sick,
    healthy=lambda: make_trace(loss=falling_loss()),
    doc=__doc__ or "",
)
