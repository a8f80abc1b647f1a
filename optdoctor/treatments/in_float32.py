"""What treatments share that let an optimizer step in float32 though weights are of 16 bits."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from optdoctor.optimizers import probe_of
from optdoctor.treatments.intervention import Intervention, Refused
from optdoctor.treatments.needs import gradients_before
from optdoctor.treatments.rehearsal import rehearse
from optdoctor.treatments.swapped import HALF, closure_at_work, is_half, swap

NARROW = (torch.uint8, torch.int8)
NARROW_NAMES = ("8bit", "4bit", "fp8")


class InFloat32(Intervention, ABC):
    """Lends float32 weights, gradients and moments to each step; moments stay in float32.

    A subclass says which float32 weights a step gets (`lent`) and what of them is kept
    (`take_back`). Between steps the parameters are the user's own, of 16 bits, with the very
    gradients that they had, of which DDP holds views. A parameter without a gradient is left alone.
    """

    changes_gradients = True
    _lent: list[tuple[Tensor, Tensor]]
    _moments: dict[int, Mapping[str, Tensor]]
    """{position: moments} that a checkpoint told and no step has taken yet."""
    _on_trial = False

    @abstractmethod
    def lent(self, parameter: Tensor) -> Tensor:
        """The float32 weights of a parameter for the step that begins, as a leaf."""

    @abstractmethod
    def take_back(self, parameter: Tensor, weights: Tensor) -> None:
        """Writes to a parameter what is to be kept of its float32 weights."""

    def check(self) -> None:
        """Refuses what a step in float32 is not possible for."""
        gradients_before(self.name, self.optimizer)
        if not hasattr(torch._C, "_swap_tensor_impl"):
            raise Refused(f"{self.name} needs a newer torch", "update torch")
        if any(p.dtype in HALF and hasattr(p, "to_local") for p in self.parameters()):
            raise Refused(
                f"{self.name} cannot copy weights that are spread over processes",
                "keep float32 weights and let FSDP's MixedPrecision compute in 16 bits",
            )
        if self._is_packed():
            raise Refused(
                f"{self.name} cannot widen moments that are packed in 8 or 4 bits",
                "take the form of the optimizer that keeps them in 32 bits",
            )
        halves = [p for p in self.parameters() if p.dtype in HALF]
        if any(type(p).__torch_dispatch__ is not Tensor.__torch_dispatch__ for p in halves):
            raise Refused(
                f"{self.name} cannot exchange tensors of a class with operations of its own",
                "use plain tensors",
            )
        kind = type(self.optimizer)
        if not halves or self._on_trial or kind.__module__.startswith("torch.optim."):
            return
        if wrong := rehearse(self.optimizer, self._try):
            raise Refused(
                f"{self.name} does not suit {kind.__name__}: {wrong}",
                "keep float32 weights, or use an optimizer of torch.optim",
            )

    def _try(self, stand_in: Any) -> Callable[[], None]:
        trial = copy.copy(self)
        trial._on_trial = True
        return trial.apply(stand_in).undo

    def begin(self) -> None:
        """Copies nothing yet: the first step does."""
        self._lent, self._moments = [], {}

    def before(self) -> None:
        """Lends."""
        if closure_at_work(self.optimizer):
            raise Refused(
                f"{self.name} cannot lend weights to a step that runs the model in a closure",
                "compute gradients before the step",
            )
        with torch.no_grad():
            for place, parameter in enumerate(self.parameters()):
                if parameter.grad is None:
                    continue
                if parameter.dtype in HALF:
                    self._lend(parameter)
                state = self.optimizer.state.get(parameter)
                if isinstance(state, dict):
                    widen(state, self._moments.pop(place, {}))

    def _lend(self, parameter: Tensor) -> None:
        weights = self.lent(parameter).requires_grad_(parameter.requires_grad)
        gradient = parameter.grad
        assert gradient is not None
        weights.grad = gradient.to(torch.float32)
        swap(parameter, weights)
        self._lent.append((parameter, weights))

    def after(self) -> None:
        """Takes back."""
        with torch.no_grad():
            while self._lent:
                parameter, weights = self._lent.pop()
                swap(parameter, weights)
                weights.grad = None
                self.take_back(parameter, weights)

    def end(self) -> None:
        """Rounds the moments to what the optimizer would keep by itself."""
        keeps = probe_of(self.optimizer).state_dtype
        for parameter in self.parameters():
            state = self.optimizer.state.get(parameter)
            if parameter.dtype in HALF and isinstance(state, dict):
                narrow(state, keeps(parameter.dtype))
        self._moments = {}

    def state_dict(self) -> dict[str, Any]:
        """Moments of 16-bit weights in float32: the optimizer rounds them when it loads its own,
        and in float16 small second moments would be 0."""
        found = {}
        for place, parameter in enumerate(self.parameters()):
            state = self.optimizer.state.get(parameter)
            if parameter.dtype in HALF and isinstance(state, dict):
                found[str(place)] = {k: v.clone() for k, v in state.items() if is_moment(k, v)}
        return {"moments": found}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes moments over at the next step, where they round to those that the optimizer has."""
        self._moments = {int(place): held for place, held in state.get("moments", {}).items()}

    def _is_packed(self) -> bool:
        """By the state; before there is one by the class and by bitsandbytes' own argument."""
        # Optimizer8bit is bitsandbytes' base of all, of those in 32 bits too.
        names = {base.__name__ for base in type(self.optimizer).__mro__} - {"Optimizer8bit"}
        bits = getattr(getattr(self.optimizer, "args", None), "optim_bits", 32)
        if bits == 8 or any(part in name.lower() for name in names for part in NARROW_NAMES):
            return True
        states = (self.optimizer.state.get(p) for p in self.parameters())
        values = [v for s in states if isinstance(s, Mapping) for v in s.values()]
        tensors = [v for v in values if isinstance(v, Tensor)]
        return any(v.dtype in NARROW or hasattr(v, "codes") for v in tensors)


def is_moment(name: str, value: Any) -> bool:
    """Whether it is an entry of float32 that an optimizer casts to the weights' dtype."""
    if not isinstance(value, Tensor) or name == "step":
        return False
    return value.dtype == torch.float32 and value.dim() > 0


def widen(state: dict[str, Any], known: Mapping[str, Tensor]) -> None:
    """The 16-bit entries in float32 from now on; `known` where the entry is what it rounds to."""
    for name, value in state.items():
        if not is_half(value):
            continue
        wide, kept = value.to(torch.float32), known.get(name)
        if kept is not None and kept.shape == wide.shape:
            kept = kept.to(wide.device, torch.float32)
            wide = torch.where(kept.to(value.dtype) == value, kept, wide)
        state[name] = wide


def narrow(state: dict[str, Any], dtype: torch.dtype) -> None:
    """The float32 entries in that dtype: not counters."""
    for name, value in state.items():
        if is_moment(name, value):
            state[name] = value.to(dtype)
