"""What to do where the evaluation leaves the training: generic remedies, the surest first."""

from optdoctor.findings import Treatment


def against_overfitting(which: str) -> tuple[Treatment, ...]:
    """`which` says of which step the checkpoint is to be kept."""
    keep = Treatment(
        title=f"Keep the checkpoint {which}, and stop the run here",
        when="now",
        safety="safe",
        source="arithmetic: no later evaluation is lower",
    )
    following = (
        (
            "Train on more data, or on augmented data",
            "what cannot be learnt by heart has to be learnt; the first remedy to try",
        ),
        (
            "Train for fewer epochs, with the schedule ending near the minimum",
            "repeated examples are what is learnt by heart",
        ),
        (
            "Add dropout or weight decay; neither replaces missing data",
            "general practice; their effect on a small set is often small",
        ),
    )
    check_first = Treatment(
        title="Evaluate on a part of the training data in evaluation mode",
        when="check",
        safety="safe",
        source="if that loss rises as well, the two losses are not the same function",
    )
    return (keep, *(Treatment(title, source=why) for title, why in following), check_first)
