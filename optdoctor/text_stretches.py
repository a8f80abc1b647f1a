"""Lines of text that differ in their digits only: understood once, then read by place.

Most of a long log are lines that are equal but for their digits. No expression of a text format
tells one digit from another (see `is_blind`), so what such a line says stands at the same places
in all of them: names there are compared, numbers cut out, and rows added to the log as columns.
All other lines, and the first two of a kind, are read one by one by the format itself.
"""

import math
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import itemgetter
from typing import Any, Generic, Protocol, TypeVar, cast

import numpy as np

from optdoctor.columns import MAX_STEP, AnyColumn, Values
from optdoctor.log import Log
from optdoctor.store import IntArray
from optdoctor.trace import Fact

PLACES = ("step", "iter", "per_epoch", "total")
"""Names of numbers that say where a row stands; `epoch` is a value as well."""
_MAX_SHAPES = 4096
_MAX_VARIANTS = 64
_MAX_CHARACTERS = 4096  # of a line whose shape is remembered
_FEW = 16  # rows that are added sooner one by one than as columns
_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_NO_DIGIT = re.compile(r"\\d|\\x(?!3)[0-9a-fA-F]{2}|\{\d*,?\d*\}|0-9")
_PLAIN = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")

Span = tuple[int, int]


class Kind(Protocol):
    """What is asked of a kind of line; `Line` is one."""

    @property
    def mark(self) -> str: ...
    @property
    def values(self) -> Mapping[str, float]: ...
    @property
    def facts(self) -> Mapping[str, Fact]: ...
    @property
    def offset(self) -> int: ...


K = TypeVar("K", bound=Kind)


class Format(Protocol[K]):
    """What is asked of a format; `TextFormat` is one."""

    @property
    def lines(self) -> Sequence[K]: ...
    @property
    def fix(self) -> Callable[[dict[str, float]], dict[str, float]] | None: ...
    @property
    def repeated(self) -> frozenset[str]: ...
    @property
    def first_epoch(self) -> int | None: ...
    @property
    def new_run(self) -> str: ...
    @property
    def is_window_mean(self) -> bool: ...
    @property
    def convert(self) -> Mapping[str, Callable[[float], float]]: ...
    def expression(self, kind: K) -> str:
        """The expression of a kind without those of its numbers."""
        ...

    def spans(self, kind: K, line: str) -> Iterator[tuple[dict[str, Span], list[Span]]]:
        """Of each time that the kind stands in the line: {name: its number}, and the names."""
        ...

    def known(self, kind: K, name: str) -> str:
        """What a name is called in the log, "" where it is dropped."""
        ...

    def converted(self, name: str, value: float) -> float:
        """The value of its channel."""
        ...

    def number(self, text: str) -> float:
        """The number that a text means, in any spelling."""
        ...


def is_blind(expression: str) -> bool:
    """Whether a regular expression takes any digit where it takes one."""
    return not re.search(r"\d|\(\?P=", _NO_DIGIT.sub("", expression))


def masks_of(lines: Iterable[str]) -> list[bytes]:
    """The lines with all digits made zeros."""
    return "\n".join(lines).encode("utf-8", "surrogatepass").translate(_ZEROS).split(b"\n")


@dataclass
class Distances:
    """The shortest distance between the steps of rows."""

    shortest: int | None = None
    _newest: int | None = None

    def see(self, step: int) -> None:
        """Takes the next row."""
        if self._newest is not None and step > self._newest:
            distance = step - self._newest
            self.shortest = min(self.shortest or distance, distance)
        self._newest = step

    def see_all(self, steps: IntArray) -> None:
        """Takes the next rows, [T], whose steps do not fall."""
        self.see(int(steps[0]))
        gaps = np.diff(steps)
        if (gaps := gaps[gaps > 0]).size:
            distance = int(gaps.min())
            self.shortest = min(self.shortest or distance, distance)
        self._newest = int(steps[-1])


