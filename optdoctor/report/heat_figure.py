"""The heat map as HTML: labels, cells and bars, folded by layer where there are many rows."""

from collections.abc import Iterator, Sequence
from itertools import groupby, takewhile

import numpy as np
from numpy.typing import NDArray

from optdoctor.report.axes import sample_axis, x_axis
from optdoctor.report.curve import Mark
from optdoctor.report.heat import CLASSES, COLUMNS, Map
from optdoctor.report.markup import code, escaped, isolated, said, table
from optdoctor.report.tensors import bare_name
from optdoctor.report.wording import counted, number, percent, quantity, shorten
from optdoctor.trace import TensorInfo, Trace

UNFOLDED = 40
"""Rows up to which every tensor has its own, and up to which folds are open at first."""
NUMBERS = 200
"""Tensors that the table of numbers lists."""
_ROW, _GAP = 15, 4  # units of height of a row, and between blocks
_LABEL = 30  # characters of a tensor's label
_LETTER = (1.2, 6.5)  # percent of the width that a letter takes, as `axes.LETTER`
_NUMBER = 5  # characters of a number of the key, where each has its own


def render(found: Map, trace: Trace, unit: str, mark: Mark | None, prefix: str) -> str:
    """The figure, its key and its numbers as a table."""
    names = _labels(found.tensors)
    groups = list(_groups(found))
    folds = [] if len(names) <= UNFOLDED else list(_folds(groups, found))
    room = max(
        (len(text) for text in (*names, *(f"> {title}" for title, _, _ in folds))), default=0
    )
    line = _line(found, trace.steps, mark)
    head = "largest value" if found.scale.limit is None else "beyond the limit"
    head = "largest" if found.scale.unit in ("share", "%") and found.scale.above else head
    top = (
        f'<div class="heat"><div class="hd"></div><div class="hd">{_across(found, unit)}</div>'
        f'<div class="hd">{head}</div></div>'
    )
    body = "".join(_fold(found, *fold, names, line) for fold in folds)
    body = body or _rows(found, list(range(len(names))), names, line)
    labels = (
        sample_axis(found.columns, unit, _LETTER)
        if found.columns
        else x_axis(trace.steps, unit, mark, _LETTER)
    )
    axis = f'<div class="heat foot"><div></div>{labels}<div></div></div>'
    figure = f'<div class="map" style="--lab:{min(room, _LABEL)}ch">{top}{body}{axis}</div>'
    return f"{figure}{_key(found)}{_numbers(found, unit, prefix)}"


def _across(found: Map, unit: str) -> str:
    return f"by sample, at its {unit}" if found.columns else f"by {unit}"


def _line(found: Map, span: tuple[int, int], mark: Mark | None) -> float | None:
    """Where the mark's line stands, in columns; between samples, before the first after it."""
    if mark is None:
        return None
    if found.columns:
        before = sum(step < mark.step for step in found.columns)
        return before / len(found.columns) * COLUMNS
    return (mark.step - span[0]) / max(span[1] - span[0], 1) * COLUMNS


def _labels(tensors: Sequence[TensorInfo]) -> list[str]:
    """The names without what all of them begin with, and without `.weight`."""
    parts = [tensor.name.split(".") for tensor in tensors]
    alike = takewhile(lambda same: len(set(same)) == 1, zip(*parts, strict=False))
    shared = len(list(alike)) if len(parts) > 1 else 0
    # "4.weight", not "weight" nor "4": a name, if a short one, has two parts.
    tails = [".".join(p[max(min(shared, len(p) - 2), 0) :]) for p in parts]
    return [shorten(bare_name(tail, tails), _LABEL) for tail in tails]


def _groups(found: Map) -> Iterator[tuple[str, list[int]]]:
    """(layer, rows) in order of depth."""
    rows = range(len(found.tensors))
    for layer, members in groupby(rows, key=lambda i: found.tensors[i].layer):
        yield layer, list(members)


