"""What the kinds of a loss promise of its curve."""

NEVER_FALLING = frozenset({"reward", "adversarial", "diffusion"})
"""Values of the fact `loss_kind` of losses that need not fall in a good run."""
NOT_FALLING = NEVER_FALLING | {"unknown"}
"""The same and those of which nobody knows: a curve without findings proves nothing."""
