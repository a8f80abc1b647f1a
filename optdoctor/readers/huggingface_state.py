"""Hugging Face `trainer_state.json`, whole or cut off anywhere.

The history is taken object by object and never as one document: a file that a killed job left half
written still holds every row before the cut. NaN and Infinity stand there as bare tokens.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from optdoctor.log import Log, number
from optdoctor.reader import Reader, Source, Unreadable

ALIASES = {
    "learning_rate": "lr",
    "step": "",
    "total_flos": "",
    "eval_runtime": "",
    "eval_model_preparation_time": "",
}
"""Names of the Trainer's rows; shared with its console output."""
_HISTORY = re.compile(r'"log_history"\s*:\s*\[')
_MAX_FAILURES = 1000  # each may cost a scan of what follows


def is_final(row: Mapping[str, Any]) -> bool:
    """Whether it is the row that sums the run up at its end: its loss is a mean over all of it."""
    return "train_runtime" in row or ("train_loss" in row and "loss" not in row)


def add_row(log: Log, row: Mapping[str, Any]) -> None:
    """Adds one dictionary that the Trainer logged, and what it tells about the NaN filter."""
    if is_final(row):
        return
    loss, grad_norm = number(row.get("loss")), number(row.get("grad_norm"))
    if loss == 0 and grad_norm is not None and not math.isfinite(grad_norm):
        log.facts["nan_filter"] = "seen"
    kept = {name: value for name, value in row.items() if not name.endswith("_per_second")}
    log.row(kept, row.get("step"))


def _sniff(head: str) -> bool:
    return _HISTORY.search(head) is not None


def _read(source: Source, log: Log) -> None:
    text = source.text
    start = _HISTORY.search(text)
    if start is None:
        raise Unreadable("it holds no log_history", "point at the newest checkpoint's state")
    for row in _objects(text, start.end(), log):
        add_row(log, row)
    log.facts["framework"] = "huggingface"
    log.facts["total_steps"] = _integer(text, "max_steps")
    log.facts["batch_size"] = _integer(text, "train_batch_size")
    # With logging_strategy="epoch" the stated interval is an unused default above the true one.
    intervals = _integer(text, "logging_steps"), log.loss_interval
    log.facts["loss_window"] = min(filter(None, intervals), default=None)


def _objects(text: str, start: int, log: Log) -> Iterator[dict[str, Any]]:
    """The complete objects of a list; what is cut or torn counts as a skipped line."""
    decoder = json.JSONDecoder()
    failures = 0
    while failures < _MAX_FAILURES:
        brace = text.find("{", start)
        if brace < 0 or text[start:brace].lstrip().startswith("]"):
            break
        try:
            found, start = decoder.raw_decode(text, brace)
        except (ValueError, RecursionError):
            failures += 1
            start = brace + 1
            continue
        yield found
    log.skip(failures)


def _integer(text: str, name: str) -> int | None:
    """The positive integer beside a name of the state, wherever the file is cut."""
    found = re.search(rf'"{name}"\s*:\s*(\d{{1,15}})\s*[,}}]', text)
    return int(found[1]) or None if found else None


READER = Reader(
    name="huggingface-state",
    sniff=_sniff,
    read=_read,
    aliases=ALIASES,
    sample="""{
  "best_metric": null, "epoch": 0.3, "global_step": 30,
  "log_history": [
    {"epoch": 0.1, "grad_norm": 1.5, "learning_rate": 3e-05, "loss": 2.25, "step": 10},
    {"epoch": 0.2, "grad_norm": NaN, "learning_rate": 2e-05, "loss": 0.0, "step": 20},
    {"epoch": 0.3, "eval_loss": 2.125, "eval_runtime": 4.5, "step": 30}
  ],
  "logging_steps": 10, "max_steps": 300, "train_batch_size": 8
}
""",
)
