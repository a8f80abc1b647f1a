"""A copy of the model rides along and requires gradients, as a target or averaged network does."""

import copy

from course import Course
from faulting import Fault
from setups import Setup


def _carry(run: Course, copies: int) -> None:
    for i in range(copies):
        run.model.add_module(f"target{i}", copy.deepcopy(run.task.model))


def _is_nobodys(run: Course) -> bool:
    """Whether trainable parameters of the model are in none of its optimizers."""
    held = {id(p) for o in run.optimizers for g in o.param_groups for p in g["params"]}
    return any(p.requires_grad and id(p) not in held for p in run.model.parameters())


FAULT = Fault(
    name="target-network",
    says="Trainable parameters are in no optimizer, and none of the loss depends on them.",
    rules=(),
    doses=(1, 2, 3),
    places=(
        Setup("char-gpt", "adamw"),
        Setup("char-lstm", "adamw"),
        Setup("masked-lm", "adamw"),
    ),
    inject=_carry,
    probe=_is_nobodys,
    decoy=True,
    static=True,
)