def _folds(
    groups: list[tuple[str, list[int]]], found: Map
) -> Iterator[tuple[str, list[int], bool]]:
    """(title, rows, whether it is open): of many layers neighbours with nothing to see are one."""
    many, room = len(groups) > UNFOLDED, UNFOLDED

    def is_sick(group: tuple[str, list[int]]) -> bool:
        return any(found.tensors[i].name in found.sick for i in group[1])

    for sick, neighbours in groupby(groups, key=is_sick):
        members = list(neighbours)
        if many and not sick and len(members) > 1:
            title = _range(members[0][0], members[-1][0])
            yield title, [i for _, rows in members for i in rows], False
            continue
        for layer, rows in members:
            opens = sick and room >= len(rows)
            room -= len(rows) if opens else 0
            yield layer or "outside blocks", rows, opens


def _range(first: str, last: str) -> str:
    """`layers.1 to 36`."""
    stem, dot, _ = first.rpartition(".")
    if dot and last.startswith(f"{stem}."):
        return f"{first} to {last.removeprefix(f'{stem}.')}"
    return f"{first or 'first'} to {last or 'last'}"


def _fold(
    found: Map, title: str, rows: list[int], opens: bool, names: list[str], line: float | None
) -> str:
    """A layer that opens into its tensors; closed it shows the worst of them."""
    if len(rows) == 1:
        return _rows(found, rows, names, line)
    worst = found.cells[rows].max(axis=0, keepdims=True)
    sick = sum(found.tensors[i].name in found.sick for i in rows)
    title = shorten(title, _LABEL)
    label = f"<b>{isolated(title)}</b>" if sick else isolated(title)
    count = f"{sick} of {len(rows)}" if sick else f"{len(rows)} tensors"
    summary = (
        f'<summary><span class="heat"><span class="lab"><span>{label}</span></span>'
        f'{_cells_svg(worst, [0.0], _ROW, line)}<span class="bars t">{count}</span></span>'
        "</summary>"
    )
    return (
        f"<details{' open' if opens else ''}>{summary}{_rows(found, rows, names, line)}</details>"
    )


def _rows(found: Map, rows: list[int], names: list[str], line: float | None) -> str:
    """Labels, cells and bars of these tensors; a gap lies between blocks."""
    tops, top = [], 0.0
    for before, row in zip([rows[0], *rows], rows, strict=False):
        top += _GAP if found.tensors[before].layer != found.tensors[row].layer else 0
        tops.append(top)
        top += _ROW
    labels, bars = [], []
    for row, y in zip(rows, tops, strict=True):
        tensor, style = found.tensors[row], f' style="top:{y:g}px"'
        bold = tensor.name in found.sick
        name = isolated(names[row])
        name = f"<b>{name}</b>" if bold else name
        labels.append(f'<span title="{escaped(tensor.name)}"{style}>{name}</span>')
        bars.append(_bar(found, row, y))
    return (
        f'<div class="heat" style="height:{top:g}px"><div class="lab" aria-hidden="true">'
        f"{''.join(labels)}</div>{_cells_svg(found.cells[rows], tops, top, line)}"
        f'<div class="bars" aria-hidden="true">{"".join(bars)}</div></div>'
    )


def _bar(found: Map, row: int, top: float) -> str:
    scale, worst = found.scale, float(found.worst[row])
    of_value = scale.unit in ("share", "%") and scale.above
    share = found.beyond[row]
    text = percent(share * 100) if share else "0"
    if of_value or scale.limit is None:
        text = "–" if np.isnan(worst) else quantity(worst, scale.unit if of_value else "1")
        share = worst / (100 if scale.unit == "%" else 1) if of_value else 0
    share = float(np.clip(np.nan_to_num(share), 0, 1))
    grave = found.beyond[row] > 0
    bar = f'<i style="--s:{share:.3f}"></i>' if share > 0 else ""
    kind = ' class="g"' if grave else ""
    return f'<span{kind} style="top:{top:g}px">{bar}{said(text)}</span>'


