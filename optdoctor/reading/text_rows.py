"""Rows of several meanings put together as columns, and the distances between their steps."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from optdoctor.reading.columns import MAX_STEP, AnyColumn, Values
from optdoctor.store import IntArray


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


@dataclass(frozen=True, eq=False, slots=True)
class Part:
    """Rows of one meaning."""

    at: IntArray
    """[T]: their places among all rows."""
    columns: Mapping[str, Values]
    """{name for the log: [T]}."""
    steps: Values | None
    """[T]: None where they state none."""
    is_first_kind: bool
    """Whether distances between their steps count."""


def merged_steps(parts: Sequence[Part], rows: int) -> AnyColumn | None:
    """[rows]: the steps of all parts, None where no row states one."""
    stated = [(part.at, part.steps) for part in parts if part.steps is not None]
    return _placed_in(stated, rows) if stated else None


def merged(parts: Sequence[Part], rows: int) -> dict[str, AnyColumn]:
    """{name for the log: its values}, [rows], in the order in which rows bring the names."""
    found: dict[str, list[tuple[IntArray, Values]]] = {}
    for part in parts:
        for name, values in part.columns.items():
            found.setdefault(name, []).append((part.at, values))
    return {name: _placed_in(columns, rows) for name, columns in found.items()}


def last_stated(steps: AnyColumn | None) -> int:
    """The last of the steps, of which there is one."""
    return int(np.ma.compressed(np.ma.asarray(steps))[-1])


def steps_to_see(
    parts: Sequence[Part], steps: AnyColumn | None, aliases: Mapping[str, str]
) -> IntArray | None:
    """Steps of the rows whose distances count, as logged; None where a log may move them apart.

    It does where steps fall or an epoch begins anew.
    """
    first = [part.at for part in parts if part.is_first_kind]
    if steps is None or any(part.steps is None for part in parts if part.is_first_kind):
        return None
    plain = np.ma.filled(steps, np.nan)
    stated = np.flatnonzero(~np.isnan(plain))
    whole = plain[stated]
    if not ((whole >= 0) & (whole < MAX_STEP)).all() or len(stated) < sum(
        len(part.at) for part in parts if part.steps is not None
    ):
        return None
    logged = whole.astype(np.int64)
    at = np.sort(np.concatenate(first)) if first else stated[:0]
    columns = merged(parts, len(plain))
    if (logged[1:] < logged[:-1]).any() or not _stay_in_epoch(columns, aliases, stated, logged, at):
        return None
    return logged[np.searchsorted(stated, at)]


def _stay_in_epoch(
    columns: Mapping[str, AnyColumn],
    aliases: Mapping[str, str],
    stated: IntArray,
    logged: IntArray,
    first: IntArray,
) -> bool:
    """Whether epochs rise, and steps wherever a row has an epoch."""
    of = {name: aliases.get(name.strip(), name.strip()) for name in columns}
    epochs = [columns[name] for name, channel in of.items() if channel == "epoch"]
    losses = [columns[name] for name, channel in of.items() if channel == "loss"]
    if len(epochs) != 1:
        return not epochs
    has_epoch = ~np.ma.getmaskarray(epochs[0])
    told = np.ma.getdata(epochs[0])[has_epoch]
    if not (told[1:] >= told[:-1]).all():
        return False
    # The first loss after the rows before these may begin an epoch.
    if len(first) and any(np.ma.getmaskarray(loss)[first[0]] for loss in losses):
        return False
    rises = np.append(True, logged[1:] > logged[:-1])
    return bool(rises[has_epoch[stated]].all())


def _placed_in(columns: Sequence[tuple[IntArray, Values]], rows: int) -> AnyColumn:
    if len(columns) == 1 and len(columns[0][0]) == rows:
        return columns[0][1]
    values, is_missing = np.full(rows, math.nan), np.ones(rows, bool)
    for at, column in columns:
        values[at], is_missing[at] = column, False
    return np.ma.masked_array(values, is_missing) if is_missing.any() else values