class _Watched(MutableMapping[str, float]):
    """A row that notes which of its values are looked at, and which are set."""

    def __init__(self, values: dict[str, float]) -> None:
        self._values = values
        self.read: set[str] = set()
        self.set: set[str] = set()

    def __getitem__(self, name: str) -> float:
        if name in self._values and name not in self.set:
            self.read.add(name)
        return self._values[name]

    def __setitem__(self, name: str, value: float) -> None:
        self.set.add(name)
        self._values[name] = value

    def __delitem__(self, name: str) -> None:
        del self._values[name]
        self.set.discard(name)

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


@dataclass(eq=False, slots=True)
class _Group(Generic[K]):
    """Rows of one meaning that wait to be added."""

    kind: K
    names: tuple[str, ...]
    """Of the numbers that are cut out."""
    channels: Mapping[str, str | float]
    """{name for the log: name of the number, or what it always is}."""
    values: "array[float]" = field(default_factory=lambda: array("d"))
    at: "array[int]" = field(default_factory=lambda: array("q"))


@dataclass(eq=False, slots=True)
class _Variant(Generic[K]):
    """Lines of one shape in which all that decides about the meaning is the same."""

    group: _Group[K]
    cut: Callable[[str], tuple[str, ...]]
    parse: Callable[[str], float]
    shown: Mapping[str, float]
    """{name whose newest value stands in every line: what it must be to be no news}."""
    lines: list[str] = field(default_factory=list)
    at: list[int] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class _Shape(Generic[K]):
    """Lines that differ in their digits only."""

    kind: K | None = None
    """None where they hold no row."""
    is_skipped: bool = False
    """Whether such a line looks like one with a row."""
    is_slow: bool = False
    """Whether the format must read each of them."""
    has_total: bool = False
    told_by: frozenset[Span] = frozenset()
    """Names in which digits stand, and numbers that decide about the meaning."""
    telling: Callable[[str], object] | None = None
    """Cuts these out."""
    variants: dict[object, _Variant[K]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, slots=True)
class _Part(Generic[K]):
    """Rows of one meaning."""

    kind: K
    at: IntArray
    """[T]: their places among all rows."""
    columns: Mapping[str, Values]
    steps: Values | None


