"""A float16 kernel that gives NaN: the loss is NaN from the first step, the weights are sound."""

from pathlib import Path
from typing import Any

import torch
from acting import examined
from casing import Case
from course import course
from setups import Setup
from torch import Tensor, nn

from optdoctor.findings import Diagnosis


def _broken(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    """As some cards do it: one output of a float16 product is NaN."""
    if output.dtype is not torch.float16:
        return output
    return output.index_fill(-1, torch.tensor([0]), float("nan"))


def run(folder: Path) -> Diagnosis:
    made = course(Setup("lora", "adamw", precision="float16-scaler"))
    made.steps = 40
    names = [name for name, _ in made.model.named_modules() if name.endswith("c_fc")]
    made.model.get_submodule(names[0]).register_forward_hook(_broken)
    inputs, target = made.batch(0)
    assert made.loss(made.model(inputs), target).isfinite(), "float32 is sound"
    diagnosis = examined(made, folder)
    assert all(p.isfinite().all() for p in made.model.parameters())
    return diagnosis


CASE = Case(
    number="S09",
    source="bmaltais/kohya_ss#436",
    says="The loss is NaN from the first step in float16 on some cards: a kernel, no optimizer.",
    run=run,
    rules=("nan-pulse", "loss-scale-collapse"),
)
