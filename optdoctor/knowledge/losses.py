"""What the kinds and forms of a loss promise of its curve."""

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


def called(kind: str) -> str:
    """`an adversarial loss`, for a sentence."""
    return f"{'an' if kind[:1] in 'aeiou' else 'a'} {kind} loss"
