"""What is known of one optimizer while one table of its tensors holds."""

from dataclasses import dataclass, field

from torch import Tensor
from torch.optim import Optimizer

from optdoctor.live.tensors import Tracked
from optdoctor.live.units import MEASURED, Unit, units_of
from optdoctor.optimizers import keeps_rule, settings_of
from optdoctor.optimizers.probe import Group, Probe


@dataclass(frozen=True)
class Watched:
    """An optimizer, what is known of its kind, and the tensors that it moves."""

    optimizer: Optimizer
    probe: Probe
    tracked: Tracked
    units: list[Unit] = field(init=False)
    foretells: bool = field(init=False)
    """Whether the rule of its kind is known, and its own."""

    def __post_init__(self) -> None:
        known = self.probe.foretell is not None and keeps_rule(self.optimizer)
        object.__setattr__(self, "units", units_of(self.tracked))
        object.__setattr__(self, "foretells", known)

    @property
    def num_tensors(self) -> int:
        """P."""
        return len(self.tracked.tensors)

    @property
    def follows_elements(self) -> bool:
        """Whether the rule is known, and tells the change of an element from that element."""
        return self.foretells and self.probe.scope == "element"

    def settings(self, group: int) -> Group:
        """What its probe is asked with."""
        return settings_of(self.optimizer, self.optimizer.param_groups[group])

    def gradient(self, position: int) -> Tensor | None:
        """What lies there now; None where it has no element, or none that can be measured."""
        grad = self.tracked.parameters[position].grad
        return grad if grad is not None and grad.numel() and grad.dtype in MEASURED else None
