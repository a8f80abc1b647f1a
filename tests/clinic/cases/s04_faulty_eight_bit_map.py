"""An 8-bit AdamW whose map of the second moment lost its small numbers and holds zeros instead."""

from pathlib import Path

import torch
from acting import examined
from casing import Case
from course import Course, course
from setups import Setup

from optdoctor.findings import Diagnosis


def _note(run: Course, update: int) -> None:
    finite = all(p.grad.isfinite().all() for p in run.model.parameters() if p.grad is not None)
    run.notes.setdefault("finite", []).append(bool(finite))


def _count(run: Course, update: int) -> None:
    """Entries whose stored second moment means 0 while the first does not."""
    found = 0
    for state in run.optimizers[0].state.values():
        if "qmap2" in state:
            zero = state["qmap2"][state["state2"].long()] == 0
            found += int((zero & (state["qmap1"][state["state1"].long()] != 0)).sum())
    run.notes.setdefault("divided by nothing", []).append(found)


def run(folder: Path) -> Diagnosis:
    made = course(Setup("lora", "adamw8bit", size="large"))
    optimizer = made.optimizers[0]
    optimizer.fill_qmap()
    sound = optimizer.name2qmap["udynamic"]
    kept = sound[len(sound) // 2 :]
    optimizer.name2qmap["udynamic"] = torch.cat([torch.zeros(len(sound) - len(kept)), kept])
    made.before_step.append(_note)
    made.after_step.append(_count)
    diagnosis = examined(made, folder)
    assert max(made.notes["divided by nothing"]) > 0
    assert made.notes["finite"][0]
    return diagnosis


CASE = Case(
    number="S04",
    source="bitsandbytes-foundation/bitsandbytes#152",
    says="An 8-bit AdamW blows up soon after the start: its map rounds second moments to 0.",
    run=run,
    rules=("update-beyond-adam", "second-moment-underflow", "nonfinite-state"),
)
