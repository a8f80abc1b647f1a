"""Numbers of samples on their way from devices to the host, without making a training wait."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from optdoctor.live.sums import Sheet

SLOTS = 4
"""Samples on their way at once; one more is dropped and counted."""

Table = dict[str, NDArray[np.float64]]
"""{statistic: [P]}"""


@dataclass(slots=True)
class _Slot:
    sheet: Sheet
    context: tuple[Any, ...]
    copies: dict[torch.device, Tensor]
    """Filled once its event has come."""
    events: list[Any] = field(default_factory=list)

    def arrived(self) -> bool:
        return all(event.query() for event in self.events)


class Transfer:
    """Of samples of P tensors; first come, first told."""

    def __init__(self, num_tensors: int) -> None:
        self._num_tensors = num_tensors
        self._on_their_way: deque[_Slot] = deque()
        self.dropped = 0

    def read(self, sheet: Sheet, over: Table | None = None) -> Table:
        """The numbers of a sheet now, laid over a table; waits for devices."""
        packed = {d: sheet.packed(d).cpu().numpy() for d in sheet.devices()}
        return sheet.unpacked(packed, self._num_tensors, over)

    def send(self, sheet: Sheet, context: tuple[Any, ...]) -> None:
        """Starts the copies of a sheet; drops it where the slots are full."""
        if len(self._on_their_way) >= SLOTS:
            self.dropped += 1
            return
        slot = _Slot(sheet, context, {})
        for device in sheet.devices():
            packed = sheet.packed(device)
            slot.copies[device] = packed.to("cpu", non_blocking=True)
            if device.type == "cuda":
                event = torch.cuda.Event()  # type: ignore[no-untyped-call]
                event.record(torch.cuda.current_stream(device))
                slot.events.append(event)
        self._on_their_way.append(slot)

    def arrived(self, *, wait: bool = False) -> list[tuple[Table, tuple[Any, ...]]]:
        """(numbers, context) of the samples whose copies are done, in their order."""
        told = []
        while self._on_their_way and (wait or self._on_their_way[0].arrived()):
            slot = self._on_their_way.popleft()
            if wait:
                for event in slot.events:
                    event.synchronize()
            packed = {device: copy.numpy() for device, copy in slot.copies.items()}
            told.append((slot.sheet.unpacked(packed, self._num_tensors), slot.context))
        return told
