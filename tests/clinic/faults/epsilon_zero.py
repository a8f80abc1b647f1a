"""Adam with weights, moments and arithmetic in float16, where its epsilon of 1e-8 is 0."""

import torch
from course import Course
from faulting import Fault, at
from setups import Setup


def _is_zero(run: Course) -> bool:
    """Whether epsilon rounds to 0 in the dtype of the weights."""
    weight = next(iter(run.model.parameters()))
    eps = run.optimizers[0].param_groups[0]["eps"]
    return float(torch.tensor(eps, dtype=weight.dtype)) == 0


FAULT = Fault(
    name="epsilon-zero",
    says="Adam's epsilon rounds to 0 in float16: entries divide by 0 and the weights turn NaN.",
    rules=("epsilon-below-precision",),
    doses=(1e-8, 1e-9, 2e-8),
    places=(
        Setup("char-gpt", "adamw"),
        Setup("digits-mlp", "adamw"),
        Setup("autoencoder", "adamw"),
    ),
    alter=lambda setup, eps: at(setup, precision="float16", eps=eps, foreach=True),
    probe=_is_zero,
    static=True,
)
