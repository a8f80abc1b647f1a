"""MMCV's .log.json: one JSON object a logged iteration, the environment in front.

`iter` counts within the epoch where the run is counted in epochs, and none of the lines says how
many there are.
"""

import json
import math
import re
from dataclasses import dataclass, field
from typing import Any

from optdoctor.knowledge.log_names import FREE_NAMES, UNUSED_NAMES
from optdoctor.reading.log import Log, number
from optdoctor.reading.reader import Head, Reader, Source

_ROW = re.compile(r'\s*\{"mode": "(?:train|val)", "epoch": \d+, "iter": \d+')


@dataclass
class _Clock:
    """Makes steps of the run from iterations within epochs."""

    begins: dict[int, int] = field(default_factory=dict)  # {epoch: steps before it}
    newest: tuple[int, int] = (0, 0)  # epoch, iteration

    def step(self, epoch: int, iteration: int) -> int:
        before, last = self.newest
        if epoch not in self.begins:
            is_within = epoch > before and iteration <= last
            begin = self.begins.get(before, 0)
            self.begins[epoch] = begin + last if is_within else begin
        self.newest = epoch, iteration
        return self.begins[epoch] + iteration


def _sniff(head: Head) -> int:
    return sum(_ROW.match(line) is not None for line in head.lines)


def _read(source: Source, log: Log) -> None:
    log.facts |= {"loss_kind": "falling", "loss_form": "mean"}
    clock = _Clock()
    for line in source.lines():
        row = _object(line) if _ROW.match(line) else None
        if row is not None:
            _add(log, row, clock)
        elif line.strip() and not line.lstrip().startswith('{"env_info"'):
            log.skip(first=line)
    if interval := log.loss_interval:
        log.facts["loss_window"] = interval


def _add(log: Log, row: dict[str, Any], clock: _Clock) -> None:
    iteration, epoch = number(row.pop("iter")), number(row.pop("epoch"))
    if isinstance(rates := row.get("lr"), dict):  # one a module
        row["lr"] = next(iter(rates.values()), None)
    if row.pop("mode") == "val":
        if "loss" in row:  # the parts have the names of those of the training
            row = {"eval_loss": row["loss"]}
        row.pop("lr", None)
        log.row(row)
    elif iteration is not None and epoch is not None and math.isfinite(iteration + epoch):
        log.row(row | {"epoch": epoch}, clock.step(int(epoch), int(iteration)))


def _object(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


READER = Reader(
    name="mmcv-json",
    sniff=_sniff,
    read=_read,
    aliases={**FREE_NAMES, **dict.fromkeys(UNUSED_NAMES, "")},
    marks=('{"mode": "',),
    sample="""{"env_info": "sys.platform: linux\\nPython: 3.11", "seed": 1, "exp_name": "mine.py"}
{"mode": "train", "epoch": 1, "iter": 50, "lr": 0.0, "memory": 1000, "data_time": 0.0625, \
"decode.loss_seg": 2.5, "aux.loss_seg": 1.25, "loss": 3.75, "time": 0.5}
{"mode": "train", "epoch": 1, "iter": 100, "lr": 1e-05, "memory": 1000, "data_time": 0.0625, \
"decode.loss_seg": 2.0, "aux.loss_seg": 1.0, "loss": 3.0, "time": 0.5}
{"mode": "val", "epoch": 1, "iter": 20, "lr": 1e-05, "mIoU": 0.125, "aAcc": 0.25}
{"mode": "train", "epoch": 2, "iter": 50, "lr": 2e-05, "memory": 1000, "data_time": 0.0625, \
"decode.loss_seg": NaN, "aux.loss_seg": 1.0, "loss": NaN, "time": 0.5}
""",
)