class Stretches(Generic[K]):
    """Reads the lines of a source for a format.

    Args:
        by_line: Reads one line into the log; whether it was a row.
        shown: {repeated name: its newest value}, which `by_line` changes.
        distances: Takes the steps of rows of the first kind.
    """

    def __init__(
        self,
        text_format: Format[K],
        log: Log,
        by_line: Callable[[str], bool],
        shown: Mapping[str, float],
        distances: Distances,
    ) -> None:
        self._format, self._log, self._by_line = text_format, log, by_line
        self._shown, self._distances = shown, distances
        self._shapes: dict[bytes, _Shape[K] | None] = {}  # None where it was seen once
        self._plain: dict[bytes, _Variant[K]] = {}  # of shapes of a single meaning
        self._groups: dict[object, _Group[K]] = {}
        self._active: list[_Variant[K]] = []
        self._waiting = 0
        untold = [k.mark for k in text_format.lines if not is_blind(text_format.expression(k))]
        untold += [k.mark for k in text_format.lines if not is_blind(k.mark)]
        untold += [text_format.new_run] if text_format.new_run else []
        self._untold = [mask for text in untold for mask in masks_of([text])]
        self._untold.append(b".#")  # C's 1.#INF, where one digit is not as good as another

    def add(self, lines: Sequence[str]) -> None:
        """Adds the rows of whole lines."""
        if not lines:  # a block of line ends only
            return
        get, get_plain, active = self._shapes.get, self._plain.get, self._active
        for line, mask in zip(lines, masks_of(lines), strict=True):
            variant = get_plain(mask)
            if variant is not None:
                if not variant.lines:
                    active.append(variant)
                variant.lines.append(line)
                variant.at.append(self._waiting)
                self._waiting += 1
                continue
            shape = get(mask)
            if shape is None:
                self._see(line, mask)
            elif shape.is_slow:
                self._flush()
                self._by_line(line)
            elif shape.kind is None:
                if shape.is_skipped:
                    self._log.skip(first=line)
            else:
                telling = shape.telling
                variant = shape.variants.get(None if telling is None else telling(line))
                if (
                    variant is None
                    or (variant.shown and not _are_shown(variant.shown, self._shown))
                    or (shape.has_total and "total_steps" not in self._log.facts)
                ):
                    self._vary(shape, line)
                    continue
                if telling is None:  # then all of its lines are alike from now on
                    self._plain[mask] = variant
                if not variant.lines:
                    active.append(variant)
                variant.lines.append(line)
                variant.at.append(self._waiting)
                self._waiting += 1
        self._flush()

    def _see(self, line: str, mask: bytes) -> None:
        """Reads a line whose shape is not known."""
        if mask in self._shapes:
            shape = self._shapes[mask] = self._shape(line, mask)
            if shape.kind is not None:
                self._vary(shape, line)
                return
        elif len(mask) <= _MAX_CHARACTERS:
            if len(self._shapes) >= _MAX_SHAPES:
                self._flush()
                self._shapes.clear()
                self._plain.clear()
                self._groups.clear()
            self._shapes[mask] = None
        self._flush()
        self._by_line(line)

    def _shape(self, line: str, mask: bytes) -> _Shape[K]:
        if any(text in mask for text in self._untold):
            return _Shape(is_slow=True)
        kinds = [kind for kind in self._format.lines if kind.mark in line]
        found = [(kind, *of) for kind in kinds for of in self._format.spans(kind, line)]
        rows = [of for of in found if self._is_row(of[0], of[1])]
        if len(rows) != 1:
            is_slow = bool(found) or "scale" in line
            return _Shape(is_skipped=any(kind.mark for kind in kinds), is_slow=is_slow)
        [(kind, spans, keys)] = rows
        shape = _Shape(kind=kind, has_total="total" in spans)
        self._tell_by(shape, (span for span in keys if any(map(str.isdigit, line[slice(*span)]))))
        return shape

    def _is_row(self, kind: K, spans: Mapping[str, Span]) -> bool:
        """Whether it says anything that a kind stands in a line; beside a row it may not."""
        says = bool(spans or kind.values or kind.facts or self._format.fix)
        return says or kind is self._format.lines[0]

    def _tell_by(self, shape: _Shape[K], spans: Iterable[Span]) -> None:
        shape.told_by |= frozenset(spans)
        slices = [slice(*span) for span in sorted(shape.told_by)]
        shape.telling = itemgetter(*slices) if slices else None
        shape.variants.clear()

    def _vary(self, shape: _Shape[K], line: str) -> None:
        """Reads a line of a shape one by one, and learns what lines like it mean."""
        variant = self._variant(shape, line)
        self._flush()
        is_row = self._by_line(line)
        if not is_row or len(shape.variants) == _MAX_VARIANTS:
            shape.is_slow = True
        elif variant is not None:
            shape.variants[shape.telling(line) if shape.telling else None] = variant

    def _variant(self, shape: _Shape[K], line: str) -> _Variant[K] | None:
        """What a line means, None where it has no value or brings a repeated one anew."""
        kind, read = shape.kind, self._format.number
        assert kind is not None
        spans = next(of for of, _ in self._format.spans(kind, line) if self._is_row(kind, of))
        row = {name: read(line[slice(*span)]) for name, span in spans.items()}
        shown = {name: row[name] for name in self._format.repeated & row.keys()}
        if not _are_shown(shown, self._shown):
            return None
        values = {n: v for n, v in row.items() if n not in PLACES and n not in shown}
        fixed: Mapping[str, float] = values
        told: set[str] = set()
        telling = set(shown)
        if self._format.fix is not None:
            watched = _Watched(dict(values))
            try:
                fixed = self._format.fix(cast("dict[str, float]", watched))
            except (AttributeError, TypeError):  # it wants a dictionary
                fixed, watched.read = self._format.fix(dict(values)), set(values)
            told = watched.set if fixed is watched else set(fixed)
            telling |= watched.read
        if not (told_by := {spans[name] for name in telling}) <= shape.told_by:
            self._tell_by(shape, told_by)
        channels: dict[str, str | float] = dict(kind.values)
        for name in fixed:
            if known := self._format.known(kind, name):
                always = name in told
                channels[known] = self._format.converted(name, fixed[name]) if always else name
        used = {name for name in channels.values() if isinstance(name, str)}
        used |= row.keys() & {"step", "iter", "per_epoch", "epoch"}
        names = [name for name in row if name in used]
        if not channels or not names:
            shape.is_slow = self._format.fix is None
            return None
        names = names if len(names) > 1 else names * 2  # of one, itemgetter makes no tuple
        slices = [slice(*spans[name]) for name in names]
        key = id(kind), tuple(names), repr(channels)
        group = self._groups.setdefault(key, _Group(kind, tuple(names), channels))
        texts = [line[place] for place in slices]
        is_plain = all(len(text) < 60 and _PLAIN.fullmatch(text) for text in texts)
        return _Variant(group, itemgetter(*slices), float if is_plain else read, shown)

    def _flush(self) -> None:
        """Adds the rows that wait."""
        if not self._waiting:
            return
        rows, parts = self._waiting, self._parts()
        steps = _steps(parts, rows)
        for part in sorted(parts, key=lambda part: int(part.at[-1])):
            self._log.facts.update(part.kind.facts)
        windows: IntArray | None = None
        is_whole = rows >= _FEW
        if is_whole and self._format.is_window_mean:
            windows = self._windows(parts, steps)
            is_whole = windows is not None
        if is_whole:
            self._log.rows(_merged(parts, rows), steps)
            if windows is not None and windows.size:
                self._distances.see_all(windows + (self._log.last_step - int(_stated(steps)[-1])))
        else:
            self._add_one_by_one(parts, rows)

    def _parts(self) -> list[_Part[K]]:
        """Takes the rows that wait, by their meaning, in the order of the first of each."""
        groups: dict[_Group[K], None] = {}
        for variant in self._active:
            group = variant.group
            groups[group] = None
            cut = chain.from_iterable(map(variant.cut, variant.lines))
            group.values.extend(map(variant.parse, cut))
            group.at.extend(variant.at)
            variant.lines, variant.at = [], []
        self._active.clear()
        self._waiting = 0
        return [self._part(group) for group in groups]

    def _part(self, group: _Group[K]) -> _Part[K]:
        table = np.array(group.values).reshape(-1, len(group.names))
        at = np.array(group.at, np.int64)
        group.values, group.at = array("d"), array("q")
        if (at[1:] < at[:-1]).any():
            order = at.argsort()
            at, table = at[order], table[order]
        numbers = {name: table[:, place] for place, name in enumerate(group.names)}
        columns = {
            channel: self._converted(name, numbers[name])
            if isinstance(name, str)
            else np.full(len(at), name)
            for channel, name in group.channels.items()
        }
        steps = self._placed(numbers)
        return _Part(group.kind, at, columns, None if steps is None else steps + group.kind.offset)

    def _converted(self, name: str, values: Values) -> Values:
        if name not in self._format.convert:
            return values
        return np.array([self._format.converted(name, value) for value in values.tolist()])

    def _placed(self, numbers: Mapping[str, Values]) -> Values | None:
        """[T]: the steps of rows, None where they state none."""
        if "step" in numbers or "iter" not in numbers:
            return numbers.get("step")
        at, per_epoch, epoch = (numbers.get(name) for name in ("iter", "per_epoch", "epoch"))
        if at is None or per_epoch is None or epoch is None:
            return at
        with np.errstate(invalid="ignore"):
            within = (np.floor(epoch) - (self._format.first_epoch or 0)) * per_epoch + at
        return np.where(np.isfinite(epoch), within, at)

    def _add_one_by_one(self, parts: Sequence[_Part[K]], rows: int) -> None:
        found: list[tuple[K, dict[str, float], float | None]] = [None] * rows  # type: ignore[list-item]
        for part in parts:
            columns = [column.tolist() for column in part.columns.values()]
            steps = [None] * len(part.at) if part.steps is None else part.steps.tolist()
            for at, step, *row in zip(part.at.tolist(), steps, *columns, strict=True):
                found[at] = part.kind, dict(zip(part.columns, row, strict=True)), step
        for kind, values, step in found:
            self._log.row(values, step)
            if self._format.is_window_mean and kind is self._format.lines[0]:
                self._distances.see(self._log.last_step)

    def _windows(self, parts: Sequence[_Part[K]], steps: AnyColumn | None) -> IntArray | None:
        """Steps of the rows of the first kind, as logged; None where the log may move them apart.

        It does where steps fall or an epoch begins anew.
        """
        first = [part for part in parts if part.kind is self._format.lines[0]]
        if steps is None or any(part.steps is None for part in first):
            return np.empty(0, np.int64) if not first else None
        plain = np.ma.filled(steps, np.nan)
        stated = np.flatnonzero(~np.isnan(plain))
        whole = plain[stated]
        if not ((whole >= 0) & (whole < MAX_STEP)).all() or len(stated) < sum(
            len(part.at) for part in parts if part.steps is not None
        ):
            return None
        logged = whole.astype(np.int64)
        at = np.sort(np.concatenate([part.at for part in first])) if first else stated[:0]
        if (logged[1:] < logged[:-1]).any() or not self._stay_in_epoch(parts, stated, logged, at):
            return None
        return logged[np.searchsorted(stated, at)]

    def _stay_in_epoch(
        self, parts: Sequence[_Part[K]], stated: IntArray, logged: IntArray, first: IntArray
    ) -> bool:
        """Whether epochs rise, and steps wherever a row has an epoch."""
        named = {name for part in parts for name in part.columns}
        of = {name: self._log.aliases.get(name.strip(), name.strip()) for name in named}
        epochs = [name for name, channel in of.items() if channel == "epoch"]
        losses = [name for name, channel in of.items() if channel == "loss"]
        if not epochs:
            return True
        if len(epochs) > 1 or len(losses) > 1:
            return False
        columns = _merged(parts, sum(len(part.at) for part in parts))
        epoch = columns[epochs[0]]
        values, has_epoch = np.ma.getdata(epoch), ~np.ma.getmaskarray(epoch)
        told = values[has_epoch]
        if not (told[1:] >= told[:-1]).all() or np.isnan(told).any():
            return False
        if len(first) and losses and np.ma.getmaskarray(columns[losses[0]])[first[0]]:
            return False
        rises = np.append(True, logged[1:] > logged[:-1])
        return bool(rises[has_epoch[stated]].all())


