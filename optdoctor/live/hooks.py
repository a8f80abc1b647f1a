"""The hooks of a run in its optimizer, which may change hands while torch walks through them."""

import weakref
from collections.abc import Callable
from typing import Any, cast

from torch.optim import Optimizer

from optdoctor.optimizers import layers
from optdoctor.optimizers.untraced import num_steps_at_work, untraced

Hook = Callable[[Optimizer, Any, Any], None]
LOADING = "_optimizer_load_state_dict_post_hooks"


class Place:
    """One place among the hooks of a step; empty once its run is closed."""

    def __init__(self, hook: Hook) -> None:
        self.hook: Hook | None = hook

    def __call__(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self.hook is not None:
            self.hook(optimizer, args, kwargs)


Places = list[tuple[Place, Any]]
"""With the handle that takes each away."""
_LEFT: "weakref.WeakKeyDictionary[Optimizer, Places]" = weakref.WeakKeyDictionary()
"""Empty places that could not be taken away within a step. Who watches next takes them over."""


class Hooks:
    """Before and after each step, and after a state was loaded."""

    def __init__(
        self, optimizer: Optimizer, before: Hook, after: Hook, loaded: Callable[[Optimizer], None]
    ) -> None:
        self._optimizer = optimizer
        self._places = _LEFT.pop(optimizer, [])
        if self._places and num_steps_at_work(optimizer):
            for (place, _), hook in zip(self._places, (before, after), strict=True):
                place.hook = hook
        else:
            _take_away(self._places)
            self._places = []
            for register, hook in (
                (optimizer.register_step_pre_hook, before),
                (optimizer.register_step_post_hook, after),
            ):
                place = Place(hook)
                self._places.append((place, register(untraced(place.__call__))))
            # Within those of treatments, whichever came first: what they change for the step is
            # what the optimizer consumes.
            after_hooks = cast(Any, optimizer._optimizer_step_post_hooks)
            after_hooks.move_to_end(self._places[-1][1].id, last=False)
        self._loading = [
            one.register_load_state_dict_post_hook(loaded)
            for one in layers(optimizer)
            if hasattr(one, LOADING)
        ]

    def remove(self) -> None:
        """Nothing is called any more. Within a step the places stay: torch walks through them."""
        for handle in self._loading:
            handle.remove()
        for place, _ in self._places:
            place.hook = None
        if num_steps_at_work(self._optimizer):
            _LEFT[self._optimizer] = self._places
        else:
            _take_away(self._places)
        self._places, self._loading = [], []


def _take_away(places: Places) -> None:
    for _, handle in places:
        handle.remove()
