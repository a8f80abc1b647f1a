"""Another epsilon for every step.

Epsilon is what an adaptive optimizer adds to the root of the second moment before it divides. Where
moments vanish in float16 it alone bounds the step: at 1e-4 small trainings in float16 survived and
were as good as float32, at 1e-6 they did not (steps 99 times too large), and 1e-8 is 0 there. That
1e-4 did so is luck: it was about the size of the gradients. Where gradients are much smaller than
epsilon the optimizer is no longer adaptive and the step shrinks with the gradient: in float32 1e-4
changed nothing, and 1e-2 made the loss 11 % worse. float32-state cures the cause.
"""

from typing import Any

from optdoctor.optimizers import keeps_rule, probe_of
from optdoctor.treatments.intervention import Intervention, Refused
from optdoctor.treatments.precision import is_zero_in, step_dtype
from optdoctor.treatments.rates import Borrowed

UNDIVIDED = {"lars", "lion", "muon", "sgd"}
"""Families that may have an eps in their groups, but do not add it to the root of a moment."""


class EpsilonChange(Intervention):
    """Sets `eps` of all groups during steps; between them groups hold the user's own.

    Refused: optimizers without one epsilon in their groups, an epsilon that is 0 in the dtype in
    which the step is computed, and one that all groups have already.
    """

    name = "epsilon-change"
    safety = "risky"

    def __init__(self, eps: float = 1e-4) -> None:
        if not 0 < eps < float("inf"):
            raise ValueError(f"eps must be above 0, not {eps!r}")
        self.eps = eps

    def check(self) -> None:
        """Refuses where it could not act."""
        groups = self.optimizer.param_groups
        kind = type(self.optimizer).__name__
        unused = probe_of(self.optimizer).family in UNDIVIDED and keeps_rule(self.optimizer)
        if unused or any(not _is_number(group.get("eps")) for group in groups):
            raise Refused(
                f"{self.name} sets the one eps that steps divide by, and those of {kind} do not",
                "leave it out: nothing is divided by a root plus eps, or not by one",
            )
        if all(float(group["eps"]) == self.eps for group in groups):
            raise Refused(f"eps is {self.eps:g} already", "give another one")
        for group in groups:
            for dtype in {step_dtype(self.optimizer, group, p) for p in group["params"]}:
                if not dtype.is_complex and is_zero_in(self.eps, dtype):
                    told = str(dtype).removeprefix("torch.")
                    raise Refused(
                        f"an eps of {self.eps:g} is 0 in {told}, in which the step is computed",
                        "use float32-state, or a larger eps",
                    )

    def begin(self) -> None:
        """Says what changes."""
        self._borrowed = Borrowed()
        own = sorted({float(group["eps"]) for group in self.optimizer.param_groups})
        told = ", ".join(f"{one:g}" for one in own)
        old = own[0] if len(own) == 1 else told
        self.note(f"{self.name}: eps {told} -> {self.eps:g} in every step", old, self.eps)

    def before(self) -> None:
        """Sets it; a group that came later and has none is left alone."""
        for group in self.optimizer.param_groups:
            if _is_number(group.get("eps")):
                self._borrowed.put(group, "eps", _as(self.eps, group["eps"]))

    def after(self) -> None:
        """Gives it back."""
        self._borrowed.give_back()


def _is_number(value: Any) -> bool:
    single = getattr(value, "numel", lambda: 0)() == 1
    return single or (isinstance(value, int | float) and not isinstance(value, bool))


def _as(eps: float, like: Any) -> Any:
    return like.new_full(like.shape, eps) if hasattr(like, "new_full") else eps


INTERVENTION = EpsilonChange
