"""What lines that differ in their digits only have in common, learned from one of them.

No expression of a text format tells one digit from another (see `is_blind`), so names and numbers
stand at the same places in all of them. Names in which digits stand, and numbers by which a format
mends its rows, are compared; all others may be what they like.
"""

import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Generic, Protocol, TypeVar, cast

from optdoctor.reading.lazy_regex import lazy
from optdoctor.trace import Fact

PLACES = ("step", "iter", "per_epoch", "total")
"""Names of numbers that say where a row stands; `epoch` is a value as well."""
MAX_VARIANTS = 64
"""Meanings of one shape, beyond which its lines are read by the format."""
_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_NO_DIGIT = lazy(r"\\d|\\x(?!3)[0-9a-fA-F]{2}|\{\d*,?\d*\}|0-9")
_PLAIN = lazy(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")

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
class Group(Generic[K]):
    """Rows of one meaning that wait to be added."""

    kind: K
    names: tuple[str, ...]
    """Of the numbers that are cut out."""
    channels: Mapping[str, str | float]
    """{name for the log: name of the number, or what it always is}."""
    values: "array[float]" = field(default_factory=lambda: array("d"))
    at: "array[int]" = field(default_factory=lambda: array("q"))


@dataclass(eq=False, slots=True)
class Variant(Generic[K]):
    """Lines of one shape in which all that decides about the meaning is the same."""

    group: Group[K]
    cut: Callable[[str], tuple[str, ...]]
    parse: Callable[[str], float]
    shown: Mapping[str, float]
    """{name whose newest value stands in every line: what it must be to be no news}."""
    lines: list[str] = field(default_factory=list)
    at: list[int] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Shape(Generic[K]):
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
    variants: dict[object, Variant[K]] = field(default_factory=dict)


class Shapes(Generic[K]):
    """Learns the shapes of lines for a format."""

    def __init__(self, text_format: Format[K]) -> None:
        self._format = text_format
        self._groups: dict[object, Group[K]] = {}
        untold = [k.mark for k in text_format.lines if not is_blind(text_format.expression(k))]
        untold += [k.mark for k in text_format.lines if not is_blind(k.mark)]
        untold += [text_format.new_run] if text_format.new_run else []
        self._untold = [mask for text in untold for mask in masks_of([text])]
        self._untold.append(b".#")  # C's 1.#INF, where one digit is not as good as another

    def forget(self) -> None:
        """Drops the groups."""
        self._groups.clear()

    def shape(self, line: str, mask: bytes) -> Shape[K]:
        """The shape of a line, whose mask is given too."""
        if any(text in mask for text in self._untold):
            return Shape(is_slow=True)
        kinds = [kind for kind in self._format.lines if kind.mark in line]
        found = [(kind, *of) for kind in kinds for of in self._format.spans(kind, line)]
        rows = [of for of in found if self._is_row(of[0], of[1])]
        if len(rows) != 1:
            is_slow = bool(found) or "scale" in line
            return Shape(is_skipped=any(kind.mark for kind in kinds), is_slow=is_slow)
        [(kind, spans, keys)] = rows
        shape = Shape(kind=kind, has_total="total" in spans)
        self._tell_by(shape, (span for span in keys if any(map(str.isdigit, line[slice(*span)]))))
        return shape

    def _is_row(self, kind: K, spans: Mapping[str, Span]) -> bool:
        """Whether it says anything that a kind stands in a line; beside a row it may not."""
        says = bool(spans or kind.values or kind.facts or self._format.fix)
        return says or kind is self._format.lines[0]

    def _tell_by(self, shape: Shape[K], spans: Iterable[Span]) -> None:
        shape.told_by |= frozenset(spans)
        slices = [slice(*span) for span in sorted(shape.told_by)]
        shape.telling = itemgetter(*slices) if slices else None
        shape.variants.clear()

    def variant(self, shape: Shape[K], line: str) -> Variant[K] | None:
        """What a line means, None where it has no value."""
        kind, read = shape.kind, self._format.number
        assert kind is not None
        spans = next(of for of, _ in self._format.spans(kind, line) if self._is_row(kind, of))
        row = {name: read(line[slice(*span)]) for name, span in spans.items()}
        shown = {name: row[name] for name in self._format.repeated & row.keys()}
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
        group = self._groups.setdefault(key, Group(kind, tuple(names), channels))
        texts = [line[place] for place in slices]
        is_plain = all(len(text) < 60 and _PLAIN.fullmatch(text) for text in texts)
        return Variant(group, itemgetter(*slices), float if is_plain else read, shown)
