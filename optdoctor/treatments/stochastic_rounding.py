"""Stochastic rounding of bfloat16 weights: small updates survive on average.

bfloat16 has 8 significant bits: an update below 1/512 of its weight is lost when it is rounded to
the nearest. Rounded up or down at random, with chances as the distances, it is kept in the mean
(Gupta et al. 2015, arXiv 1502.02551, section 3; for bfloat16 training Zamirai et al. 2020, arXiv
2010.06192). In small trainings that was as good as float32 weights. It adds noise, of the size of a
last place, to every weight that moves; float32-state adds none and costs 4 bytes a weight more.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from optdoctor.treatments.in_float32 import InFloat32
from optdoctor.treatments.intervention import Refused

LOST_BITS = 16


class StochasticRounding(InFloat32):
    """Steps in float32 from the bfloat16 weights and rounds the outcome to them at random.

    Moments are kept in float32, 2 bytes more each; of the weights nothing more is kept. The random
    numbers are its own: of the same seed in all processes, which must step the same tensors.
    Nothing is read back from the device. float16 weights are stepped in float32 and rounded to the
    nearest.

    Refused: no bfloat16 weights, moments packed in 8 or 4 bits, weights spread over processes
    or of a class with operations of its own, LBFGS; and, since each optimizer that is not of
    torch.optim is first tried on small tensors, those whose step then fails, as SOAP and
    schedule-free ones, and those around another one. A step
    that may call a closure twice switches it off.
    """

    name = "stochastic-rounding"
    safety = "risky"

    def __init__(self, seed: int = 0) -> None:
        if not 0 <= seed < 2**63:
            raise ValueError(f"seed must be a whole number of at least 0, not {seed!r}")
        self.seed = seed

    def check(self) -> None:
        """Refuses where no weight is in bfloat16."""
        super().check()
        if not any(p.dtype == torch.bfloat16 for p in self.parameters()):
            raise Refused(
                f"{self.name} rounds to bfloat16, and no weight is",
                "use float32-state for float16 weights",
            )

    def begin(self) -> None:
        """Random numbers begin anew."""
        super().begin()
        self._generators: dict[str, torch.Generator] = {}

    def lent(self, parameter: Tensor) -> Tensor:
        """The weights themselves: float32 holds each bfloat16."""
        return parameter.detach().to(torch.float32)

    def take_back(self, parameter: Tensor, weights: Tensor) -> None:
        """At random."""
        if parameter.dtype != torch.bfloat16:
            parameter.copy_(weights)
            return
        parameter.copy_(rounded(weights.detach(), self._generator(parameter.device)))

    def _generator(self, device: torch.device) -> torch.Generator:
        known = self._generators.get(str(device))
        if known is None:
            known = torch.Generator(device).manual_seed(self.seed)
            self._generators[str(device)] = known
        return known

    def state_dict(self) -> dict[str, Any]:
        """The moments, and where the random numbers are."""
        states = {device: g.get_state() for device, g in self._generators.items()}
        return {**super().state_dict(), "generators": states}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on."""
        super().load_state_dict(state)
        self._generators = {}
        for device, held in state.get("generators", {}).items():
            self._generator(torch.device(device)).set_state(held.cpu())


def rounded(weights: Tensor, generator: torch.Generator) -> Tensor:
    """float32 numbers that bfloat16 holds: each of `weights`, up or down by chance. What bfloat16
    holds already stays, as does what is not finite."""
    bits = weights.contiguous().view(torch.int32)
    noise = torch.randint(
        0, 1 << LOST_BITS, bits.shape, dtype=torch.int32, device=bits.device, generator=generator
    )
    # The 16 bits that are cut off, plus as many random ones, carry with the chance of their share.
    held = ((bits + noise) & -(1 << LOST_BITS)).view(torch.float32)
    return torch.where(weights.isfinite(), held, weights)


INTERVENTION = StochasticRounding
