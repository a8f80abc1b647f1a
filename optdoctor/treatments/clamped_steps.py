"""What raising elements of a second moment does to the steps of these elements."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from optdoctor.optimizers import probe_of, reader_of
from optdoctor.optimizers.elements import wide
from optdoctor.treatments.gradients import scale_of

Number = float | Tensor


class ClampedSteps:
    """Collects, for one step, elements that are raised and their steps before and after, in units
    of the learning rate: |m| / c1 / (sqrt(v / c2) + eps) with the moments that the step will have
    (Kingma & Ba 2015, algorithm 1). Numbers stay on their devices until asked for.
    """

    def __init__(self, optimizer: Any) -> None:
        self._probe, self._read = probe_of(optimizer), reader_of(optimizer)
        self._scale = scale_of(optimizer)
        self._found: list[Tensor] = []

    def add(
        self,
        parameter: Tensor,
        moment: Tensor,
        minimum: Tensor,
        low: Tensor,
        group: Mapping[str, Any],
    ) -> None:
        """One tensor, before its elements `low` are raised to `minimum`."""
        before = self._steps(parameter, wide(moment), group)
        after = self._steps(parameter, torch.where(low, wide(minimum), wide(moment)), group)
        zero = torch.zeros((), device=low.device)
        numbers = [low.sum()]
        for steps in (before, after):
            chosen = torch.where(low, steps, zero)
            numbers += [chosen.abs().max(), chosen.square().sum()]
        self._found.append(torch.stack([number.to(torch.float64) for number in numbers]))

    def _steps(self, parameter: Tensor, second: Tensor, group: Mapping[str, Any]) -> Tensor:
        state, gradient = self._read(parameter), parameter.grad
        assert gradient is not None
        size = wide(gradient.detach())
        if self._scale is not None:
            size = size / self._scale.to(size.device, size.dtype)
        size, second = size.to(second.dtype), second.clamp(min=0)
        beta1, beta2 = _decays(self._probe.family, group)
        beta1, beta2 = _beside(beta1, second), _beside(beta2, second)
        layout = self._probe.layout(state, group)
        mean, divisor = layout.first, layout.divisor
        first = size
        if mean is not None and mean.key in state and mean.form == "full":
            first = beta1 * wide(mean.read(state, group)) + (1 - beta1) * size
        second = beta2 * second + (1 - beta2) * size.square()
        if divisor is not None and divisor.key in state:  # the largest so far, of amsgrad
            second = torch.maximum(second, wide(divisor.read(state, group)))
        count = self._probe.count(state, group)
        c1: Number = 1.0
        c2: Number = 1.0
        if count is not None:
            c1, c2 = self._probe.corrections(group, _beside(count, second) + 1)
        return first / c1 / ((second / c2).sqrt() + float(group.get("eps") or 0.0))

    def count(self) -> int:
        """How many are raised; waits for the devices."""
        if not self._found:
            return 0
        device = self._found[0].device
        self._numbers = torch.stack([one.to(device) for one in self._found]).tolist()
        return int(sum(one[0] for one in self._numbers))

    def told(self) -> tuple[str, float, float]:
        """In words, the largest step before, after; after `count`."""
        count = sum(one[0] for one in self._numbers)
        largest = [max(one[i] for one in self._numbers) for i in (1, 3)]
        rms = [(sum(one[i] for one in self._numbers) / max(count, 1)) ** 0.5 for i in (2, 4)]
        text = (
            f"{count:.0f} elements of the second moment: their largest step goes from "
            f"{largest[0]:.3g} to {largest[1]:.3g} learning rates, their RMS from {rms[0]:.3g} to "
            f"{rms[1]:.3g}"
        )
        return text, largest[0], largest[1]


def _decays(family: str, group: Mapping[str, Any]) -> tuple[Any, Any]:
    if family != "rmsprop":
        return group["betas"][0], group["betas"][1]
    # bitsandbytes calls it the first beta.
    return 0.0, group["alpha"] if "alpha" in group else group["betas"][0]


def _beside(number: Any, like: Tensor) -> Any:
    return number.to(like.device, like.dtype) if isinstance(number, Tensor) else number
