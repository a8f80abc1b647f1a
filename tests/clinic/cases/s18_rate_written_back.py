"""Adafactor writes each tensor's scaled rate into its group: the next tensor starts from it."""

from pathlib import Path
from typing import Any

from acting import examined
from casing import Case
from course import Course, course
from setups import Setup

from optdoctor.findings import Diagnosis


def _note_rate(run: Course, update: int) -> None:
    run.notes.setdefault("rates", []).append(float(run.optimizers[0].param_groups[0]["lr"]))


def run(folder: Path) -> Diagnosis:
    from transformers.optimization import Adafactor

    class WritesBack(Adafactor):
        @staticmethod
        def _get_lr(param_group: Any, param_state: Any) -> float:
            param_group["lr"] = Adafactor._get_lr(param_group, param_state)
            return param_group["lr"]

    made = course(Setup("char-gpt", "adafactor"))
    rate = made.optimizers[0].param_groups[0]["lr"]
    options = {"relative_step": False, "scale_parameter": True, "warmup_init": False}
    made.optimizers = [WritesBack(made.model.parameters(), lr=rate, **options)]
    made.before_step.append(_note_rate)
    made.after_step.append(_note_rate)
    diagnosis = examined(made, folder)
    rates = made.notes["rates"]
    pairs = zip(rates[::2], rates[1::2], strict=True)
    assert all(after <= 1e-3 * before for before, after in pairs)
    return diagnosis


CASE = Case(
    number="S18",
    source="huggingface/transformers#9751",
    says="The rate hangs on the order of the parameters: Adafactor overwrites it within a step.",
    run=run,
    rules=("layer-learning-rate-mismatch", "frozen-weights", "step-too-small"),
    first=False,
)
