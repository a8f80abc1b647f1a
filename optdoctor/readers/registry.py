"""All log formats, each loaded only where a log may be of it: `index.json` holds their marks."""

import importlib
import json
import pkgutil
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

from optdoctor.reading.reader import Head, Rank, Reader

INDEX = Path(__file__).with_name("index.json")
"""{module: rank and marks of its reader, null where it holds none}; `make docs` writes it."""
_PACKAGE = __name__.rpartition(".")[0]


class _Entry(NamedTuple):
    rank: Rank
    marks: tuple[str, ...]


@cache
def readers() -> tuple[Reader, ...]:
    """All readers of this folder, by name."""
    found = [reader for module in modules() if (reader := reader_of(module))]
    return tuple(sorted(found, key=lambda reader: reader.name))


def candidates(rank: Rank, head: Head) -> list[Reader]:
    """The readers of a rank that may claim a head, by name.

    A module whose marks do not stand in the head is not loaded; one that is not in the index, as a
    new file, is.
    """
    index = _index()
    asked = [m for m in modules() if m not in index or _may_claim(index[m], rank, head)]
    found = [reader for module in asked if (reader := reader_of(module))]
    return sorted((r for r in found if r.rank is rank), key=lambda reader: reader.name)


def modules() -> tuple[str, ...]:
    """The names of the modules of this folder."""
    return _modules_in(tuple(sys.modules[_PACKAGE].__path__))


def reader_of(module: str) -> Reader | None:
    """The reader of a module of this folder, None where it holds none."""
    reader: Reader | None
    reader = getattr(importlib.import_module(f"{_PACKAGE}.{module}"), "READER", None)
    return reader


def _may_claim(entry: _Entry | None, rank: Rank, head: Head) -> bool:
    if entry is None or entry.rank is not rank:
        return False
    if rank is Rank.BYTES:
        return not entry.marks or any(mark.encode() in head.data for mark in entry.marks)
    return not entry.marks or any(mark in head.text for mark in entry.marks)


@cache
def _modules_in(folders: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(module.name for module in pkgutil.iter_modules(folders))


@cache
def _index() -> dict[str, _Entry | None]:
    known = json.loads(INDEX.read_text("utf-8"))
    return {
        module: entry and _Entry(Rank[entry["rank"]], tuple(entry["marks"]))
        for module, entry in known.items()
    }
