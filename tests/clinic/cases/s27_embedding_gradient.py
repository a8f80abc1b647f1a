"""Nearly all of the gradient's norm is the embedding's, by a factor of a hundred."""

from pathlib import Path
from typing import Any

from acting import examined
from casing import Case
from course import Course, course
from setups import Setup
from torch import Tensor, nn

from optdoctor.findings import Diagnosis

FACTOR = 100.0


def _note_share(run: Course, update: int) -> None:
    squares = {n: float((p.grad**2).sum()) for n, p in run.model.named_parameters()}
    run.notes.setdefault("shares", []).append(squares["words.weight"] / sum(squares.values()))


def run(folder: Path) -> Diagnosis:
    made = course(Setup("word-gpt", "adam", clip=1.0))

    def amplified(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        """The same value, by a gradient that is larger."""
        return FACTOR * output - (FACTOR - 1) * output.detach()

    made.model.get_submodule("words").register_forward_hook(amplified)
    made.before_step.append(_note_share)
    diagnosis = examined(made, folder)
    shares = sorted(made.notes["shares"])
    assert shares[len(shares) // 2] > 0.9
    return diagnosis


CASE = Case(
    number="S27",
    source="THUDM/GLM-130B, training log",
    says="Gradient spikes come from the embedding, which holds nearly all of the norm.",
    run=run,
    rules=("gradient-dominated-by-one-layer",),
)
