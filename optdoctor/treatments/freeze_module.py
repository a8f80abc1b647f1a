"""Freeze module: an ablation, to see whether the run needs what some modules learn.

It answers a question and cures nothing. Freezing attention cured none of the overfitting runs of
small trainings (0 of 2; more data cured 5 of 5). Where attention had twenty times its rate freezing
it helped (2 of 2), as giving it its rate did (5 of 5).
What is frozen are weights: dropout and the running statistics of batch norms go on.
"""

import re
from collections.abc import Sequence

from torch import Tensor

from optdoctor.optimizers import probe_of
from optdoctor.treatments.gradients import several_train
from optdoctor.treatments.intervention import Intervention, Refused
from optdoctor.treatments.name_patterns import Pattern, chosen, names_of


class FreezeModule(Intervention):
    """Freezes what is named by `modules`, one pattern or several: no update, no decay, no moment
    and no counter of it moves while it is switched on.

    A pattern is the name of a module or parameter, with wildcards if need be ("*.attn*"), or
    `re.compile(..)`, which is searched for. `requires_grad` is off meanwhile, so that the backward
    pass is spared the work and clips do not count those gradients; gradients that are there all the
    same are set aside for each step. Where several processes train, `requires_grad` stays as it is,
    since DistributedDataParallel waits for the gradients it was built for: nothing is spared then.

    Undone, `requires_grad` is on again where this switched it off: what the user had frozen stays
    so, and what he unfroze meanwhile too. With reentrant checkpointing a part whose inputs and
    weights are all frozen passes no gradient on: freezing embeddings needs
    `model.enable_input_require_grads()` there.

    Refuses: no model, names that match nothing, modules that hold nothing trainable of this
    optimizer, nothing left to train, and L-BFGS, which moves all along one direction.
    """

    name = "freeze-module"
    safety = "manual"

    def __init__(self, modules: Pattern | Sequence[Pattern]) -> None:
        self.patterns = [modules] if isinstance(modules, str | re.Pattern) else list(modules)
        if not self.patterns or not all(self.patterns):
            raise ValueError("modules must name at least one module")
        self._frozen: list[Tensor] = []
        self._switched: list[Tensor] = []
        self._kept: list[tuple[Tensor, Tensor]] = []

    def check(self) -> None:
        """Refuses where nothing would be frozen, or everything."""
        if self.model is None:
            raise Refused(f"{self.name} finds modules by name", "give it the model")
        if probe_of(self.optimizer).family == "lbfgs":
            raise Refused(
                f"{self.name} freezes tensors, and {type(self.optimizer).__name__} moves all along"
                " one direction",
                "use an optimizer that moves each tensor by itself",
            )
        found = self._found()
        trainable = [p for p in self.parameters() if p.requires_grad]
        if not any(id(p) in found for p in trainable):
            raise Refused(
                f"{self.name}: nothing that this optimizer trains is in {self._told()}",
                "name a module that it trains",
            )
        if all(id(p) in found for p in trainable):
            raise Refused(f"{self.name} would leave nothing to train", "name fewer modules")

    def begin(self) -> None:
        """Switches `requires_grad` off."""
        found = self._found()
        self._frozen = [p for p in self.parameters() if id(p) in found]
        self._switched = []
        if not several_train():
            self._switched = [p for p in self._frozen if p.requires_grad and p.is_leaf]
        for parameter in self._switched:
            parameter.requires_grad_(False)
        weights = sum(p.numel() for p in self._frozen)
        self.note(f"{self.name}: {self._told()} is frozen, {weights:,} weights")

    def before(self) -> None:
        """Gradients of before it was switched on, or of who switched it back, are set aside."""
        for parameter in self._frozen:
            if parameter.grad is not None:
                self._kept.append((parameter, parameter.grad))
                parameter.grad = None

    def after(self) -> None:
        """The very tensors again."""
        while self._kept:
            parameter, gradient = self._kept.pop()
            if parameter.grad is None:
                parameter.grad = gradient

    def end(self) -> None:
        """`requires_grad` as it was."""
        self.after()
        for parameter in self._switched:
            parameter.requires_grad_(True)
        self._frozen, self._switched = [], []
        self.note(f"{self.name} leaves: {self._told()} trains again", kind="undo")

    def _found(self) -> set[int]:
        assert self.model is not None
        names = names_of(self.model)
        try:
            return set().union(*(chosen(pattern, names) for pattern in self.patterns))
        except ValueError as error:
            reason, _, remedy = str(error).partition(": ")
            raise Refused(f"{self.name}: {reason}", remedy) from None

    def _told(self) -> str:
        return ", ".join(p if isinstance(p, str) else p.pattern for p in self.patterns)


INTERVENTION = FreezeModule
