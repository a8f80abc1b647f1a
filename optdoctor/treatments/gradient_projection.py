"""Gradient projection: what opposes a second objective is taken out of the gradient.

PCGrad (Yu et al. 2020, arXiv 2001.06782, algorithm 1), for one objective that must not suffer: with
r its gradient, g becomes g - (g·r / ‖r‖²) r where g·r < 0, over all tensors together, and stays
as it is otherwise. To first order a plain gradient step then leaves that objective where it is;
one of an optimizer that rescales elements or has momentum does so roughly. It costs the gradient of
the second objective in each step, and whether the trade is wanted is for the user to say.

As it is printed elsewhere, without the condition, the same formula deletes the direction that
improves what r improves. That form is not offered.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from optdoctor.treatments.gradients import several_train, with_gradients
from optdoctor.treatments.intervention import Intervention, Refused
from optdoctor.treatments.needs import gradients_before

Gradients = Sequence[Tensor | None]
Against = Callable[[], Gradients | None] | Gradients


class GradientProjection(Intervention):
    """Takes out of the gradient what opposes another one, and only then.

    `against` gives that one: tensors in the order of the optimizer's parameters, None where there
    is none, or a function that is called in each step and returns such, or returns None and has
    called `backward()`, whose gradients are kept apart from those of the step. Its scale does not
    matter. Where several processes train, its mean over them is taken in each step. Passed over are
    sparse gradients. Nothing is read back from the device.
    """

    name = "gradient-projection"
    safety = "manual"
    changes_gradients = True

    def __init__(self, against: Against | None = None, *, when: str = "conflict") -> None:
        if when != "conflict":
            raise Refused(
                f"when={when!r} would take out of the gradient what both objectives want",
                "it acts only on a conflict",
            )
        self._against = against
        self._steps = 0
        self._conflicts: Tensor | None = None

    def check(self) -> None:
        """Refuses without a second gradient, and one whose shapes do not fit."""
        gradients_before(self.name, self.optimizer)
        if self._against is None:
            raise Refused(
                f"{self.name} needs a second gradient",
                "make it with GradientProjection(against=...)",
            )
        if callable(self._against):
            return
        self._check_shapes(self._against)

    def _check_shapes(self, given: Gradients) -> None:
        parameters = self.parameters()
        fits = len(given) == len(parameters) and all(
            r is None or r.shape == p.shape for r, p in zip(given, parameters, strict=True)
        )
        if not fits:
            raise Refused(
                "the second gradient has not the shapes of the optimizer's parameters",
                "give one tensor or None for each, in their order",
            )

    def before(self) -> None:
        """Projects."""
        parameters = self.parameters()
        second = self._second(parameters)
        pairs = [
            (p.grad.detach(), r)
            for p, r in zip(parameters, second, strict=True)
            if p.grad is not None and r is not None and p.grad.layout == torch.strided
        ]
        if not pairs:
            return
        device = pairs[0][0].device
        dot = torch.stack([_dot(g, r).to(device) for g, r in pairs]).sum()
        square = torch.stack([_dot(r, r).to(device) for _, r in pairs]).sum()
        conflict = (dot < 0) & (square > 0) & torch.isfinite(dot) & torch.isfinite(square)
        share = torch.where(conflict, dot / square, 0.0)
        for gradient, r in pairs:
            there, apart = share.to(gradient.device), conflict.to(gradient.device)
            projected = gradient - (there * _wide(r)).to(gradient.dtype)
            gradient.copy_(torch.where(apart, projected, gradient))
        self._steps += 1
        counted = conflict.to(torch.int64)
        self._conflicts = counted if self._conflicts is None else self._conflicts + counted

    def _second(self, parameters: list[Tensor]) -> Gradients:
        """The second gradient, alike in all processes."""
        given = self._against
        if callable(given):
            given = _asked(given, parameters)
        assert given is not None
        self._check_shapes(given)
        return _mean_over_processes(given, parameters)

    def end(self) -> None:
        """Says how often there was a conflict: the only time that it asks the device."""
        if self._conflicts is not None:
            told = f"{int(self._conflicts)} of {self._steps} steps"
            self.note(f"{self.name} found a conflict in {told}", kind="undo")
        self._steps, self._conflicts = 0, None

    def state_dict(self) -> dict[str, Any]:
        """How often it acted."""
        conflicts = 0 if self._conflicts is None else int(self._conflicts)
        return {"steps": self._steps, "conflicts": conflicts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on counting."""
        self._steps = int(state["steps"])
        device = self.parameters()[0].device
        self._conflicts = torch.tensor(int(state["conflicts"]), device=device)


def _asked(function: Callable[[], Gradients | None], parameters: list[Tensor]) -> Gradients:
    """What the function returns, or what it has left where gradients are; the gradients of the step
    are out of its sight."""
    own = [(p, p.grad) for p in with_gradients(parameters)]
    for parameter, _ in own:
        parameter.grad = None
    try:
        with torch.enable_grad():
            given = function()
        return [p.grad for p in parameters] if given is None else [*given]
    finally:
        for parameter in parameters:
            parameter.grad = None
        for parameter, gradient in own:
            parameter.grad = gradient


def _mean_over_processes(given: Gradients, parameters: list[Tensor]) -> Gradients:
    if not several_train():
        return given
    distributed = torch.distributed
    means: list[Tensor] = []
    for r, parameter in zip(given, parameters, strict=True):
        mean = torch.zeros_like(parameter) if r is None else r.detach().to_dense().clone()
        distributed.all_reduce(mean)
        means.append(mean / distributed.get_world_size())
    return means


def _wide(tensor: Tensor) -> Tensor:
    tensor = tensor.detach().to_dense() if tensor.layout != torch.strided else tensor.detach()
    return tensor.float() if tensor.itemsize < 4 else tensor


def _dot(one: Tensor, other: Tensor) -> Tensor:
    """Real, in float32 at least: of complex numbers, both parts."""
    one, other = _wide(one), _wide(other)
    product = one * other.conj() if one.is_complex() else one * other
    return product.real.sum() if product.is_complex() else product.sum()


INTERVENTION = GradientProjection
