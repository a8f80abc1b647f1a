"""Settings of an optimizer's groups, changed for one step."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

Group = dict[str, Any]
MISSING = object()


class Borrowed:
    """Changes settings of groups and puts back what was there, where nobody has changed it since.

    Between steps schedules, checkpoints and the user see their own values.
    """

    def __init__(self) -> None:
        self._changed: list[tuple[Group, str, Any, Any]] = []

    def put(self, group: Group, key: str, value: Any) -> None:
        """Sets one."""
        self._changed.append((group, key, group.get(key, MISSING), value))
        group[key] = value

    def multiply(self, optimizer: Optimizer, factor: float, key: str = "lr") -> None:
        """Multiplies that setting of all groups that have it; a tensor stays one."""
        for group in optimizer.param_groups:
            if group.get(key) is not None:
                self.put(group, key, group[key] * factor)

    def give_back(self) -> None:
        """Restores all, the last change first."""
        while self._changed:
            group, key, old, new = self._changed.pop()
            if group.get(key, MISSING) is not new:
                continue
            if old is MISSING:
                del group[key]
            else:
                group[key] = old


class Split:
    """Divides the groups of an optimizer for one step, so that parts of one have rates of their
    own, or another setting under `key`; what the step writes into the parts goes back into the
    group."""

    def __init__(self, optimizer: Optimizer, key: str = "lr") -> None:
        self._optimizer, self._key = optimizer, key
        self._whole: list[Group] = []
        self._parts: list[tuple[Group, list[Group]]] = []

    def open(self, part_of: Mapping[int, str], factors: Mapping[str, float]) -> None:
        """`part_of` {id of a parameter: name of its part}, `factors` {part: factor of its setting};
        1 for all others. The parts of one group are in the order of their first parameters, and
        the same at every step, whatever the factors. A group without the setting stays whole."""
        if self._parts:
            self.close()
        groups = self._optimizer.param_groups
        self._whole = list(groups)
        for group in self._whole:
            if group.get(self._key) is None or not group["params"]:
                self._parts.append((group, [group]))
                continue
            by_part: dict[str, list[Tensor]] = {}
            for parameter in group["params"]:
                by_part.setdefault(part_of.get(id(parameter), ""), []).append(parameter)
            made = [
                {**group, "params": params, self._key: group[self._key] * factors.get(part, 1.0)}
                for part, params in by_part.items()
            ]
            self._parts.append((group, made))
        groups[:] = [one for _, made in self._parts for one in made]

    def close(self) -> None:
        """The groups as they were."""
        if not self._parts:
            return
        self._optimizer.param_groups[:] = self._whole
        for group, made in self._parts:
            _write_back(group, made, self._key)
        self._whole, self._parts = [], []


def _write_back(group: Group, made: Sequence[Group], changed: str) -> None:
    for key, value in (made[0] if made else {}).items():
        if key not in ("params", changed) and group.get(key, MISSING) is not value:
            group[key] = value
