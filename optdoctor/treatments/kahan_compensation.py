"""Compensated bfloat16 weights: what rounding cuts off is kept, and added before the next step.

bfloat16 has 8 significant bits: an update below 1/512 of its weight is lost when it is rounded to
the nearest. A second bfloat16 number for each weight holds the remainder (Kahan's summation; for
bfloat16 training Zamirai et al. 2020, arXiv 2010.06192, section 4), so that both together have
about 16 significant bits. Unlike stochastic rounding it adds no noise; float32-state holds more and
costs 2 bytes a weight more.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from optdoctor.treatments.in_float32 import InFloat32
from optdoctor.treatments.intervention import Refused

HALF_PLACE = 2.0**-8
"""The largest remainder of a number rounded to bfloat16, in units of the number."""


class KahanCompensation(InFloat32):
    """Steps in float32 from bfloat16 weights plus their remainders, and keeps both in bfloat16.

    Costs 2 bytes a weight, and 2 for each moment, which stay in float32. A remainder that is too
    large for its weight is dropped: somebody wrote the weight between steps. Nothing is read back
    from the device. float16 weights are stepped in float32 and rounded to the nearest.

    Refused: no bfloat16 weights, moments packed in 8 or 4 bits, weights spread over processes
    or of a class with operations of its own, LBFGS; and, since each optimizer that is not of
    torch.optim is first tried on small tensors, those whose step then fails, as SOAP and
    schedule-free ones, and those around another one. A step
    that may call a closure twice switches it off. Undone, remainders are dropped.
    """

    name = "kahan-compensation"
    safety = "risky"

    def check(self) -> None:
        """Refuses where no weight is in bfloat16."""
        super().check()
        if not any(p.dtype == torch.bfloat16 for p in self.parameters()):
            raise Refused(
                f"{self.name} keeps what rounding to bfloat16 cuts off, and no weight is",
                "use float32-state for float16 weights",
            )

    def begin(self) -> None:
        """Nothing is cut off yet."""
        super().begin()
        self._remainders: dict[int, tuple[Tensor, Tensor]] = {}
        """{id of a parameter: (it, its remainder)}."""
        self._told: dict[int, Tensor] = {}

    def before(self) -> None:
        """Lends float32 to the step."""
        for place, parameter in enumerate(self.parameters() if self._told else ()):
            if (held := self._told.get(place)) is not None:
                own = held.to(parameter.device, torch.bfloat16, copy=True)
                self._remainders[id(parameter)] = (parameter, own)
        self._told = {}
        super().before()

    def lent(self, parameter: Tensor) -> Tensor:
        """The weights and what was cut off from them."""
        weights = parameter.detach().to(torch.float32)
        _, remainder = self._remainders.get(id(parameter), (None, None))
        if remainder is None or remainder.shape != weights.shape:
            return weights
        wide = remainder.to(weights.device, torch.float32)
        return weights + torch.where(wide.abs() <= weights.abs() * HALF_PLACE, wide, 0.0)

    def take_back(self, parameter: Tensor, weights: Tensor) -> None:
        """Rounds to the nearest and keeps the rest."""
        parameter.copy_(weights)
        if parameter.dtype == torch.bfloat16:
            rest = (weights.detach() - parameter).to(torch.bfloat16)
            self._remainders[id(parameter)] = (parameter, rest.nan_to_num(0.0, 0.0, 0.0))

    def end(self) -> None:
        """Rounds the moments and drops the remainders."""
        super().end()
        self._remainders, self._told = {}, {}

    def state_dict(self) -> dict[str, Any]:
        """Moments and remainders, by position among the optimizer's parameters."""
        kept = {i: self._remainders.get(id(p)) for i, p in enumerate(self.parameters())}
        rests = {str(i): r[1].clone() for i, r in kept.items() if r is not None}
        return {**super().state_dict(), "remainders": rests}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes them over at the next step."""
        super().load_state_dict(state)
        self._remainders = {}
        self._told = {int(place): held for place, held in state.get("remainders", {}).items()}


INTERVENTION = KahanCompensation
