"""The hooks through which treatments act: one pair around each step of an optimizer.

The pair lies outside of all others, so that whoever watches the step sees what the optimizer is
given, as the doctor, whose numbers are of what was consumed. Seen in torch 2.4 to 2.13:
`_optimizer_step_pre_hooks` and `_optimizer_step_post_hooks` are ordered by their handles' ids.

A step that runs the model in a closure, as Lightning's do, finds its gradients only then. Where the
optimizer is known to call a closure once, it is called before the treatments act, and the step is
given its result.
"""

import weakref
from contextlib import suppress
from typing import Any, ClassVar, Protocol, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from optdoctor.optimizers import probe_of
from optdoctor.optimizers.untraced import num_steps_at_work, untraced
from optdoctor.trace import EventKind, Fact

SEVERAL_CALLS = frozenset({"lbfgs", "sam"})
"""Families that call a closure more than once a step: theirs is left to them."""
UNKNOWN = "its step runs the model in a closure, and nobody knows how often {} calls that"


class Seeing(Protocol):
    """Who wants to see gradients before treatments change them, as before a clip."""

    def before_clip(self, parameters: list[Tensor]) -> None:
        """They are about to be changed."""

    def after_clip(self, parameters: list[Tensor]) -> None:
        """They were."""


class Acting(Protocol):
    """What `Around` needs to know of an intervention."""

    name: ClassVar[str]
    changes_gradients: ClassVar[bool]

    def before(self) -> None:
        """A step begins."""

    def after(self) -> None:
        """It ended."""

    def undo(self) -> None:
        """It is switched off."""

    def note(
        self, text: str, old: Fact = None, new: Fact = None, kind: EventKind = "treatment"
    ) -> None:
        """It tells."""


class Around:
    """Calls the interventions of one optimizer in the order in which they were switched on, and
    after the step in the reverse order.

    One that raises is taken away and says so; the training goes on without it. One that is
    switched on or off within a step is so from its end.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._given: list[Acting] = []
        self._at_work: list[Acting] = []
        self._seeing: weakref.WeakSet[Seeing] = weakref.WeakSet()
        self._depth = 0
        self._handles: list[Any] = []
        self.closure_made = False
        """Whether the gradients of the step at work are there, though it was given a closure."""
        self._place()

    @property
    def within(self) -> bool:
        """Whether a step is at work."""
        optimizer = self._optimizer()
        return bool(self._depth and optimizer is not None and num_steps_at_work(optimizer))

    def add(self, one: Acting) -> None:
        """From the next step on."""
        self._given.append(one)

    def show(self, one: Seeing) -> None:
        """Shows it from now on what gradients were; it is held weakly."""
        self._seeing.add(one)

    def take_away(self, one: Acting) -> None:
        """What it borrowed for a step that is at work, or was broken off, it gives back; before it
        do those that came after it, who may have divided the groups that it had divided, and who
        act again from the next step."""
        if one in self._given:
            self._given.remove(one)
        while one in self._at_work:
            last = self._at_work.pop()
            if last is one:
                one.after()
            else:
                self._end(last)
        if not self._given and not self.within:
            for handle in self._handles:
                handle.remove()
            self._handles = []

    def _place(self) -> None:
        optimizer = self._optimizer()
        if optimizer is None or self._handles:
            return
        first = optimizer.register_step_pre_hook(untraced(self._before))
        last = optimizer.register_step_post_hook(untraced(self._after))
        cast(Any, optimizer._optimizer_step_pre_hooks).move_to_end(first.id, last=False)
        self._handles = [first, last]

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        self._depth = num_steps_at_work(optimizer) if self._depth else 1
        if self._depth > 1:  # a step of a base class within this one
            return None
        self.give_back()  # of a step that an exception left
        self.closure_made = False
        if not self._given:
            return None
        args, kwargs = self._with_gradients(optimizer, args, kwargs)
        given = list(self._given)
        seeing = list(self._seeing) if any(one.changes_gradients for one in given) else []
        parameters = [p for group in optimizer.param_groups * bool(seeing) for p in group["params"]]
        for eye in seeing:
            eye.before_clip(parameters)
        self._act(given)
        for eye in seeing:
            eye.after_clip(parameters)
        return (args, kwargs)

    def _with_gradients(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """What the step is to be given, once its gradients are there."""
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        probe = probe_of(optimizer)
        if not callable(closure) or probe.family in SEVERAL_CALLS:
            return args, kwargs
        if not probe.matches:
            for one in list(self._given):
                one.note(f"{one.name} is switched off: {UNKNOWN.format(type(optimizer).__name__)}")
                one.undo()
            return args, kwargs
        with torch.enable_grad():
            loss = closure()
        self.closure_made = True

        def made() -> Any:
            return loss

        if "closure" in kwargs:
            return args, {**kwargs, "closure": made}
        return (args[0], made, *args[2:]), kwargs

    def _act(self, given: list[Acting]) -> None:
        for one in given:
            self._at_work.append(one)
            try:
                one.before()
            except Exception as error:
                self._fail(one, error)

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        ended, self._depth = self._depth == 1, max(self._depth - 1, 0)
        if ended:
            self.give_back()

    def give_back(self) -> None:
        """What treatments borrowed for a step that is over or was broken off."""
        while self._at_work:
            self._end(self._at_work.pop())

    def _end(self, one: Acting) -> None:
        try:
            one.after()
        except Exception as error:
            self._fail(one, error)

    def _fail(self, one: Acting, error: Exception) -> None:
        said = f"{one.name} failed and is switched off, {type(error).__name__}: {error}"
        with suppress(Exception):
            one.note(said, kind="doctor-failed")
        with suppress(Exception):  # taken away it is, even if it cannot give back
            one.undo()


_AROUND: "weakref.WeakKeyDictionary[Optimizer, Around]" = weakref.WeakKeyDictionary()


def around(optimizer: Optimizer) -> Around:
    """The pair of hooks of this optimizer: there is one, however many treatments."""
    found = _AROUND.get(optimizer)
    if found is None:
        found = _AROUND[optimizer] = Around(optimizer)
    found._place()
    return found


def closure_is_made(optimizer: Optimizer) -> bool:
    """Whether the step at work was given a closure that has been called for it."""
    found = _AROUND.get(optimizer)
    return found is not None and found.closure_made
