"""AdamW takes the dtype of its state from weights in bfloat16: a plateau above that of float32."""

from pathlib import Path

import torch
from acting import examined
from casing import Case
from course import Course, course
from setups import Setup

from optdoctor.findings import Diagnosis


def _note_weights(run: Course, update: int) -> None:
    run.notes["before"] = [p.detach().clone() for p in run.model.parameters()]


def _count(run: Course, update: int) -> None:
    pairs = list(zip(run.notes["before"], run.model.parameters(), strict=True))
    same = sum(int((old == new).sum()) for old, new in pairs)
    run.notes.setdefault("unchanged", []).append(same / sum(old.numel() for old, _ in pairs))


def run(folder: Path) -> Diagnosis:
    setup = Setup("char-gpt", "adamw", rate_factor=0.05, schedule="cosine", precision="bfloat16")
    made = course(setup)
    made.before_step.append(_note_weights)
    made.after_step.append(_count)
    diagnosis = examined(made, folder)
    state = made.optimizers[0].state[next(made.model.parameters())]
    assert state["exp_avg_sq"].dtype is torch.bfloat16
    shares = made.notes["unchanged"]
    quarter = len(shares) // 4
    assert sum(shares[-quarter:]) / quarter > max(0.5, sum(shares[:quarter]) / quarter)
    return diagnosis


CASE = Case(
    number="S02",
    source="areal-project/AReaL#1292",
    says="The loss stops above its float32 twin: weights and Adam's state are bfloat16.",
    run=run,
    rules=("update-lost-to-rounding", "half-precision-state", "second-moment-stalled"),
)
