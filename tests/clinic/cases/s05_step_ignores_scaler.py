"""An optimizer that says it unscales in its own step, and neither does nor heeds the scaler."""

from pathlib import Path
from typing import Any

import torch
from acting import examined
from casing import Case
from course import Course, course
from setups import Setup

from optdoctor.findings import Diagnosis


class _Ignoring(torch.optim.AdamW):
    """What the scaler tells a fused step gets lost on the way."""

    _step_supports_amp_scaling = True

    def step(self, closure: Any = None) -> Any:
        self.overflowed = getattr(self, "overflowed", 0) + int(self.found_inf.item() > 0)
        told, self.grad_scale, self.found_inf = (self.grad_scale, self.found_inf), None, None
        result = super().step(closure)
        self.grad_scale, self.found_inf = told
        return result


def _note(run: Course, update: int) -> None:
    finite = all(p.isfinite().all() for p in run.model.parameters())
    run.notes.setdefault("finite", []).append(bool(finite))


def run(folder: Path) -> Diagnosis:
    made = course(Setup("char-gpt", "adamw", precision="float16-scaler"))
    rate = made.optimizers[0].param_groups[0]["lr"]
    made.optimizers = [_Ignoring(made.model.parameters(), lr=rate)]
    made.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**13, growth_interval=10)
    made.steps = 150
    made.after_step.append(_note)
    diagnosis = examined(made, folder)
    finite = made.notes["finite"]
    assert made.optimizers[0].overflowed > 0
    assert all(finite[:20])
    assert not finite[-1]
    return diagnosis


CASE = Case(
    number="S05",
    source="pytorch/pytorch#95781",
    says="After long good training all is NaN: the fused step took gradients that the scaler found"
    " infinite.",
    run=run,
    rules=("nonfinite-gradient", "nonfinite-state"),
)
