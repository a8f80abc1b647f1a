"""What the kinds and forms of a loss promise of its curve."""

from dataclasses import replace

from optdoctor.knowledge.curve_words import REWARD_NAMES
from optdoctor.trace import Trace

NEVER_FALLING = frozenset({"reward", "adversarial", "diffusion"})
"""Values of the fact `loss_kind` of losses that need not fall in a good run."""
NOT_FALLING = NEVER_FALLING | {"unknown"}
"""The same and those of which nobody knows: a curve without findings proves nothing."""
RUNNING_MEAN = "running mean"
"""Value of the fact `loss_form` of a mean since the epoch or the run began: it starts anew in a
saw-tooth, lags behind, and one NaN stays in it."""
SUM = "sum"
"""The same of sums, over stretches whose length a log does not tell."""
RESCALED = frozenset({SUM, "divided"})
"""Values of `loss_form` of losses that stand at another level than a batch's mean."""


def with_its_kind(trace: Trace) -> Trace:
    """The trace, told that the loss is one of rewards where it holds some and nobody says more."""
    names = (n.removeprefix("metric:") for n in trace.series if n.startswith("metric:"))
    lasts = {name.lower().rpartition("/")[2] for name in names}
    if "loss_kind" in trace.facts or REWARD_NAMES.isdisjoint(lasts):
        return trace
    return replace(trace, facts={**trace.facts, "loss_kind": "reward"})


def called(kind: str) -> str:
    """`an adversarial loss`, for a sentence."""
    return f"{'an' if kind[:1] in 'aeiou' else 'a'} {kind} loss"
