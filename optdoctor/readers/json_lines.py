"""One JSON object a line, as LLaMA-Factory, ms-swift, DeiT, wandb and many a script write it.

Or one document that is a list of such objects, on one line or indented.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from optdoctor.knowledge.log_names import FREE_NAMES, STEP_NAMES, UNUSED_NAMES, prefixed
from optdoctor.reading.huggingface_rows import (
    STEP_OF_TOTAL,
    Column,
    hides_nan,
    is_unused,
)
from optdoctor.reading.json_list import begins_a_list, objects_of
from optdoctor.reading.lazy_regex import lazy
from optdoctor.reading.log import MAX_STEP, Log, number
from optdoctor.reading.reader import Head, Rank, Reader, Source
from optdoctor.reading.uniform_rows import JSON_NUMBER, JSON_PAIR, UniformRows, learn

_SNIFFED_LINES = 100
_SNIFFED_ROWS = 1000
_STEPS = (
    *STEP_NAMES,
    STEP_OF_TOTAL,
    "trainer/global_step",
    "num_updates",
    "update",
    "batch",
    "batch_idx",
    "_step",
)
"""Names of the step, the surest first; wandb's own counter `_step` also counts other rows."""
_OF_THE_TRAINER = ("current_steps", STEP_OF_TOTAL)
"""Names of the step in LLaMA-Factory and ms-swift, which write what a Trainer logs."""
_TOTALS = ("total_steps", "max_steps", "total_iters")
_ALIASES = {
    **FREE_NAMES,
    **{f"dev{mark}loss": "eval_loss" for mark in "_/"},
    "loss/train": "loss",
    **{f"loss/{data}": "eval_loss" for data in ("val", "valid", "validation", "eval", "test")},
    **dict.fromkeys(("train/lr", "lr/train"), "lr"),
    "train_grad_norm": "grad_norm",
    "train_loss_scale": "loss_scale",
    "train_epoch": "epoch",
    **dict.fromkeys((*_STEPS, *_TOTALS, *UNUSED_NAMES), ""),
    **dict.fromkeys(("_timestamp", "timestamp", "percentage", "throughput", "n_parameters"), ""),
}
_WRAPPERS = frozenset({"metrics", "log", "logs", "data", "values", "scalars", "stats"})
"""Names of objects that say nothing about the names within."""
_DEPTH = 2
_TYPICAL = lazy(
    r'(?m)^\{(?=")(?=[^{}\[\]\r\n]*+\}\r?\n)[^{}\[\]\r\n]*?'
    r'"(?=[^"{}\r\n]*+")[^"{}\r\n]*?loss[^"{}\r\n]*+"'
    r"[^{}\[\]\r\n]*+\}(?P<end>\r?\n)"
)


def _sniff(head: Head) -> int:
    if '"log_history"' in head.text:
        return 0
    if begins_a_list(head.text):
        return sum(map(_is_row, islice(_listed([head.text]), _SNIFFED_ROWS)))
    lines = head.lines[:_SNIFFED_LINES]
    found = [row for line in lines if (row := _object(line)) is not None]
    # A document printed over many lines may end in one that is an object of its own.
    if 2 * len(found) < len(lines):
        return 0
    further = sum(line.startswith("{") for line in head.lines[_SNIFFED_LINES:])
    rows = sum(map(_is_row, found))
    return rows + further if rows else 0


def _read(source: Source, log: Log) -> None:
    is_list = begins_a_list(source.head.text)
    told = _told(source.head)
    rows = _Rows(log, _step_name(told))
    log.aliases = {**_ALIASES, **_own_aliases(told)}
    log.count_from_one()
    if is_list:
        for row in _listed(source.blocks(), log):
            rows.add(row)
    else:
        _read_lines(source, rows)
    if rows.step_name in _OF_THE_TRAINER:
        log.facts.update(framework="huggingface", loss_form="mean", loss_window=log.loss_interval)


def _told(head: Head) -> list[dict[str, Any]]:
    """The rows with a loss that the beginning shows."""
    is_list = begins_a_list(head.text)
    found = _listed([head.text]) if is_list else filter(None, map(_object, head.lines))
    return [row for row in found if _is_row(row)]


