"""Batch norms whose running statistics hardly move: evaluation uses those of the start."""

from dataclasses import replace

from course import Course
from faulting import Fault
from setups import Setup
from torch import nn


def _norms(run: Course) -> list[nn.BatchNorm1d | nn.BatchNorm2d]:
    return [m for m in run.model.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]


def _slow(run: Course, momentum: float) -> None:
    """A network that has none gets one without weights, over its inputs."""
    if not _norms(run):
        inputs, _ = run.batch(0)
        first = nn.BatchNorm1d(inputs.shape[1], affine=False)
        run.task = replace(run.task, model=nn.Sequential(first, run.model))
    for norm in _norms(run):
        norm.momentum = momentum


def _is_behind(run: Course) -> bool:
    """Whether more than a fifth of the first statistics is left in all of them."""
    return all(
        (1 - float(norm.momentum or 1)) ** int(norm.num_batches_tracked or 0) > 0.2
        for norm in _norms(run)
    )


FAULT = Fault(
    name="batchnorm-lag",
    says="Batch norms average over a thousand batches and are evaluated before they saw as many.",
    rules=("batchnorm-statistics-lag",),
    doses=(0.003, 0.001, 0.0003),
    places=(
        Setup("digits-cnn", "adamw"),
        Setup("digits-mlp", "adamw"),
        Setup("autoencoder", "adamw"),
    ),
    inject=_slow,
    probe=_is_behind,
    of_its_task=True,
)
