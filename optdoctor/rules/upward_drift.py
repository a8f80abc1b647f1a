"""The training loss creeps up from its best level and stays there.

## What it finds
A training loss that ends more than 4 % above its best level (0.04 in the logarithm of the loss plus
5 % of the first losses), and by more than its own noise allows. The run is cut into 40 blocks of
equal length, and the level of a block is its median. A smaller rise is enough where its slope is
steady; fewer than 30 rows need a larger one. In fewer than 20 only a rise
above 0.3 is seen: as three rows at the end that all lie above the lowest three in a row before, or
as six rows or more in unbroken rise to the end. More than 0.35 of the highest rise must still be
left at the end, unless it is above 0.3 and ten standard errors, and more than a trifle of the
progress must be lost. The evidence says how much, where the largest jump lies, and what the rate,
the gradient norm, the evaluation loss and the norm of the weights did meanwhile.
It is critical where a rise above 0.3 of ten standard errors, or in so few rows, still stands; where
the whole progress is lost by a rise above 0.3 or of ten standard errors, or most of it while the
evaluation loss rises too; and only where more than its height speaks of damage: one jump, a
gradient norm that trebles, a loss scale that collapses, an evaluation loss that rises, or an end a
hundred times above the start. Else it is a warning, since the curve alone cannot tell a damaged
model from harder data or a target that moves, and so is a rise that the rate may explain.
## Why it matters
The updates since the best step made the model worse, or the data or the objective have changed.
Each further step at this setting costs compute and buys nothing.
## What to do
First tell the causes apart: evaluate an early checkpoint on today's batches. If that one is worse
today too, the data changed. Now: go back to the checkpoint before the rise, or lower the rate from
the next step on. Next: a lower peak rate.
Writing decayed weights back to half precision is not proposed: it changes nothing. Weight decay is
named only where there is one and the weights themselves grew or shrank.
## When it is fine
A rate that rises again, as in a warm restart or a cycle: the loss is compared with its level at an
equal rate before. A rate that still warms up, by plan or in a straight line: the rule waits, unless
the rise is above 0.3. A search for a rate, which grows by a constant factor over four decades or
more, is not judged. A loss near zero: the rise is measured against the progress made. Harder data
or a harder objective on purpose, and a target that moves, as in a game or with a target network:
where the evaluation loss clearly falls or a metric clearly gets better meanwhile, the finding is a
note, and `facts={"loss_kind": "unknown"}` says that the rise is meant. So is a small jump at a
resume, after which the stretch that follows is judged by itself. Losses below 0, rewards,
adversarial losses and diffusion are not judged: nobody knows whether a rise is bad.
## Told apart from
`divergence`: it is above 0.3 and comes in a fifth of the run or less, or above 0.15 in one jump, or
above 1, nearly three times, however slowly; a loss has the one or the other.
`bimodal-gap`: the evaluation loss rises alone. `loss-spike`: it comes back to a third or less.
"""

from dataclasses import dataclass

import numpy as np

from optdoctor import rule
from optdoctor.curves.masked import FILTERED_BY
from optdoctor.curves.rise import Bounds, is_certain
from optdoctor.findings import Abstain, Finding, Severity
from optdoctor.knowledge.rise_case import BESIDE, cases
from optdoctor.knowledge.rises import finding
from optdoctor.synthetic import falling_loss, make_trace
from optdoctor.trace import Trace


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 8
    """Rows: from 20 on blocks of them are judged, and below, few single rows."""
    rise: float = 0.04
    """Largest rise above the best level, in logarithms, that passes."""
    errors: float = 4.5
    """Largest rise in standard errors of a block's level that passes as noise. With these limits 5
    of 3840 healthy curves of 42 made-up families alarm, in eight ways to log them."""
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
            height=self.rise,
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
    told = []
    for about in found:
        large = is_certain(about.rise, about.bounds) and about.rise.kept >= limits.kept
        excused = about.rate is not None and about.rate.excuses
        if about.rise.diverges or (excused and not large):
            continue
        wasted = about.is_wasted and about.rise.lost > limits.most
        sure = about.rise.is_large or about.rise.errors > limits.large_errors
        all_lost = about.ends_above_start and about.made_progress and sure
        lost = all_lost or wasted or (large and not excused)
        severity = Severity.CRITICAL if lost and about.is_damaged else Severity.WARN
        if about.is_softened or about.joint is not None or about.rise.learns:
            severity = Severity.NOTE
        told.append(finding(about, RULE.name, severity, limits.most if wasted else limits.lost))
    return told


def _sick() -> Trace:
    loss = falling_loss(400)
    loss[200:] *= np.exp(np.linspace(0, 0.25, 200))
    return make_trace(loss=loss)


RULE = rule.Rule(
    name="upward-drift",
    needs=("loss",),
    uses=(*BESIDE, *FILTERED_BY),
    onset="estimated",
    check=check,
    limits=Limits(),
    sick=_sick,
    healthy=lambda: make_trace(loss=falling_loss()),
    doc=__doc__ or "",
)
