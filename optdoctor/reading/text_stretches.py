"""Lines of text that differ in their digits only: understood once, then read by place.

Most of a long log are such lines. Numbers are cut out of them where they stood in the first, and
their rows are added to the log as columns. All other lines, and the first two of a shape, are read
one by one by the format itself; no row overtakes another.
"""

from array import array
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Generic

import numpy as np

from optdoctor.reading.columns import Values
from optdoctor.reading.log import Log
from optdoctor.reading.text_rows import (
    Distances,
    Part,
    last_stated,
    merged,
    merged_steps,
    steps_to_see,
)
from optdoctor.reading.text_shapes import (
    MAX_VARIANTS,
    Format,
    Group,
    K,
    Shape,
    Shapes,
    Variant,
    masks_of,
)

_MAX_SHAPES = 8192  # and variants of them
_MAX_CHARACTERS = 4096  # of a line whose shape is remembered
_FEW = 16  # rows that are added sooner one by one than as columns


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
        self._learned = Shapes(text_format)
        self._shapes: dict[bytes, Shape[K] | None] = {}  # None where it was seen once
        self._plain: dict[bytes, Variant[K]] = {}  # of shapes of a single meaning
        self._variants = 0  # learned since shapes were forgotten
        self._active: list[Variant[K]] = []
        self._waiting = 0

    def add(self, lines: Sequence[str]) -> None:
        """Adds the rows of whole lines."""
        if not lines:  # a block of line ends only
            return
        get, active = self._plain.get, self._active
        for line, mask in zip(lines, masks_of(lines), strict=True):
            variant = get(mask) or self._variant(line, mask)
            if variant is None:
                continue
            if not variant.lines:
                active.append(variant)
            variant.lines.append(line)
            variant.at.append(self._waiting)
            self._waiting += 1
        self._flush()

    def _variant(self, line: str, mask: bytes) -> Variant[K] | None:
        """What a line means; None where it was read, or holds nothing to read."""
        shape = self._shapes.get(mask)
        if shape is None:
            self._see(line, mask)
            return None
        if shape.is_slow:
            self._flush()
            self._by_line(line)
            return None
        if shape.kind is None:
            if shape.is_skipped:
                self._log.skip(first=line)
            return None
        variant = shape.variants.get(None if shape.telling is None else shape.telling(line))
        if (
            variant is None
            or (variant.shown and not _are_shown(variant.shown, self._shown))
            or (shape.has_total and "total_steps" not in self._log.facts)
        ):
            self._vary(shape, line)
            return None
        if shape.telling is None:  # then all of its lines mean the same from now on
            self._plain[mask] = variant
        return variant

    def _see(self, line: str, mask: bytes) -> None:
        """Reads a line whose shape is not known."""
        if mask in self._shapes:
            shape = self._shapes[mask] = self._learned.shape(line, mask)
            if shape.kind is not None:
                self._vary(shape, line)
                return
        elif len(mask) <= _MAX_CHARACTERS:
            self._forget_all_of_too_many()
            self._shapes[mask] = None
        self._flush()
        self._by_line(line)

    def _vary(self, shape: Shape[K], line: str) -> None:
        """Reads a line of a shape one by one, and learns what lines like it mean."""
        variant = self._learned.variant(shape, line)
        self._flush()
        is_row = self._by_line(line)
        if not is_row or len(shape.variants) == MAX_VARIANTS:
            shape.is_slow = True
        elif variant is not None:
            shape.variants[shape.telling(line) if shape.telling else None] = variant
            self._variants += 1
            self._forget_all_of_too_many()

    def _forget_all_of_too_many(self) -> None:
        if len(self._shapes) + self._variants < _MAX_SHAPES:
            return
        self._flush()
        self._shapes.clear()
        self._plain.clear()
        self._learned.forget()
        self._variants = 0

    def _flush(self) -> None:
        """Adds the rows that wait."""
        if not self._waiting:
            return
        rows, groups = self._waiting, self._taken()
        parts = [self._part(group) for group in groups]
        steps = merged_steps(parts, rows)
        for _, group in sorted((int(p.at[-1]), i) for i, p in enumerate(parts)):
            self._log.facts.update(groups[group].kind.facts)
        seen = None
        is_whole = rows >= _FEW
        if is_whole and self._format.is_window_mean:
            seen = steps_to_see(parts, steps, self._log.aliases)
            is_whole = seen is not None
        if not is_whole:
            self._add_one_by_one(parts, rows)
            return
        self._log.rows(merged(parts, rows), steps)
        if seen is not None and seen.size:
            self._distances.see_all(seen + (self._log.last_step - last_stated(steps)))

    def _taken(self) -> list[Group[K]]:
        """The rows that wait, by their meaning, in the order of the first of each."""
        groups: dict[Group[K], None] = {}
        for variant in self._active:
            group = variant.group
            groups[group] = None
            cut = chain.from_iterable(map(variant.cut, variant.lines))
            group.values.extend(map(variant.parse, cut))
            group.at.extend(variant.at)
            variant.lines, variant.at = [], []
        self._active.clear()
        self._waiting = 0
        return list(groups)

    def _part(self, group: Group[K]) -> Part:
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
        is_first_kind = group.kind is self._format.lines[0]
        steps = None if steps is None else steps + group.kind.offset
        return Part(at, columns, steps, is_first_kind)

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
        with np.errstate(invalid="ignore", over="ignore"):
            within = (np.floor(epoch) - (self._format.first_epoch or 0)) * per_epoch + at
        return np.where(np.isfinite(within), within, at)

    def _add_one_by_one(self, parts: Sequence[Part], rows: int) -> None:
        found: list[tuple[bool, dict[str, float], float | None]] = [None] * rows  # type: ignore[list-item]
        for part in parts:
            columns = [column.tolist() for column in part.columns.values()]
            steps = [None] * len(part.at) if part.steps is None else part.steps.tolist()
            for at, step, *row in zip(part.at.tolist(), steps, *columns, strict=True):
                found[at] = part.is_first_kind, dict(zip(part.columns, row, strict=True)), step
        for is_first_kind, values, step in found:
            self._log.row(values, step)
            if self._format.is_window_mean and is_first_kind:
                self._distances.see(self._log.last_step)


def _are_shown(values: Mapping[str, float], shown: Mapping[str, float]) -> bool:
    return all(shown.get(name) == value for name, value in values.items())
