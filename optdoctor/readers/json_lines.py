"""One JSON object a line, as LLaMA-Factory, DeiT, MMCV and many a script write it."""

import json
import re
from typing import Any

from optdoctor.knowledge.log_names import FREE_NAMES, STEP_NAMES
from optdoctor.log import MAX_STEP, Log, number
from optdoctor.reader import Reader, Source

_SNIFFED_LINES = 100


def _sniff(head: str) -> bool:
    if '"log_history"' in head:
        return False
    lines = [line for line in re.split(r"[\r\n]+", head)[:_SNIFFED_LINES] if line.strip()]
    rows = [row for line in lines if (row := _object(line)) is not None]
    # A document printed over many lines may end in one that is an object of its own.
    is_mostly_rows = len(rows) * 2 >= len(lines)
    return is_mostly_rows and any(_is_row(row) for row in rows)


def _read(source: Source, log: Log) -> None:
    for line in source.lines():
        if not line.strip():
            continue
        row = _object(line)
        if row is None:
            log.skip()
        elif "train_runtime" not in row:
            _add(log, row)
    log.count_from_one()


def _add(log: Log, row: dict[str, Any]) -> None:
    step = next((row[name] for name in STEP_NAMES if name in row), None)
    planned = number(row.get("total_steps"))
    if log.row(row, step) and planned is not None and 0 < planned < MAX_STEP:
        log.facts["total_steps"] = int(planned)


def _is_row(row: dict[str, Any]) -> bool:
    names = (name for name in row if FREE_NAMES.get(name) in ("loss", "eval_loss"))
    return any(number(row[name]) is not None for name in names)


def _object(line: str) -> dict[str, Any] | None:
    if not line.lstrip().startswith("{"):
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


READER = Reader(
    name="json-lines",
    sniff=_sniff,
    read=_read,
    aliases=FREE_NAMES,
    sample="""{"current_steps": 5, "total_steps": 90, "loss": 2.25, "lr": 3e-05, "epoch": 0.1}
{"current_steps": 10, "total_steps": 90, "loss": 2.125, "lr": 2e-05, "epoch": 0.2}
{"current_steps": 10, "total_steps": 90, "eval_loss": 2.25, "epoch": 0.2}
{"current_steps": 15, "total_steps": 90, "loss": NaN, "lr": 1e-05, "epoch": 0.3}
""",
)