def _cells_svg(
    cells: NDArray[np.int8], tops: Sequence[float], height: float, line: float | None
) -> str:
    """One path a class: strokes as thick as a row."""
    strokes: dict[int, list[str]] = {}
    for row, top in zip(cells, tops, strict=True):
        starts = np.flatnonzero(np.r_[True, np.diff(row) != 0])
        ends = np.append(starts[1:], row.size)
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            if row[start] >= 0:
                stroke = f"M{start} {top + _ROW / 2:g}h{end - start}"
                strokes.setdefault(int(row[start]), []).append(stroke)
    paths = "".join(f'<path class="c{c}" d="{"".join(d)}"/>' for c, d in sorted(strokes.items()))
    event = "" if line is None else f'<path class="ev" d="M{line:.1f} 0V{height:g}"/>'
    return (
        f'<span class="cells"><svg viewBox="0 0 {COLUMNS} {height:g}" preserveAspectRatio="none"'
        f' aria-hidden="true">{paths}{event}</svg></span>'
    )


def _key(found: Map) -> str:
    """The hue with the numbers between its steps, and what the last one means."""
    scale = found.scale
    unit = scale.unit if scale.unit in ("share", "%") else "1"
    shown = range(CLASSES) if len(scale.edges) > 1 else (0, CLASSES - 1)
    ramp = "".join(f'<i class="q{c}"></i>' for c in shown)
    marks = [
        (position / len(shown) * 100, quantity(edge, unit))
        for position, edge in enumerate(scale.edges, 1)
    ]
    marks.reverse()  # the limit, at the end, is the number that must be there
    narrow = max((len(text) for _, text in marks), default=0) > _NUMBER
    numbers = "".join(
        f'<span style="left:{at:.1f}%">{said(text)}</span>'
        for at, text in (marks[::2] if narrow else marks)
    )
    text = "The colours run from the smallest value to the largest."
    if scale.limit is not None:
        way = "above" if scale.above else "below"
        text = f"The last colour lies {way} the limit, {quantity(scale.limit, unit)}."
    count = counted(found.samples, "sample")
    text += f" {count}." if found.columns else f" {count}; empty where none is near."
    return (
        f'<div class="key"><div class="ramp" aria-hidden="true">{ramp}</div>'
        f'<div class="rt" aria-hidden="true">{numbers}</div><p>{said(text)}</p></div>'
    )


def _numbers(found: Map, unit: str, prefix: str) -> str:
    """The tensors of the finding, or all, in numbers; the worst first."""
    away = np.where(
        np.isnan(found.worst), -np.inf, found.worst if found.scale.above else -found.worst
    )
    rows = sorted(
        range(len(found.tensors)),
        key=lambda i: (found.tensors[i].name not in found.sick, -away[i], i),
    )
    shown = rows[:NUMBERS]
    kind = found.scale.unit if found.scale.unit in ("share", "%") else "1"

    def cell(value: float) -> str:
        return said("–" if np.isnan(value) else quantity(value, kind))

    def worst(i: int) -> str:
        step = int(found.worst_step[i])
        return cell(found.worst[i]) + (f" at {step:,}" if step >= 0 else "")

    body = (
        (
            f'<span class="name">{isolated(found.tensors[i].name)}</span>',
            number(found.tensors[i].num_elements),
            cell(found.at_onset[i]),
            worst(i),
        )
        for i in shown
    )
    title = "largest" if found.scale.above else "smallest"
    head = [
        ("Tensor", ""),
        ("elements", "n"),
        (f"{unit} {found.onset:,}", "n"),
        (f"{title} of the run", "n"),
    ]
    more = len(rows) - len(shown)
    tail = f"<p>{more:,} more are in the record.</p>" if more else ""
    label = f"{found.channel} in numbers"
    return (
        f'<details id="{prefix}numbers"><summary>{code(found.channel)} in numbers, the worst'
        f" first</summary>{table(head, body, label)}{tail}</details>"
    )
