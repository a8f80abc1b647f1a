"""S28: whether the model converged hung on Adam's epsilon, 1e-5 or 1e-8."""

from pathlib import Path

import torch
from casing import Case
from course import Course, course, train
from setups import Setup

import optdoctor
from optdoctor.findings import Diagnosis

EPSILON, SMALLNESS = 1e-5, 1e-4


def _shrink(run: Course, step: int) -> None:
    """Gradients of 1e-6, as a model of billions of weights has them."""
    for parameter in run.model.parameters():
        assert parameter.grad is not None
        parameter.grad.mul_(SMALLNESS)


def run(folder: Path) -> Diagnosis:
    sick = course(Setup("char-gpt", "adamw", optimizer_options=(("eps", EPSILON),)))
    sick.before_step.append(_shrink)
    train(sick, folder)
    (optimizer,) = sick.optimizers
    moments = torch.cat([state["exp_avg_sq"].flatten() for state in optimizer.state.values()])
    used = moments[moments > 0].sqrt()
    assert float((used < EPSILON).float().mean()) > 0.9
    return optdoctor.diagnose(optdoctor.read(folder))


CASE = Case(
    number="S28",
    source="ROCm/Megatron-LM#141",
    says="Of two settings under suspicion neither mattered; Adam's epsilon decided.",
    run=run,
    rules=("epsilon-dominates",),
)
