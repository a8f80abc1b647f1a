"""All weights are frozen, or the optimizer holds none, and the run goes on."""

import torch
from course import Course
from faulting import Fault
from setups import Setup
from torch import Tensor, nn


def _asks_for_gradient(module: nn.Module, inputs: object, output: Tensor) -> Tensor:
    """Lets backward run through frozen layers, as gradient checkpointing has it."""
    return output.requires_grad_() if output.is_leaf else output


def _freeze(run: Course, how: str) -> None:
    if "frozen" in how:
        run.model.requires_grad_(False)
        first = next(m for m in run.model.modules() if list(m.parameters(recurse=False)))
        first.register_forward_hook(_asks_for_gradient)
    if "empty" in how:
        for optimizer in run.optimizers:
            for group in optimizer.param_groups:
                group["params"] = []
    run.notes["began"] = [p.detach().clone() for p in run.model.parameters()]


def _stayed(run: Course) -> bool:
    """Whether all weights are as they began."""
    return all(map(torch.equal, run.model.parameters(), run.notes["began"]))


FAULT = Fault(
    name="nothing-trainable",
    says="No weight is trained: the loss goes nowhere and nothing fails.",
    rules=("nothing-trainable",),
    doses=("frozen", "empty", "frozen and empty"),
    places=(
        Setup("char-gpt", "adamw"),
        Setup("digits-mlp", "sgd"),
        Setup("autoencoder", "adamw"),
    ),
    inject=_freeze,
    probe=_stayed,
    static=True,
)
