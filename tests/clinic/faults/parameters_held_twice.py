"""The list that the optimizer is built from names each parameter several times."""

from course import Course
from faulting import Fault
from setups import Setup


def _repeat(run: Course, times: int) -> None:
    for optimizer in run.optimizers:
        for group in optimizer.param_groups:
            group["params"] = group["params"] * times


def _is_repeated(run: Course) -> bool:
    """Whether some parameter stands in the groups more than once."""
    held = [id(p) for o in run.optimizers for g in o.param_groups for p in g["params"]]
    return len(set(held)) < len(held)


FAULT = Fault(
    name="parameters-held-twice",
    says="Each update moves each weight several times: the rate is a multiple of the one set.",
    rules=("weights-held-twice",),
    doses=(3, 6, 12),
    places=(
        Setup("digits-mlp", "sgd"),
        Setup("autoencoder", "adamw"),
        Setup("char-gpt", "adamw"),
    ),
    inject=_repeat,
    probe=_is_repeated,
    static=True,
)
