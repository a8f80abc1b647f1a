"""Examples of one batch hold NaN, and nothing keeps the update from being made."""

import torch
from course import Course
from faulting import Fault
from setups import Setup
from tasks import Batch

AT = 0.4
"""Share of the run."""


def _spoil(run: Course, examples: int) -> None:
    """NaN in the first value of so many examples of one batch."""
    batch, number = run.batch, round(AT * run.steps)

    def spoiled(i: int) -> Batch:
        inputs, target = batch(i)
        if i == number:
            inputs = inputs.clone()
            inputs[:examples].flatten(1)[:, 0] = torch.nan
        return inputs, target

    run.batch = spoiled


def _weights_are_nan(run: Course) -> bool:
    return any(bool(p.isnan().any()) for p in run.model.parameters())


FAULT = Fault(
    name="nan-in-data",
    says="NaN in one batch of the data makes the loss NaN, and the update writes it everywhere.",
    rules=("nan-pulse", "nonfinite-gradient", "bad-batch"),
    doses=(1, 4, 1000),
    places=(
        Setup("digits-mlp", "adamw"),
        Setup("tabular-regression", "sgd"),
        Setup("digits-cnn", "adamw"),
    ),
    inject=_spoil,
    probe=_weights_are_nan,
)
