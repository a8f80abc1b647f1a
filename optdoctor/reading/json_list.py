"""The objects of a JSON document that is one list of them, read piece by piece."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from optdoctor.reading.lazy_regex import lazy
from optdoctor.reading.log import Log

_BEGINNING = lazy(r'\s*\[\s*\{\s*(?:["}]|$)')
_BETWEEN = lazy(r"[\s,]*")
_LARGE = 1 << 22
"""Characters of one object beyond which the document is given up."""


def begins_a_list(text: str) -> bool:
    """Whether a text begins as a list of objects does."""
    return _BEGINNING.match(text) is not None


def objects_of(blocks: Iterable[str], log: Log | None = None) -> Iterator[dict[str, Any]]:
    """The objects of such a document up to where it ends or is damaged, which the log is told."""
    decode = json.JSONDecoder().raw_decode
    text = ""
    is_first = True
    for block in blocks:
        text += block
        if is_first:
            if not begins_a_list(text):
                return
            text, is_first = text[text.index("[") + 1 :], False
        at = 0
        while True:
            between = _BETWEEN.match(text, at)
            at = between.end() if between else at
            if text.startswith("]", at):
                return
            try:
                found, at = decode(text, at)
            except (ValueError, RecursionError):
                break  # it goes on in the next block, or is damaged
            if isinstance(found, dict):
                yield found
        text = text[at:]
        if len(text) > _LARGE:
            break
    if log is not None and text.strip():
        log.skip(first=text[:_LARGE].lstrip().partition("\n")[0])
