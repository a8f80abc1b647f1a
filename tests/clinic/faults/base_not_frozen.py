"""Adapters alone are given to the optimizer, and the base still requires gradients."""

from course import Course
from faulting import Fault
from setups import Setup


def _thaw(run: Course, share: float) -> None:
    """Gradients for the last `share` of the frozen tensors, which no optimizer holds."""
    frozen = [p for p in run.model.parameters() if not p.requires_grad]
    run.notes["thawed"] = frozen[round(len(frozen) * (1 - share)) :]
    for parameter in run.notes["thawed"]:
        parameter.requires_grad_(True)


def _has_gradient(run: Course) -> bool:
    """Whether gradients were computed for them, and nothing uses those."""
    return any(p.grad is not None for p in run.notes["thawed"])


FAULT = Fault(
    name="base-not-frozen",
    says="Gradients are computed for weights that nobody moves: dear, and harmless.",
    rules=(),
    doses=(0.5, 0.8, 1.0),
    places=(
        Setup("lora", "adamw"),
        Setup("lora", "lion"),
        Setup("lora", "sgd"),
    ),
    inject=_thaw,
    probe=_has_gradient,
    decoy=True,
    static=True,
    of_its_task=True,
)
