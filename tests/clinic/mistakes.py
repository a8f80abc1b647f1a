"""Mistakes that several faults make: in another layer, or under another optimizer."""

from collections.abc import Callable
from typing import Any

import torch
from course import Course
from torch import nn

Choose = Callable[[list[nn.Linear]], nn.Linear]
"""One of a model's linear layers, in their order."""


def forget_layer(choose: Choose) -> dict[str, Any]:
    """A layer that no optimizer holds, with smaller weights by the dose, which let less through:
    what brings it into a run, and whether it stayed as it began though it had a gradient."""

    def layer_of(run: Course) -> nn.Linear:
        return choose([m for m in run.model.modules() if isinstance(m, nn.Linear)])

    def forget(run: Course, size: float) -> None:
        layer = layer_of(run)
        forgotten = {id(p) for p in layer.parameters()}
        for optimizer in run.optimizers:
            for group in optimizer.param_groups:
                group["params"] = [p for p in group["params"] if id(p) not in forgotten]
        with torch.no_grad():
            layer.weight.mul_(size)
        run.notes["began"] = layer.weight.detach().clone()

    def stayed(run: Course) -> bool:
        weight = layer_of(run).weight
        return weight.grad is not None and torch.equal(weight, run.notes["began"])

    return {"inject": forget, "probe": stayed}


def keep_gradients(run: Course, since: float) -> None:
    """From this share of the run on nothing is set to zero."""
    begin, zero = round(since * run.steps), run.zero
    run.notes["updates"] = run.notes["kept"] = 0

    def forget(course: Course) -> None:
        if run.notes["updates"] < begin:
            zero(course)
        run.notes["updates"] += 1

    def count(course: Course, step: int) -> None:
        gradients = [p.grad for p in course.model.parameters() if p.grad is not None]
        run.notes["kept"] += any(bool(gradient.any()) for gradient in gradients)

    run.zero = forget
    run.before_backward.append(count)


def were_kept(run: Course) -> bool:
    """Whether many updates began with a gradient other than 0."""
    return bool(run.notes["kept"] > 0.4 * run.steps)


def add_up(run: Course, several: int) -> None:
    """The losses of micro-batches are added up and not averaged."""
    run.divide = False


def is_sum(run: Course) -> bool:
    """Whether there were several micro-batches, whose loss nothing divided."""
    return run.accumulate > 1 and not run.divide
