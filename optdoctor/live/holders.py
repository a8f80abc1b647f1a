"""Which parameters other optimizers of this process hold."""

import gc
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from torch.optim import Optimizer


def held(optimizer: Any) -> Counter[int]:
    """How often its groups list each parameter, by identity; nothing where they cannot be read."""
    try:
        return Counter(id(p) for group in optimizer.param_groups for p in group["params"])
    except Exception:  # one half built, or none of ours: whatever it is, it tells of no parameter
        return Counter()


def held_by_any(wanted: Iterable[int]) -> set[int]:
    """Those of these identities that some living optimizer holds.

    Looks at every object that the garbage collector knows (0.3 s for half a million of them, with
    transformers and peft imported), so it is asked only where something is amiss. An object is
    asked for nothing but its type, which runs no code of its own.
    """
    wanted = set(wanted)
    found: set[int] = set()
    for thing in living(Optimizer):
        found |= wanted & held(thing).keys()
    return found


def living(kind: type) -> Iterator[Any]:
    """Every object of this class, or of one below it, that the garbage collector knows."""
    kinds = _ids_of_kinds(kind)
    return (thing for thing in gc.get_objects() if id(type(thing)) in kinds)


def _ids_of_kinds(kind: type) -> set[int]:
    """Identities of the class and all below it: a class may refuse to be hashed."""
    ids: set[int] = set()
    waiting: list[type] = [kind]
    while waiting:
        kind = waiting.pop()
        if id(kind) not in ids:
            ids.add(id(kind))
            waiting += type.__subclasses__(kind)
    return ids
