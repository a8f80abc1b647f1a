"""wandb-summary.json: the last value of each name, one row and no history.

It says what a run came to and nothing of how.
"""

import json
from typing import Any

import numpy as np

from optdoctor.readers.wandb import numbers_of
from optdoctor.reading.curve_names import Floats, Meaning, fill, meaning_of
from optdoctor.reading.log import Log
from optdoctor.reading.reader import HEAD_BYTES, Head, Reader, Source
from optdoctor.store import IntArray

_MARKS = {"_runtime", "_timestamp", "_step"}
_CLOCKS = ("train/global_step", "trainer/global_step", "global_step", "_step")


def _sniff(head: Head) -> int:
    return int(_summary(head.text) is not None)


def _read(source: Source, log: Log) -> None:
    summary = _summary(Head(source.first(HEAD_BYTES)).text) or {}
    numbers = dict(numbers_of(summary))
    names = {name: 1 for name in numbers if not name.startswith("_") and name not in _CLOCKS}
    meaning = meaning_of(names)
    if meaning.loss and meaning.loss_kind == "unknown":  # one value is nothing to guess by
        aliases = meaning.aliases | {meaning.loss: f"metric:{meaning.loss}"}
        meaning = Meaning(aliases, None)
    step = next((numbers[name] for name in _CLOCKS if name in numbers), 1.0)

    def take(name: str) -> tuple[IntArray, Floats]:
        at = int(step) if 0 <= step < 2**53 else 1
        return np.array([at]), np.array([numbers[name]])

    fill(log, meaning, take)


def _summary(text: str) -> dict[str, Any] | None:
    """The summary that this text is, None if it is none."""
    if not text.lstrip().startswith("{") or '"_' not in text:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    is_marked = isinstance(found.get("_wandb"), dict) or len(_MARKS & found.keys()) >= 2
    return found if is_marked else None


READER = Reader(name="wandb-summary", sniff=_sniff, read=_read, grows=False, marks=('"_',))
