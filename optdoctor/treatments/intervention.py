"""What acts on a training, and how it is switched on and off."""

from collections import deque
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Self

from torch import Tensor, nn

from optdoctor.errors import Told
from optdoctor.findings import Safety
from optdoctor.optimizers import innermost
from optdoctor.trace import EventKind, Fact
from optdoctor.treatments.around import Around, around

MAX_NOTES = 100

Tell = Callable[[EventKind, str, Fact, Fact], None]
"""Takes an event: its kind, its text, the value before and after."""


class Refused(Told, ValueError):
    """A treatment that cannot act on this training: why, and what to do instead."""


class Intervention:
    """Something done to a training while the switch is on.

    It acts between the beginning and the end of a step of the optimizer, and leaves settings
    outside of steps as the user set them: schedules and checkpoints know nothing of it, and once it
    is undone the run goes on as one that was never treated goes on from the same weights and state.

    A subclass is one file. It may override `check`, `begin`, `before`, `after`, `end` and, if it
    remembers more than its arguments, `state_dict` and `load_state_dict`. Usable alone,
    `clip = AdaptiveClipping().apply(optimizer)`, or by name in `optdoctor.watch(treat=[..])`.
    """

    name: ClassVar[str]
    """Kebab, as its file."""
    safety: ClassVar[Safety]
    changes_gradients: ClassVar[bool] = False
    """Whether the optimizer finds other gradients than the loop has left: the doctor then looks at
    them before, as it does where a loop clips."""
    optimizer: Any = None
    """The innermost torch optimizer; None while it is switched off."""
    model: nn.Module | None = None
    _around: Around | None = None
    _tell: Tell | None = None

    def apply(
        self,
        optimizer: Any,
        model: nn.Module | None = None,
        *,
        facts: Mapping[str, Fact] = MappingProxyType({}),
        tell: Tell | None = None,
    ) -> Self:
        """Switches it on from the next step of `optimizer`, a torch optimizer or a wrapper of one.

        `model` gives tensors their names and modules; some need it. `facts` is what is known of the
        run, by run channels, as `max_grad_norm`. `tell` takes its events, which are kept in `notes`
        besides.

        Raises:
            TypeError: `optimizer` holds no torch optimizer.
            Refused: it cannot act on this training, or is switched on already.
        """
        if self.applied:
            raise Refused(f"{self.name} is switched on already", "make another one, or undo() it")
        self.optimizer, self.model, self._tell = innermost(optimizer), model, tell
        self.facts = dict(facts)
        self.notes: deque[str] = deque(maxlen=MAX_NOTES)
        try:
            self.check()
            self.begin()
        except BaseException:
            self.optimizer = self.model = self._tell = None
            raise
        self._around = around(self.optimizer)
        self._around.add(self)
        return self

    def undo(self) -> None:
        """Switches it off, at once where no step is at work, else after it; twice is once."""
        hooks, self._around = self._around, None
        if hooks is None:
            return
        try:
            hooks.take_away(self)
            self.end()
        finally:
            self.optimizer = self.model = None

    @property
    def applied(self) -> bool:
        """Whether it is switched on."""
        return self._around is not None

    def note(
        self, text: str, old: Fact = None, new: Fact = None, kind: EventKind = "treatment"
    ) -> None:
        """Tells what it did: an event of the run, and a line of `notes`."""
        self.notes.append(text)
        if self._tell is not None:
            self._tell(kind, text, old, new)

    def parameters(self) -> list[Tensor]:
        """Those of the optimizer, each once, in the order of its groups."""
        groups = self.optimizer.param_groups
        return list({id(p): p for group in groups for p in group["params"]}.values())

    def names(self) -> dict[int, str]:
        """{id of a parameter: its name in the model}; by position where no model was given."""
        if self.model is not None:
            return {id(p): name for name, p in self.model.named_parameters()}
        return {id(p): f"parameter {i}" for i, p in enumerate(self.parameters())}

    def check(self) -> None:
        """Looks whether it can act on `self.optimizer` and `self.model`, and changes nothing.

        Raises:
            Refused: it cannot.
        """

    def begin(self) -> None:
        """Prepares what it needs; the first `before` comes later."""

    def before(self) -> None:
        """A step begins: its gradients are there, clipped and unscaled as the loop does it."""

    def after(self) -> None:
        """The step has ended, or was left by an exception: gives back what `before` borrowed."""

    def end(self) -> None:
        """It is switched off: gives back everything."""

    def state_dict(self) -> dict[str, Any]:
        """What a resumed training needs to go on as if it had never stopped."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes what `state_dict` gave, after `apply`."""

    def __repr__(self) -> str:
        given = {k: v for k, v in vars(self).items() if isinstance(v, int | float | str | None)}
        told = ", ".join(f"{k}={v!r}" for k, v in given.items() if not k.startswith("_"))
        return f"{type(self).__name__}({told})"
