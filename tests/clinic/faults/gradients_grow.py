"""Late in a run gradients grow, and Adam's second moment lags behind them."""

from course import Course
from faulting import Fault
from setups import Setup

UNTIL = 0.8
"""Share of the run that is calm."""


def _calm(run: Course, factor: float) -> None:
    """Gradients are multiplied by that in the calm part, which Adam does not feel."""

    def act(course: Course, step: int) -> None:
        course.notes["moments"] = course.notes.get("moments", [])
        parameter = max(course.model.parameters(), key=lambda p: p.numel())
        if parameter.grad is None:
            return
        if step < UNTIL * course.steps:
            for each in course.model.parameters():
                if each.grad is not None:
                    each.grad.mul_(factor)
            return
        state = course.optimizers[0].state.get(parameter)
        if state:
            mean = state["exp_avg_sq"].mean() / (1 - 0.999 ** int(state["step"]))
            course.notes["moments"].append(float(parameter.grad.square().mean() / mean))

    run.before_step.append(act)


def _lagged(run: Course) -> bool:
    """Whether squares were four times the second moment in the first updates after the calm."""
    first = run.notes["moments"][:2]
    return len(first) == 2 and min(first) > 4


FAULT = Fault(
    name="gradients-grow",
    says="Gradients grow suddenly; Adam's second moment lags behind and its steps are too large.",
    rules=("second-moment-stale",),
    doses=(0.01, 0.001, 0.1),
    places=(
        Setup("char-gpt", "adamw", schedule="constant"),
        Setup("digits-mlp", "adamw", schedule="constant"),
        Setup("char-lstm", "adam", schedule="constant"),
    ),
    inject=_calm,
    probe=_lagged,
)
