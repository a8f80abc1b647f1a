"""Treatments that several rules propose in the same words."""

from typing import Literal

from optdoctor.findings import Treatment
from optdoctor.trace import Trace


def go_back(trace: Trace, step: int, why: str) -> Treatment:
    """To weights that are whole: of before `step`, where there are any; `why` ends the sentence."""
    title = f"Go back to a checkpoint from before step {step}{why}"
    if step <= trace.steps[0] and not trace.has("resumed_from"):
        title = f"Restart; a checkpoint cannot help: no step before {step} is known to be sound"
    if trace.facts.get("weights_nonfinite"):
        title = "Load weights that are finite: these were not when watching began"
    return Treatment(
        title=title,
        safety="safe",
        basis="heuristic",
        source="arithmetic: NaN plus anything is NaN",
    )


def float32_state(dtype: str, basis: Literal["measured", "heuristic"], source: str) -> Treatment:
    """Out of a number format that does not hold the optimizer's state."""
    return Treatment(
        title="Restart with weights and optimizer state in float32, forward in bfloat16 autocast",
        changes={"state_dtype": (dtype, "float32")},
        safety="safe",
        basis=basis,
        source=source,
    )
