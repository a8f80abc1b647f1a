"""Gives each logged value to its update, whether the loop logs before or after it steps."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

Number: TypeAlias = float | Tensor
Row: TypeAlias = tuple[int, dict[str, Number]]
HostRow: TypeAlias = tuple[int, dict[str, float]]


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

    @property
    def num_losses(self) -> int:
        """Losses that wait for their row."""
        return len(self._with_loss.get("loss", ()))

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
        rows = [finished] if (finished := self._finished())[1] else []
        self.last += 1
        if self.order == "after":
            self._open = dict(values)
        elif row := _emptied(self._with_loss) | dict(values):
            rows.append((self.last, row))
        return rows

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
    if not values:
        return {}
    merged = {name: _mean(several) for name, several in values.items()}
    values.clear()
    return merged


def _mean(values: list[Number]) -> Number:
    if len(values) == 1:
        return values[0]
    if any(isinstance(value, Tensor) for value in values):
        return torch.stack([_wide(value) for value in values]).mean()
    return sum(values) / len(values)


def _wide(value: Number) -> Tensor:
    if isinstance(value, Tensor):
        return value.double()
    return torch.tensor(value, dtype=torch.float64, device="cpu")


def on_device(rows: list[Row]) -> bool:
    """Whether a number of these waits where reading it would be waiting for it."""
    return any(isinstance(value, Tensor) for _, values in rows for value in values.values())


class Crossing:
    """Rows on their way from devices to the host; first come, first told."""

    def __init__(self) -> None:
        self._batches: deque[_Batch] = deque()

    def __bool__(self) -> bool:
        return bool(self._batches)

    def send(self, rows: list[Row], note: int = 0) -> None:
        """Starts one transfer a device; `note` comes back with the rows."""
        by_device: dict[torch.device, list[tuple[dict[str, Number], str, Tensor]]] = {}
        for _, values in rows:
            for name, value in values.items():
                if isinstance(value, Tensor):
                    by_device.setdefault(value.device, []).append((values, name, value))
        batch = _Batch(rows, note)
        for device, cells in by_device.items():
            stacked = torch.stack([value.double().reshape(()) for _, _, value in cells])
            batch.numbers.append(stacked.to("cpu", non_blocking=True))
            batch.places.append([(values, name) for values, name, _ in cells])
            if device.type == "cuda":
                event = torch.cuda.Event()  # type: ignore[no-untyped-call]
                event.record(torch.cuda.current_stream(device))
                batch.events.append(event)
        self._batches.append(batch)

    def arrived(self, *, wait: bool = False) -> list[tuple[list[HostRow], int]]:
        """(rows, note) of all batches whose numbers are there; with `wait` of all there are."""
        told = []
        while self._batches and (wait or all(e.query() for e in self._batches[0].events)):
            batch = self._batches.popleft()
            for event in batch.events:
                event.synchronize()
            for numbers, places in zip(batch.numbers, batch.places, strict=True):
                for (values, name), number in zip(places, numbers.tolist(), strict=True):
                    values[name] = number
            host = [(step, {n: float(v) for n, v in values.items()}) for step, values in batch.rows]
            told.append((host, batch.note))
        return told


@dataclass(slots=True)
class _Batch:
    rows: list[Row]
    note: int
    numbers: list[Tensor] = field(default_factory=list)
    """Of each device; filled once the events have come."""
    places: list[list[tuple[dict[str, Number], str]]] = field(default_factory=list)
    events: list[Any] = field(default_factory=list)
