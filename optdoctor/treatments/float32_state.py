"""Updates in float32 of a model in 16 bits: float32 weights behind the model's, float32 moments.

In float16 Adam's epsilon of 1e-8 is 0 and small second moments vanish; in bfloat16 most small
updates are rounded away. Both end where the optimizer has float32 weights and moments of its own
("master weights", Micikevicius et al. 2018, arXiv 1710.03740, section 3.1). In small trainings that
was as good as float32 throughout. It does not cure gradients that vanish in a float16 backward
pass, which need a loss scale, nor moments that vanished before it was switched on.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from optdoctor.findings import Safety
from optdoctor.treatments.in_float32 import InFloat32
from optdoctor.treatments.intervention import Refused
from optdoctor.treatments.swapped import HALF, is_half


class Float32State(InFloat32):
    """Lets the optimizer work on float32 weights and moments; the model stays as it is.

    It costs 4 bytes a weight for the copy, 2 more for each moment and, during a step, 4 for the
    gradient. What somebody writes into the 16-bit weights between steps is taken over: wherever
    they are not what the copy rounds to. Of weights that are float32 but have 16-bit moments only
    those are widened. Nothing is read back from the device.

    Refused: nothing of 16 bits, moments packed in 8 or 4 bits, weights spread over processes
    or of a class with operations of its own, LBFGS; and, since each optimizer that is not of
    torch.optim is first tried on small tensors, those whose step then fails, as SOAP and
    schedule-free ones, and those around another one. A step
    that may call a closure twice switches it off. Undone, the moments are rounded back, and in
    float16 small ones are 0 again.
    """

    name = "float32-state"
    safety: ClassVar[Safety] = "safe"

    def check(self) -> None:
        """Refuses where there is nothing to do, or nothing that can be done."""
        super().check()
        parameters = self.parameters()
        states = [self.optimizer.state.get(p) for p in parameters]
        values = [v for s in states if isinstance(s, Mapping) for v in s.values()]
        if not any(map(is_half, [*parameters, *values])):
            raise Refused(
                f"{self.name} has nothing to do: neither weights nor moments are of 16 bits",
                "leave it out",
            )

    def begin(self) -> None:
        """Copies nothing yet."""
        super().begin()
        self._masters: dict[int, tuple[Tensor, Tensor]] = {}
        """{id of a parameter: (it, its float32 weights)}."""
        self._told: dict[int, Tensor] = {}
        """{position: float32 weights} of a checkpoint."""

    def before(self) -> None:
        """Lends float32 to the step."""
        if self._told:
            self._take_told()
        super().before()

    def lent(self, parameter: Tensor) -> Tensor:
        """Its float32 weights, but where its own are not what those round to: there its own."""
        _, master = self._masters.get(id(parameter), (None, None))
        if master is None or master.shape != parameter.shape or master.device != parameter.device:
            master = parameter.detach().to(torch.float32)
        else:
            kept = master.to(parameter.dtype) == parameter
            master.copy_(torch.where(kept, master, parameter.to(torch.float32)))
        self._masters[id(parameter)] = (parameter, master)
        return master

    def take_back(self, parameter: Tensor, weights: Tensor) -> None:
        """Rounds to the nearest."""
        parameter.copy_(weights)

    def end(self) -> None:
        """Rounds the moments back and drops the copies."""
        super().end()
        self._masters, self._told = {}, {}

    def state_dict(self) -> dict[str, Any]:
        """Weights and moments in float32, by position among the optimizer's parameters."""
        kept = {i: self._masters.get(id(p)) for i, p in enumerate(self.parameters())}
        masters = {str(i): m[1].detach().clone() for i, m in kept.items() if m is not None}
        return {**super().state_dict(), "masters": masters}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes them over at the next step, where they round to what is there then."""
        super().load_state_dict(state)
        self._masters = {}
        self._told = {int(place): held for place, held in state.get("masters", {}).items()}

    def _take_told(self) -> None:
        for place, parameter in enumerate(self.parameters()):
            held = self._told.get(place)
            if held is not None and parameter.dtype in HALF:
                own = held.detach().to(parameter.device, torch.float32, copy=True)
                self._masters[id(parameter)] = (parameter, own)
        self._told = {}


INTERVENTION = Float32State
