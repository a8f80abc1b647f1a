"""Batches that lie in the run folder, as the doctor saved them while it watched."""

from collections.abc import Container

from optdoctor.findings import Treatment
from optdoctor.trace import Trace

LISTED = 3
"""Batches that are named at most."""


def saved_batches(trace: Trace, steps: Container[int]) -> tuple[Treatment, ...]:
    """How to look at those of these updates, where any was saved."""
    saved = {e.step: e for e in trace.events if e.kind == "batch-saved" and e.step in steps}
    if not saved:
        return ()
    names = [str(event.new) for event in saved.values()][:LISTED]
    more = ", ..." if len(saved) > LISTED else ""
    told = next(iter(saved.values())).old
    given_to = "module.training_step" if told == "training_step" else "the model"
    return (
        Treatment(
            title=f"Look for NaN and for values far out of range in {', '.join(names)}{more} of the"
            ' run\'s folder: torch.load(path)["passes"]',
            when="check",
            safety="safe",
            source=f"each pass has the args and kwargs of {given_to}; what only the loss was given,"
            " as targets, is not in it; where all looks right, give it to weights from before: a"
            " broken batch stays broken, broken weights break on any batch",
        ),
    )
