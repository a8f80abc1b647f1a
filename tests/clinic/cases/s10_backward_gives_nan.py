"""One attention module has a finite output and a gradient that is NaN."""

from pathlib import Path
from typing import Any

import torch
from acting import examined
from casing import Case
from course import Course, course
from setups import Setup
from torch import Tensor, nn

from optdoctor.findings import Diagnosis


class _WrongWay(torch.autograd.Function):
    """Right forwards, NaN backwards."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return torch.full_like(gradients[0], float("nan"))


def _wrong(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return _WrongWay.apply(output)


def _note(run: Course, update: int) -> None:
    """After the first backward pass: what is NaN lies before that module, what follows is not."""
    if update == 0:
        finite = {n: bool(p.grad.isfinite().all()) for n, p in run.model.named_parameters()}
        run.notes["finite"] = finite


def run(folder: Path) -> Diagnosis:
    made = course(Setup("char-gpt", "adamw", precision="float16-scaler"))
    made.steps = 60
    made.model.get_submodule("blocks.1.qkv").register_forward_hook(_wrong)
    made.before_step.append(_note)
    diagnosis = examined(made, folder)
    finite = made.notes["finite"]
    assert finite["head.weight"]
    assert finite["blocks.1.out.weight"]
    assert not finite["blocks.1.qkv.weight"]
    return diagnosis


CASE = Case(
    number="S10",
    source="hiyouga/LLaMA-Factory#4160",
    says="The gradient norm is NaN in float16 with a finite loss: one attention's backward pass.",
    run=run,
    rules=("nonfinite-gradient", "loss-scale-collapse"),
)
