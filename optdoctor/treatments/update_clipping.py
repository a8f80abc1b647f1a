"""Update clipping: the rate of a tensor falls where its gradient outgrows its second moment.

After StableAdamW (Wortsman et al. 2023, arXiv 2304.13013, algorithm 2): the rate of a tensor, and
with it its decay, is divided by max(1, RMS / threshold) with RMS = √mean(g² / max(v, eps²)), where
v is the second moment that this step will have, corrected for its beginning at zero.

There the threshold is 1. In small trainings an RMS above 1 was ordinary: the largest of healthy
runs was 1.6 to 2.4 by tensor. At 1 the clip made a run with a stale second moment worse (loss 2.84,
2.59 without it); at 2.5 it was worse with one seed and made no difference with another. So 2.5 is
the default, near the 2.3 from which the paper speaks of a spike, and nothing here says that it
helps small models.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from optdoctor.optimizers import probe_of, reader_of, settings_of
from optdoctor.optimizers.elements import wide
from optdoctor.optimizers.probe import Group, Probe, State
from optdoctor.treatments.gradients import scale_of
from optdoctor.treatments.intervention import Intervention, Refused
from optdoctor.treatments.needs import gradients_before
from optdoctor.treatments.rates import Split

FAMILIES = {"adam", "nadam", "radam", "ademamix"}
"""Those with betas and one rate for each group alone, whose second moment is a mean of squares and
who have no clip of their own."""
READABLE = ("full", "quantized")


class UpdateClipping(Intervention):
    """Divides the rate of each tensor by how far its gradient is above `threshold`, in units of
    the root of its second moment.

    A step waits once for the device: rates of groups are numbers of the host. Tensors above the
    threshold are stepped in groups of their own; the groups are the user's again after the step.
    Passed over are sparse and complex gradients, moments that are no plain mean of squares at
    their places, and sharded tensors, whose processes would have to agree.
    """

    name = "update-clipping"
    safety = "risky"

    def __init__(self, threshold: float = 2.5) -> None:
        if not 1 <= threshold < float("inf"):
            raise ValueError(
                f"threshold must be at least 1, not {threshold!r}: the root of a mean of squares is"
            )
        self.threshold = threshold
        self._split: Split | None = None
        self._clipped: dict[int, int] = {}
        self._largest = 0.0

    def check(self) -> None:
        """Refuses optimizers without a second moment, or with a clip of their own."""
        gradients_before(self.name, self.optimizer)
        family = probe_of(self.optimizer).family
        kind = type(self.optimizer).__name__
        if family in ("stable_adamw", "adafactor", "came"):
            raise Refused(f"{kind} clips its updates by itself", "set its own clip threshold")
        if family not in FAMILIES or not all("betas" in g for g in self.optimizer.param_groups):
            raise Refused(
                f"{self.name} needs the mean of squares of Adam, and {kind} keeps none that it "
                "knows",
                "use adaptive-clipping, which looks at gradients alone",
            )

    def begin(self) -> None:
        """Takes the groups."""
        self._split = Split(self.optimizer)

    def before(self) -> None:
        """Measures, and divides the rates of those that are above."""
        measured = self._measured()
        if not measured or self._split is None:
            return
        device = measured[0][1].device
        values = torch.stack([rms.to(device) for _, rms in measured]).tolist()
        above = {
            id(p): value
            for (p, _), value in zip(measured, values, strict=True)
            if self.threshold < value < float("inf")
        }
        if not above:
            return
        for key, value in above.items():
            self._clipped[key] = self._clipped.get(key, 0) + 1
            self._largest = max(self._largest, value)
        parts = {key: str(i) for i, key in enumerate(above)}
        self._split.open(parts, {parts[k]: self.threshold / v for k, v in above.items()})

    def _measured(self) -> list[tuple[Tensor, Tensor]]:
        """(tensor, its RMS) of those that have a moment and a gradient; on the device."""
        probe, read, scale = (
            probe_of(self.optimizer),
            reader_of(self.optimizer),
            scale_of(self.optimizer),
        )
        found: dict[int, tuple[Tensor, Tensor]] = {}
        for group in self.optimizer.param_groups:
            settings = settings_of(self.optimizer, group)
            for p in group["params"]:
                if p.grad is None or p.grad.layout != torch.strided or hasattr(p, "full_tensor"):
                    continue
                rms = _rms(p.grad.detach(), scale, read(p), settings, probe)
                if rms is not None:
                    found[id(p)] = (p, rms)
        return list(found.values())

    def after(self) -> None:
        """The groups as they were."""
        if self._split is not None:
            self._split.close()

    def end(self) -> None:
        """Says how often it acted."""
        self.after()
        names = self.names()
        if self._clipped:
            most = max(self._clipped, key=lambda key: self._clipped[key])
            self.note(
                f"{self.name} lowered the rate of single tensors {sum(self._clipped.values())} "
                f"times, most often of {names.get(most, 'one without a name')} "
                f"({self._clipped[most]}); the largest RMS was {self._largest:.3g}",
                kind="undo",
            )
        self._split, self._clipped, self._largest = None, {}, 0.0

    def state_dict(self) -> dict[str, Any]:
        """How often it acted, by the place of the tensor."""
        places = {id(p): i for i, p in enumerate(self.parameters())}
        clipped = {places[k]: n for k, n in self._clipped.items() if k in places}
        return {"clipped": clipped, "largest": self._largest}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on counting."""
        parameters = self.parameters()
        told: Mapping[int, int] = state.get("clipped", {})
        self._clipped = {id(parameters[i]): n for i, n in told.items() if i < len(parameters)}
        self._largest = float(state.get("largest", 0.0))


def _rms(
    gradient: Tensor, scale: Tensor | None, state: State, group: Group, probe: Probe
) -> Tensor | None:
    """√mean(g² / max(v, eps²)) with the v of this step; None where there is no such moment."""
    second = probe.layout(state, group).second
    if second is None or second.key not in state or second.form not in READABLE:
        return None
    count = probe.count(state, group)
    before = wide(second.read(state, group).detach())
    if (
        count is None
        or gradient.numel() == 0
        or gradient.is_complex()
        or before.shape != gradient.shape
    ):
        return None
    size = wide(gradient)
    size = size if scale is None else size / scale.to(size.device, size.dtype)
    beta2, eps = group["betas"][1], group.get("eps") or 0.0
    beta2 = beta2.to(size.device, size.dtype) if isinstance(beta2, Tensor) else beta2
    step = count.to(size.device, size.dtype) + 1 if isinstance(count, Tensor) else count + 1
    new = beta2 * before + (1 - beta2) * size.square()
    new = new / (1 - beta2**step)
    ratio = size.square() / new.clamp(min=max(float(eps) ** 2, torch.finfo(new.dtype).tiny))
    return ratio.mean().sqrt().float()


INTERVENTION = UpdateClipping
