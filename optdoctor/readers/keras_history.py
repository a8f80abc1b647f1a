"""The History of Keras as JSON or as a printed dict: `{"loss": [..], "val_loss": [..]}`.

One number an epoch, the mean over its batches. A file that is cut or damaged keeps what it holds.
"""

import json
from collections.abc import Iterable
from itertools import chain, pairwise

import numpy as np

from optdoctor.knowledge.log_names import FREE_NAMES
from optdoctor.reading.lazy_regex import lazy
from optdoctor.reading.log import Log, number
from optdoctor.reading.reader import Head, Reader, Source, Unreadable

_NUMBER = (
    r"(?:[-+]?(?:\d++(?:\.\d*+)?+|\.\d++)(?:[eE][-+]?\d++)?+"
    r"|-?(?:nan|inf|NaN|Infinity)|null|None)"
)
_KEY = r"""(["'])(?P<key>[^"'\\]{1,100})\1\s*:\s*\["""
_OPENING = lazy(rf"[\s{{\],]*{_KEY}\s*")
_ITEM = lazy(rf"\s*(?P<number>{_NUMBER})\s*(?P<mark>[,\]]|$)\s*|\s*(?P<end>\])\s*")
_CLAIM = lazy(rf"\s*\{{\s*{_KEY}[ \t]*(?:{_NUMBER}|[\]\r\n]|$)")

Series = dict[str, list[float | None]]


def _sniff(head: Head) -> int:
    if not _CLAIM.match(head.text):
        return 0
    found = _tolerant(head.lines)
    return max((len(v) for k, v in found.items() if FREE_NAMES.get(k) == "loss"), default=0)


def _read(source: Source, log: Log) -> None:
    series = _strict(source) or _tolerant(source.lines(), log)
    length = max(map(len, series.values()), default=0)
    columns = {}
    for name, found in series.items():
        numbers = found + [None] * (length - len(found))
        values = np.array([np.nan if n is None else n for n in numbers], np.float64)
        columns[name] = np.ma.MaskedArray(values, [n is None for n in numbers])
    log.rows(columns)
    log.facts |= {"loss_kind": "falling", "loss_form": "mean"}


def _strict(source: Source) -> Series:
    """The lists of a whole JSON object, none where it is not whole or too large."""
    try:
        whole = json.loads(source.text)
    except (ValueError, RecursionError, Unreadable):
        return {}
    if not isinstance(whole, dict):
        return {}
    return {k: [number(v) for v in found] for k, found in whole.items() if isinstance(found, list)}


def _tolerant(lines: Iterable[str], log: Log | None = None) -> Series:
    """The lists of a text in which anything else may stand between the lines."""
    series: Series = {}
    key = ""
    for line, after in pairwise(chain(lines, [None])):
        if line is None:
            break
        at = 0
        while at < len(line):
            found = (_ITEM if key else _OPENING).match(line, at)
            if found is None:
                break
            if after is None and found.groupdict().get("mark") == "":
                break  # at the end of all: digits may be missing
            at = found.end()
            if not key:
                key = found["key"]
                continue
            if found["number"]:
                series.setdefault(key, []).append(number(found["number"]))
            if found["end"] or found["mark"] == "]":
                key = ""
        if log is not None and line.strip(" \t[]{},") and not at:
            log.skip(first=line)
    return series


READER = Reader(
    name="keras-history",
    sniff=_sniff,
    read=_read,
    aliases=FREE_NAMES,
    grows=False,
    marks=("[",),
    sample="""{
 "loss": [
  2.25,
  2.125,
  2.0625
 ],
 "val_loss": [
  2.5,
  2.375,
  2.25
 ]
}
""",
)