def _are_shown(values: Mapping[str, float], shown: Mapping[str, float]) -> bool:
    return all(shown.get(name) == value for name, value in values.items())


def _stated(steps: AnyColumn | None) -> Values:
    return np.ma.compressed(np.ma.asarray([] if steps is None else steps))


def _steps(parts: Sequence[_Part[Any]], rows: int) -> AnyColumn | None:
    found = {str(place): part for place, part in enumerate(parts) if part.steps is not None}
    if not found:
        return None
    columns = [(part.at, part.steps) for part in found.values() if part.steps is not None]
    return _placed_in(columns, rows)


def _merged(parts: Sequence[_Part[Any]], rows: int) -> dict[str, AnyColumn]:
    """{name for the log: its values}, [rows], in the order in which rows bring the names."""
    found: dict[str, list[tuple[IntArray, Values]]] = {}
    for part in parts:
        for name, values in part.columns.items():
            found.setdefault(name, []).append((part.at, values))
    return {name: _placed_in(columns, rows) for name, columns in found.items()}


def _placed_in(columns: Sequence[tuple[IntArray, Values]], rows: int) -> AnyColumn:
    if len(columns) == 1 and len(columns[0][0]) == rows:
        return columns[0][1]
    values, is_missing = np.full(rows, math.nan), np.ones(rows, bool)
    for at, column in columns:
        values[at], is_missing[at] = column, False
    return np.ma.masked_array(values, is_missing) if is_missing.any() else values
