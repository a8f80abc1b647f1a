"""Gradients are divided by a loss scale that was never applied, and never set to zero."""

from pathlib import Path

from acting import examined
from casing import Case
from course import Course, course
from setups import Setup

from optdoctor.findings import Diagnosis

SCALE = 65536


def _note_norm(run: Course, update: int) -> None:
    squares = sum(float((p.grad.double() ** 2).sum()) for p in run.model.parameters())
    run.notes.setdefault("norms", []).append(squares**0.5)


def run(folder: Path) -> Diagnosis:
    made = course(Setup("char-gpt", "adamw", precision="bfloat16-autocast", rate_factor=0.1))
    made.zero = lambda run: None
    for parameter in made.model.parameters():
        parameter.register_hook(lambda gradient: gradient / SCALE)
    made.before_step.append(_note_norm)
    diagnosis = examined(made, folder)
    norms = made.notes["norms"]
    assert norms[0] < 20 / SCALE
    assert norms[20] > 5 * norms[0]
    return diagnosis


CASE = Case(
    number="S13",
    source="deepspeedai/DeepSpeed#7839",
    says="The gradient norm is far too small and grows steadily: divided by an unused scale, and"
    " never set to zero.",
    run=run,
    rules=("gradients-not-zeroed", "epsilon-dominates"),
)
