"""MXNet: a line each few batches (Speedometer), lines of single values at the end of an epoch.

The training values of an epoch's end are read where there are no batches only: behind batch lines
they are what is left since the last of these, and NaN where nothing is.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from optdoctor.reading.epoch_clock import EpochClock
from optdoctor.reading.log import Log
from optdoctor.reading.reader import Head, Reader, Source
from optdoctor.reading.text_format import NUMBER, clean_lines, lines_of, value_of

_BATCH = re.compile(
    r"\[?Epoch ?\[?(?P<epoch>\d{1,9})\] ?\[?Batch ?\[?(?:\d{1,9}-)?(?P<batch>\d{1,9})\],?"
    r"[ \t]{1,8}Speed: "
)
_EPOCH = re.compile(
    r"Epoch\[(?P<epoch>\d{1,9})\] (?P<data>Train|Validation|Dev|Test)-(?=[\w./-]+=)"
)
_PAIR = re.compile(rf"(?:(?<=[\s,\]-])Train-)?(?P<key>[A-Za-z][\w./-]{{0,60}})=(?P<value>{NUMBER})")
_LOSSES = (
    *("loss", "Loss", "cross-entropy", "CrossEntropy", "cross_entropy", "nll-loss", "nll_loss"),
    *("mse", "rmse", "mae"),
)
_PERPLEXITY = ("perplexity", "Perplexity")


@dataclass(frozen=True, slots=True)
class _Row:
    epoch: int
    batch: int | None  # None at the end of an epoch
    is_training: bool
    values: dict[str, float]


def _row(line: str) -> _Row | None:
    found = _BATCH.search(line) or _EPOCH.search(line)
    if found is None:
        return None
    groups = found.groupdict()
    start = found.end() if groups.get("batch") else found.end() - 1
    values = {p["key"]: value_of(p["value"]) for p in _PAIR.finditer(line, start)}
    if not values:
        return None
    batch = int(groups["batch"]) if groups.get("batch") else None
    return _Row(int(groups["epoch"]), batch, groups.get("data", "Train") == "Train", values)


def _rows(lines: Iterator[str] | list[str]) -> Iterator[_Row]:
    for line in clean_lines(lines):
        if "poch" in line and "=" in line and (row := _row(line)):
            yield row


def _sniff(head: Head) -> int:
    return sum(1 for _ in _rows(head.lines))


def _as_loss(values: dict[str, float]) -> dict[str, float]:
    """With the logarithm of a perplexity where no other loss is there."""
    name = next((name for name in _PERPLEXITY if name in values), None)
    if name is None or values.keys() & set(_LOSSES):
        return values
    perplexity = values[name]
    return {**values, "loss": math.log(perplexity) if perplexity > 0 else math.nan}


def _read(source: Source, log: Log) -> None:
    log.facts["loss_kind"] = "falling"
    clock = EpochClock()
    has_batches = any(row.batch is not None for row in _rows(source.head.lines))
    for row in _rows(lines_of(source)):
        values = _as_loss(row.values)
        if not row.is_training:
            log.row({f"validation {name}": value for name, value in values.items()})
        elif row.batch is not None:
            log.row({**values, "epoch": row.epoch}, clock.step(row.epoch, row.batch))
        elif not has_batches:
            log.row(values, row.epoch + 1)


READER = Reader(
    "mxnet",
    _sniff,
    _read,
    dict.fromkeys(_LOSSES, "loss")
    | {f"validation {name}": "eval_loss" for name in _LOSSES}
    | {"lr": "lr", "epoch": "epoch"},
    marks=("Speed:", "Train-", "Validation-", "Dev-", "Test-"),
    sample="""INFO:root:Epoch[0] Batch [0-20]\tSpeed: 512.50 samples/sec\taccuracy=0.125\t\
cross-entropy=2.25
INFO:root:Epoch[0] Batch [20-40]\tSpeed: 525.00 samples/sec\taccuracy=0.250\tcross-entropy=2.125
INFO:root:Epoch[0] Train-accuracy=nan
INFO:root:Epoch[0] Train-cross-entropy=nan
INFO:root:Epoch[0] Time cost=1.250
INFO:root:Epoch[0] Validation-accuracy=0.125
INFO:root:Epoch[0] Validation-cross-entropy=2.1875
INFO:root:Epoch[1] Batch [0-20]\tSpeed: 512.50 samples/sec\taccuracy=0.375\tcross-entropy=1.75
""",
)
