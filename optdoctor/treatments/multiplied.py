"""All rates times one factor for each step, the same in all processes."""

from abc import ABC, abstractmethod
from typing import Any

import torch

from optdoctor.treatments.gradients import several_train
from optdoctor.treatments.intervention import Intervention
from optdoctor.treatments.rate_needs import obeyed_rates
from optdoctor.treatments.rates import Borrowed


class Multiplied(Intervention, ABC):
    """A subclass says the factor of the next step in `factor_now`.

    Where several processes train, the least factor of all holds: losses are of one process each,
    or are known to one alone. That asks all of them at every step and waits for the answer, so that
    it has to be switched on in all. Alone, nothing is read from the device for it.
    """

    def __init__(self) -> None:
        self._borrowed = Borrowed()

    @abstractmethod
    def factor_now(self) -> float:
        """Of all rates, for the step that begins."""

    def check(self) -> None:
        """Refuses where the rate does not move the weights."""
        obeyed_rates(self.name, self.optimizer)

    def before(self) -> None:
        """Multiplies."""
        factor = least_of_all(self.factor_now(), self.optimizer)
        if factor != 1:
            self._borrowed.multiply(self.optimizer, factor)

    def after(self) -> None:
        """The rates as they were."""
        self._borrowed.give_back()

    def end(self) -> None:
        """Says from where the rates jump."""
        self._borrowed.give_back()
        factor = self.factor_now()
        if factor != 1:
            self.note(
                f"{self.name} leaves: rates go from {factor:.3g} of what is set to all of it",
                factor,
                1.0,
                kind="undo",
            )


def least_of_all(factor: float, optimizer: Any) -> float:
    """In all processes: each has to ask at every step."""
    if not several_train():
        return factor
    distributed = torch.distributed
    devices = [p.device for group in optimizer.param_groups for p in group["params"]]
    device = devices[0] if devices else torch.device("cpu")
    asked = torch.tensor([factor], dtype=torch.float32, device=device)
    distributed.all_reduce(asked, op=distributed.ReduceOp.MIN)
    return float(asked)
