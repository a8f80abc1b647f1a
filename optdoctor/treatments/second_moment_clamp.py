"""Second-moment clamp: no element of Adam's second moment is below a minimum when a step begins.

It bounds the steps of elements whose moment has fallen to nearly 0. It is no cure of anything that
we measured: where moments vanish in float16 float32-state cures them and a clamp does not, and in
float32 a clamp at 1e-8, which is often advised, made steps of a healthy element 22 times smaller,
since the second moment is as small as the square of the gradient, and most elements of a healthy
small model are below that. In float16 that number is 0, and the clamp does nothing.

So no fixed minimum is the default. By itself it takes a share of the mean second moment of each
tensor: like the step of Adam that does not change when the loss is multiplied by a number. At 1e-6
an element's step is held to about a thousand times that of one with the same mean gradient and a
second moment of the tensor's mean.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from optdoctor.optimizers import probe_of, reader_of
from optdoctor.treatments.clamped_steps import ClampedSteps
from optdoctor.treatments.intervention import Intervention, Refused
from optdoctor.treatments.needs import gradients_before
from optdoctor.treatments.precision import is_zero_in

FAMILIES = {"adam", "nadam", "radam", "ademamix", "adabelief", "rmsprop"}
"""Those that divide by the root of a plain mean of squares, one number for each weight."""


class SecondMomentClamp(Intervention):
    """Raises elements of the second moment to `minimum`, or to `share` of the mean of their tensor,
    before each step.

    It tells at its 1st, 2nd, 4th, 8th .. step that changed any how many elements were changed, and
    how large the steps become that Adam's rule makes of these moments; every step waits once for
    the device. Passed over are sparse and complex gradients and moments that are packed or spread
    over processes. What was raised stays so when it is undone.

    Refused: optimizers without such a moment; a minimum that is 0 in the dtype of the moment, and
    a share where the moment is in float16, whose small numbers are 0 before it is asked. Where
    there is no moment before the first step this is looked at when there is one.
    """

    name = "second-moment-clamp"
    safety = "risky"

    def __init__(self, minimum: float | None = None, *, share: float = 1e-6) -> None:
        if minimum is not None and not 0 < minimum < float("inf"):
            raise ValueError(f"minimum must be above 0, in squared gradients, not {minimum!r}")
        if not 0 < share < 1:
            raise ValueError(f"share must be between 0 and 1, not {share!r}")
        self.minimum, self.share = minimum, share
        self._steps = self._changed = 0

    def check(self) -> None:
        """Refuses other optimizers, and a minimum that the moment cannot hold."""
        gradients_before(self.name, self.optimizer)
        probe = probe_of(self.optimizer)
        if probe.family not in FAMILIES:
            raise Refused(
                f"{self.name} needs a mean of squares for each weight, and "
                f"{type(self.optimizer).__name__} keeps none that it knows",
                "leave it out",
            )
        found = {moment.dtype for _, moment, _ in self._moments()}
        expected = {probe.state_dtype(p.dtype) for p in self.parameters() if not p.is_complex()}
        for dtype in found or expected:
            self._refuse_zero(dtype)

    def _refuse_zero(self, dtype: torch.dtype) -> None:
        told = str(dtype).removeprefix("torch.")
        remedy = "use float32-state, which keeps small moments"
        if self.minimum is None and dtype == torch.float16:
            raise Refused(
                f"{self.name} cannot take a share of a mean in {told}, where small moments are 0 "
                "already",
                remedy,
            )
        if self.minimum is not None and is_zero_in(self.minimum, dtype):
            smallest = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
            raise Refused(
                f"a minimum of {self.minimum:g} is 0 in {told}, the dtype of the second moment, "
                f"whose smallest number is {smallest:.2g}: it would change nothing",
                remedy,
            )

    def before(self) -> None:
        """Raises what is too small."""
        changed = ClampedSteps(self.optimizer)
        for parameter, moment, group in self._moments():
            if not moment.numel():
                continue
            self._refuse_zero(moment.dtype)
            minimum = self._minimum_of(moment)
            low = moment < minimum
            changed.add(parameter, moment, minimum, low, group)
            moment.copy_(torch.where(low, minimum, moment))
        count = changed.count()
        if not count:
            return
        self._steps += 1
        self._changed += count
        if self._steps.bit_count() == 1:
            text, old, new = changed.told()
            self.note(f"{self.name} raised {text}", old, new)

    def _minimum_of(self, moment: Tensor) -> Tensor:
        """In the dtype of the moment; NaN and infinity do not count for the mean."""
        if self.minimum is not None:
            return torch.full((), self.minimum, dtype=moment.dtype, device=moment.device)
        mean = moment.to(torch.float32).nan_to_num(0.0, 0.0, 0.0).mean()
        return (mean * self.share).to(moment.dtype)

    def _moments(self) -> list[tuple[Tensor, Tensor, Mapping[str, Any]]]:
        """(parameter, its second moment as it lies in the state, its group) of those that have a
        dense gradient: others take no step, or one of few elements."""
        probe, read = probe_of(self.optimizer), reader_of(self.optimizer)
        found = {}
        for group in self.optimizer.param_groups:
            for p in group["params"]:
                state = read(p)
                second = probe.layout(state, group).second
                if second is None or second.form != "full":
                    continue
                if p.grad is None or p.grad.layout != torch.strided or p.grad.is_complex():
                    continue
                held = state.get(second.key)
                if second.decode is None and isinstance(held, Tensor) and _is_plain(held):
                    found[id(p)] = (p, held, group)
        return list(found.values())

    def end(self) -> None:
        """Says how much it changed."""
        if self._steps:
            self.note(
                f"{self.name} raised {self._changed} elements in {self._steps} steps", kind="undo"
            )
        self._steps = self._changed = 0

    def state_dict(self) -> dict[str, Any]:
        """How much it changed."""
        return {"steps": self._steps, "changed": self._changed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on counting."""
        self._steps, self._changed = int(state["steps"]), int(state["changed"])


def _is_plain(held: Tensor) -> bool:
    plain = held.layout == torch.strided and not hasattr(held, "to_local")
    return plain and held.is_floating_point() and not hasattr(held, "codes")


INTERVENTION = SecondMomentClamp
