"""A rehearsal: what a treatment does to an optimizer is done to a stand-in of small tensors first.

Some optimizers keep lists of matrices, buffers that only 16-bit weights have, or means that they
mix with the weights between steps. Where weights or moments suddenly are of another dtype a step of
theirs fails, in the midst of the training, where no treatment can catch it. So it has to fail here.
"""

import copy
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

LONGEST = 4
"""Of each axis of a small tensor."""
STEPS = 2


def rehearse(optimizer: Any, act: Callable[[Any], Callable[[], None]]) -> str:
    """What goes wrong, "" if nothing does, when `act` is done to a stand-in before its first step,
    and to one that has made steps, and when what `act` returns, the undoing, is done after steps.

    The stand-in's steps are of the optimizer's own class, with its settings and attributes copied;
    torch's random numbers are put back. The optimizer is not touched. What its steps do elsewhere,
    as to write a log, they do.
    """
    held = list(vars(optimizer).values())
    if any(isinstance(value, Optimizer) for value in held):
        return "it is built around another optimizer, whose state is its own"
    if any(isinstance(value, nn.Module) for value in held):
        return "it holds a model, of which there is no small copy"
    devices = {p.device for group in optimizer.param_groups for p in group["params"]}
    cuda = [device for device in devices if device.type == "cuda"]
    with torch.random.fork_rng(cuda):
        for first in (0, STEPS):
            try:
                _try(stand_in(optimizer), first, act)
            except Exception as error:
                said = (str(error).splitlines() or [""])[0][:100]
                return f"a step on small tensors failed, {type(error).__name__}: {said}"
    return ""


def stand_in(optimizer: Any) -> Any:
    """One of its class, without state and hooks, of small tensors: in each group one for each
    dtype, number of axes and device that it has."""
    memo: dict[int, Any] = {id(optimizer.state): defaultdict(dict)}
    for group in optimizer.param_groups:
        kinds: dict[Any, Tensor] = {}
        for p in group["params"]:
            kind = (p.dtype, p.dim(), p.device)
            memo[id(p)] = kinds.setdefault(kind, _small(p))
        memo[id(group["params"])] = list(kinds.values())
    # A schedule replaces `step` by its own, bound to the optimizer.
    held = {name: value for name, value in vars(optimizer).items() if name != "step"}
    for name, value in held.items():
        if name.startswith("_optimizer_") and name.endswith("_hooks"):
            memo[id(value)] = OrderedDict()
    made = object.__new__(type(optimizer))
    vars(made).update(copy.deepcopy(held, memo))
    return made


def _small(parameter: Tensor) -> Tensor:
    shape = [min(length, LONGEST) for length in parameter.shape]
    return nn.Parameter(torch.ones(shape, dtype=parameter.dtype, device=parameter.device))


def _try(optimizer: Any, first: int, act: Callable[[Any], Callable[[], None]]) -> None:
    _steps(optimizer, first)
    undo = act(optimizer)
    _steps(optimizer, STEPS)
    for name in ("eval", "train"):  # of those that exchange weights between steps
        getattr(optimizer, name, lambda: None)()
    _steps(optimizer, STEPS)
    undo()
    _steps(optimizer, STEPS)


def _steps(optimizer: Any, count: int) -> None:
    for _ in range(count):
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad = torch.ones_like(p)
        optimizer.step()