def _own_aliases(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The rate and the gradient norm of one log, where their names say of what they are."""
    names = dict.fromkeys(name for row in rows for name in row)
    known = {_ALIASES.get(name) for name in names}
    return {name: c for name, c in prefixed(names).items() if c not in known}


def _read_lines(source: Source, rows: "_Rows") -> None:
    shape: UniformRows | None = None
    for text in source.blocks():
        at = 0
        shape = _shape(text, shape)
        if shape is not None:
            if rows.step_name is None:  # the head showed no row
                objects = filter(None, map(_object, text.splitlines()))
                rows.step_name = _step_name([row for row in objects if _is_row(row)])
            for start, stop in shape.spans(text):
                is_at_a_line = not start or text[start - 1] == "\n"
                columns = shape.columns(text[start:stop]) if is_at_a_line else None
                if columns is None:
                    continue
                rows.add_lines(text[at:start])
                rows.add_columns(columns)
                at = stop
        rows.add_lines(text[at:])


def _shape(text: str, before: UniformRows | None) -> UniformRows | None:
    """The shape of the row in the middle of the text, or the one from before."""
    found = _TYPICAL.search(text, len(text) // 2) or _TYPICAL.search(text)
    if found is None:
        return before
    row = found[0][: found.start("end") - found.start()]
    shape = learn(row, found["end"], JSON_PAIR, JSON_NUMBER)
    if shape is None or STEP_OF_TOTAL in shape.names:
        return None
    return before if shape == before else shape


def _step_name(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """The name of the step in most of these rows, "" where they have none; None without rows."""
    for name in _STEPS:
        steps = [row[name] for row in rows if name in row]
        is_moving = len(rows) == 1 or len(set(map(str, steps))) > 1
        if steps and 2 * len(steps) >= len(rows) and is_moving:
            return name
    return "" if rows else None


@dataclass
class _Rows:
    """Adds the rows, one or many at once."""

    log: Log
    step_name: str | None
    _names: dict[tuple[str, ...], tuple[str, ...]] = field(default_factory=dict)

    def add_lines(self, text: str) -> None:
        """Adds what stands in lines of text."""
        for line in re.split(r"[\r\n]+", text):
            if not line.strip():
                continue
            row = _object(line)
            if row is None:
                self.log.skip(first=line)
            else:
                self.add(row)

    def add(self, row: Mapping[str, Any]) -> None:
        """Adds one row."""
        if "log_history" in row or "train_runtime" in row:
            return
        if hides_nan(row) and self.step_name in _OF_THE_TRAINER:
            self.log.facts["nan_filter"] = "seen"
        step = row.get(self.step_name) if self.step_name else None
        if self.step_name == STEP_OF_TOTAL:
            at, _, total = str(step).partition("/")
            step = number(at)
            self._plan(total)
        if self.log.row({name: row[name] for name in self._kept(row)}, step):
            for name in _TOTALS:
                self._plan(row.get(name))

    def add_columns(self, columns: Mapping[str, Column]) -> None:
        """Adds rows of one set of names, as lines of them would be added."""
        if "train_runtime" in columns:
            return
        kept = {name: columns[name] for name in self._kept(columns)}
        self.log.rows(kept, columns.get(self.step_name or ""))
        for name in _TOTALS:
            if name in columns:
                self._plan(float(columns[name][-1]))

    def _kept(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        names = tuple(row)
        if names not in self._names:
            if len(self._names) == 1000:
                self._names.clear()
            self._names[names] = tuple(name for name in names if not is_unused(name))
        return self._names[names]

    def _plan(self, total: object) -> None:
        planned = number(total)
        if planned is not None and 0 < planned < MAX_STEP:
            self.log.facts["total_steps"] = int(planned)


def _is_row(row: Mapping[str, Any]) -> bool:
    names = (name for name in row if _ALIASES.get(name) in ("loss", "eval_loss"))
    return any(number(row[name]) is not None for name in names)


def _object(line: str) -> dict[str, Any] | None:
    """The object of a line, with the names of objects in it joined: train/loss."""
    if not line.lstrip().startswith("{"):
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return _joined(found) if isinstance(found, dict) else None


def _listed(blocks: Iterable[str], log: Log | None = None) -> Iterator[dict[str, Any]]:
    """The objects of a document that is a list of them, as those of lines."""
    return map(_joined, objects_of(blocks, log))


def _joined(found: dict[str, Any]) -> dict[str, Any]:
    return dict(_flat(found, "", _DEPTH)) if dict in map(type, found.values()) else found


def _flat(row: Mapping[str, Any], within: str, depth: int) -> Iterator[tuple[str, Any]]:
    for name, value in row.items():
        if not isinstance(value, dict):
            yield f"{within}{name}", value
        elif depth:
            inner = within if name in _WRAPPERS else f"{within}{name}/"
            yield from _flat(value, inner, depth - 1)


READER = Reader(
    name="json-lines",
    sniff=_sniff,
    read=_read,
    aliases=_ALIASES,
    rank=Rank.TABLE,
    marks=("{",),
    wants="object a line with a number named loss",
    sample="""{"current_steps": 5, "total_steps": 90, "loss": 2.25, "lr": 3e-05, "epoch": 0.1}
{"current_steps": 10, "total_steps": 90, "loss": 2.125, "lr": 2e-05, "epoch": 0.2}
{"current_steps": 10, "total_steps": 90, "eval_loss": 2.25, "epoch": 0.2}
{"current_steps": 15, "total_steps": 90, "loss": NaN, "lr": 1e-05, "epoch": 0.3}
""",
)
