"""Gives each logged value to its update, whether the loop logs before or after it steps."""

from collections.abc import Mapping
from typing import Literal, TypeAlias

import torch
from torch import Tensor

Number: TypeAlias = float | Tensor
Row: TypeAlias = tuple[int, dict[str, Number]]


class Rows:
    """Values on their way into rows; several of one update, as of micro-batches, merge by mean.

    A value logged with a loss belongs to the update being made. One logged without, as an
    evaluation is, belongs to the last finished update.
    """

    def __init__(self, last: int) -> None:
        self.last = last
        """The last update that was attempted."""
        self.order: Literal["before", "after"] | None = None
        """Whether the loop logs its loss before or after it steps; learnt at the first update."""
        self.num_merged = 0
        """Updates that hold the mean of several losses."""
        self._with_loss: dict[str, list[Number]] = {}
        self._alone: dict[str, list[Number]] = {}
        self._open: dict[str, Number] = {}

    def log(self, values: Mapping[str, Number]) -> None:
        """Takes what the loop logged."""
        target = self._with_loss if "loss" in values else self._alone
        for name, value in values.items():
            target.setdefault(name, []).append(value)

    def update(self, values: Mapping[str, Number]) -> list[Row]:
        """Takes what the hooks saw of the next update; returns the rows that are complete."""
        if self.order is None:
            self.order = "before" if "loss" in self._with_loss else "after"
        self.num_merged += len(self._with_loss.get("loss", ())) > 1
        rows = [self._finished()]
        self.last += 1
        if self.order == "before":
            rows.append((self.last, _emptied(self._with_loss) | dict(values)))
        else:
            self._open = dict(values)
        return [(step, row) for step, row in rows if row]

    def flush(self) -> list[Row]:
        """The rest, at the end: a loss whose update never came belongs to the one being made."""
        self.num_merged += len(self._with_loss.get("loss", ())) > 1
        rows = [self._finished(), (self.last + 1, _emptied(self._with_loss))]
        return [(step, row) for step, row in rows if row]

    def _finished(self) -> Row:
        """What is left to tell of the last update. What the hooks saw outweighs what was logged."""
        row = _emptied(self._alone)
        if self.order == "after":
            row |= _emptied(self._with_loss) | self._open
            self._open = {}
        return self.last, row


def _emptied(values: dict[str, list[Number]]) -> dict[str, Number]:
    merged = {name: _mean(several) for name, several in values.items()}
    values.clear()
    return merged


def _mean(values: list[Number]) -> Number:
    if len(values) == 1:
        return values[0]
    if any(isinstance(value, Tensor) for value in values):
        return torch.stack([torch.as_tensor(value).double() for value in values]).mean()
    return sum(values) / len(values)


def to_host(rows: list[Row]) -> list[tuple[int, dict[str, float]]]:
    """The rows as numbers, all tensors in one transfer a device."""
    cells = [
        (values, name, value)
        for _, values in rows
        for name, value in values.items()
        if isinstance(value, Tensor)
    ]
    by_device: dict[torch.device, list[tuple[dict[str, Number], str, Tensor]]] = {}
    for cell in cells:
        by_device.setdefault(cell[2].device, []).append(cell)
    for several in by_device.values():
        numbers = torch.stack([t.double().reshape(()) for _, _, t in several]).tolist()
        for (values, name, _), value in zip(several, numbers, strict=True):
            values[name] = value
    return [(step, {name: float(v) for name, v in values.items()}) for step, values in rows]
