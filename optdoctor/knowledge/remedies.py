"""Treatments that several rules propose in the same words."""

from typing import Literal

from optdoctor.findings import Treatment
from optdoctor.trace import Trace


def go_back(trace: Trace, step: int, why: str, sound: int | None = None) -> Treatment:
    """To weights that are whole: of before `step`, where there are any; `why` ends the sentence.

    `sound` is the newest step that is known to be finite: where it is not the step before, nobody
    knows what broke between the two.
    """
    title = f"Go back to a checkpoint from before step {step}{why}"
    if sound is not None and sound < step - 1:
        title = f"Go back to a checkpoint from step {sound} or before: none later is known sound"
    known = step - 1 if sound is None else sound
    if known < trace.steps[0] and not trace.has("resumed_from"):
        title = f"Restart; a checkpoint cannot help: no step before {step} is known to be sound"
    if trace.facts.get("weights_nonfinite"):
        title = "Load weights that are finite: these were not when watching began"
    return Treatment(
        title=title,
        safety="safe",
        basis="heuristic",
        source="arithmetic: NaN plus anything is NaN",
    )


def batches(step: int, sound: int | None) -> str:
    """`the batch of step 9`, or of all steps since the newest that is known to be sound."""
    if sound is None or sound >= step - 1:
        return f"the batch of step {step}"
    return f"the batches of steps {sound + 1} to {step}"


def float32_state(dtype: str, basis: Literal["measured", "heuristic"], source: str) -> Treatment:
    """Out of a number format that does not hold the optimizer's state."""
    return Treatment(
        title="Restart with weights and optimizer state in float32, forward in bfloat16 autocast",
        changes={"state_dtype": (dtype, "float32")},
        safety="safe",
        basis=basis,
        source=source,
        intervention=in_float32(dtype),
    )


def in_float32(dtype: str) -> str:
    """The intervention that makes updates in float32 though weights or state are of `dtype`."""
    return "float32-state" if dtype in ("float16", "bfloat16") else ""
