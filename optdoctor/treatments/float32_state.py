"""Updates in float32 of a model in 16 bits: float32 weights behind the model's, float32 moments.

In float16 Adam's epsilon is 0 and small second moments vanish, in bfloat16 most small updates are
rounded away. Both are gone where the optimizer keeps its own float32 copy of the weights ("master
weights", Micikevicius et al. 2018, arXiv 1710.03740). Half gradients stay half: what underflows in
the backward pass is lost all the same, and needs a loss scale.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from optdoctor.treatments.in_float32 import HALF, InFloat32, is_half, narrow
from optdoctor.treatments.intervention import Intervention, Refused


class Float32State(Intervention):
    """Lets the optimizer work on float32 weights and moments; the model stays as it is.

    It costs 4 bytes a weight for the copy and 2 more for each moment. What somebody writes into the
    half weights between steps is taken over. Weights and moments of float32 are left alone; where
    nothing is of 16 bits it is refused, and so it is for states that are packed in 8 or 4 bits and
    for weights that are spread over processes. Undone, the moments are rounded back.
    """

    name = "float32-state"
    safety = "safe"

    def check(self) -> None:
        """Refuses where there is nothing to do, or nothing that can be done."""
        parameters = self.parameters()
        if any(hasattr(p, "to_local") and p.dtype in HALF for p in parameters):
            raise Refused(
                f"{self.name} cannot copy weights that are spread over processes",
                "let the framework keep float32 weights, as FSDP's MixedPrecision does",
            )
        states = [value for p in parameters for value in self._state(p).values()]
        if any(isinstance(v, Tensor) and v.dtype in (torch.uint8, torch.int8) for v in states):
            raise Refused(
                f"{self.name} cannot widen moments that are packed in 8 or 4 bits",
                "take the optimizer's 32-bit form",
            )
        half_state = any(isinstance(v, Tensor) and v.dtype in HALF for v in states)
        if not half_state and not any(map(is_half, parameters)):
            raise Refused(
                f"{self.name} has nothing to do: weights and moments are not in 16 bits",
                "leave it out",
            )

    def begin(self) -> None:
        """Copies nothing yet: the first step does."""
        self._masters: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
        """{id of a parameter: (it, its float32 weights, the half weights they were rounded to)}."""
        self._waiting: dict[int, Tensor] = {}
        """{position: master} that a checkpoint told."""
        self._dtypes = {id(p): p.dtype for p in self.parameters()}
        self._step = InFloat32(self._master_of, self._written)

    def before(self) -> None:
        """Lends float32 to the step."""
        self._step.lend(self.optimizer, self.parameters())

    def after(self) -> None:
        """Rounds to the model's weights what the step has made."""
        self._step.take_back()

    def end(self) -> None:
        """Rounds the moments back."""
        for parameter in self.parameters():
            half = parameter.dtype in HALF
            narrow(self.optimizer.state.get(parameter), parameter.dtype) if half else None
        self._masters, self._waiting = {}, {}

    def state_dict(self) -> dict[str, Any]:
        """The float32 weights, by position among the optimizer's parameters."""
        places = {id(p): i for i, p in enumerate(self.parameters())}
        kept = {places[key]: master for key, (_, master, _) in self._masters.items()}
        return {"masters": {str(i): master.clone() for i, master in sorted(kept.items())}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes them over where they round to the half weights that are there."""
        self._masters = {}
        self._waiting = {int(i): master for i, master in state.get("masters", {}).items()}

    def _master_of(self, parameter: Tensor) -> Tensor:
        half = parameter.data
        known = self._masters.get(id(parameter))
        master = None if known is None else known[1]
        if known is None and self._waiting:
            places = {id(p): i for i, p in enumerate(self.parameters())}
            master = self._waiting.pop(places[id(parameter)], None)
            master = None if master is None else master.to(half.device, torch.float32).clone()
            written = None if master is None else master.to(half.dtype)
        else:
            written = None if known is None else known[2]
        if master is None or written is None or master.shape != half.shape:
            master = half.to(torch.float32)
        else:
            # What was written into the half weights since is what the user wants. NaN is not equal
            # to itself, and is taken over.
            master = torch.where(half == written, master, half.to(torch.float32))
        self._masters[id(parameter)] = (parameter, master, half)
        return master

    def _written(self, parameter: Tensor, half: Tensor, new: Tensor) -> None:
        half.copy_(new)
        self._masters[id(parameter)] = (parameter, new, half.clone())

    def _state(self, parameter: Tensor) -> Mapping[str, Any]:
        state = self.optimizer.state.get(parameter)
        return state if isinstance(state, Mapping) else {}


INTERVENTION = Float32State
