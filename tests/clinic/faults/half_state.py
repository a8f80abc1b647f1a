"""A second moment in bfloat16 at beta2 0.999, which can only rise: no harm in runs this short."""

import torch
from course import Course
from faulting import Fault
from setups import Setup


def _coarse(run: Course, update: int) -> None:
    """From that update on, each new second moment is bfloat16, the weights float32."""

    def cast(run: Course, step: int) -> None:
        if step + 1 < update:
            return
        for optimizer in run.optimizers:
            for state in optimizer.state.values():
                state["exp_avg_sq"] = state["exp_avg_sq"].to(torch.bfloat16)

    for optimizer in run.optimizers:
        for group in optimizer.param_groups:
            group["foreach"] = False  # which takes moments of another dtype than the weights'
    run.after_step.append(cast)


def _is_coarse(run: Course) -> bool:
    return all(
        state["exp_avg_sq"].dtype == torch.bfloat16
        for optimizer in run.optimizers
        for state in optimizer.state.values()
    )


FAULT = Fault(
    name="half-state",
    says="The second moment is kept in bfloat16, where a decay of 0.1 % rounds to nothing.",
    rules=(),
    doses=(1, 20, 50),
    places=(
        Setup("char-gpt", "adamw"),
        Setup("digits-mlp", "adamw"),
        Setup("autoencoder", "adamw"),
    ),
    inject=_coarse,
    probe=_is_coarse,
    decoy=True,
)
