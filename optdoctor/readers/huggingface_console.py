"""What the Hugging Face `Trainer` prints: dictionaries amid progress bars and warnings.

Up to 4.x the values are floats and a bare nan or inf, from 5.0 on quoted texts of four digits.
Rows carry no step. A progress bar that moves from row to row gives it; else rows are counted, and
an evaluation stands at the last loss row. A second training in the file has a bar of its own, or
none: it begins where the epoch goes back to the first. Loggers, terminals and people add to the
dictionaries: prefixes, colours, arrows, breaks, other quotes.
"""

import re
from collections import Counter
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from math import gcd

from optdoctor.reading.huggingface_rows import (
    ALIASES,
    LOSSES,
    STEP_OF_TOTAL,
    Rows,
    is_final,
    is_same_row,
)
from optdoctor.reading.lazy_regex import lazy
from optdoctor.reading.log import MAX_NAME, Log, begins_anew, number
from optdoctor.reading.overflow_lines import add_overflow
from optdoctor.reading.reader import Head, Reader, Source
from optdoctor.reading.uniform_rows import UniformRows, learn

_ESCAPE = lazy(r"\x1b\[[0-?]*[ -/]*[@-~]|\x08+")
_QUOTES = str.maketrans("‘’“”", "''\"\"")  # noqa: RUF001  as word processors set them
_EVENT = lazy(
    # A bar; one with a description in front, such as "Map: ", is not the Trainer's.
    r"(?<!: ...)%\|[^|\r\n]*+\|[ ]*(?P<bar>\d{1,15})/(?P<bar_total>\d{1,15}) \["
    # A dictionary; a bar that tqdm draws anew right behind it is more exact than the one before.
    r"|(?P<row>\{\s*+['\"][^{}\r\n]*+\})"
    r"(?:[ \t]*+\r?\n\r[ \t]*+\d+%\|[^|\r\n]*+\|[ ]*"
    r"(?P<after>\d{1,15})/(?P<after_total>\d{1,15}) \[)?+"
    # A dictionary that a terminal broke into lines, or that was cut off.
    r"|(?P<broken>\{\s*+['\"][^{}\r\n]*+(?:\r?\n[^{}\r\n|%]{1,400}+){1,4}+\})"
    r"|(?P<torn>\{\s*+['\"][^{}\r\n]*+)"
    # One without its braces.
    r"|(?P<bare>(?<![\w'\"])'(?:eval_)?loss'[ \t]*:[^{}\r\n]*+)(?=[\r\n])"
    r"|(?P<overflow>(?:OVERFLOW|[Oo]verflow|Gradient overflow|Reducing dynamic"
    r"|Current loss scale|Minimum loss scale)[^\r\n]*+)"
)
_NUMBER = r"[-+0-9.enaif]++"
_PAIR = lazy(
    rf"(?P<quote>['\"])(?P<key>[^'\"]{{1,{MAX_NAME}}})(?P=quote)\s*:\s*(?:[\w.]{{1,30}}\()?"
    r"['\"]?(?P<value>[^'\",{}()]{1,64})"
)
_UNIFORM_PAIR = lazy(
    rf"'(?P<key>[^']{{1,{MAX_NAME}}})': (?:'?(?P<value>{_NUMBER})(?=[',}}])|'(?P<text>[^']*)')"
)
_WHOLE = lazy(r"\{\s*(?:(['\"])[^'\"]+\1\s*:\s*(?:[^'\",{}]+|'[^']*'),?\s*)+\}")
_ROW = lazy(
    r"\{\s*'[^{}\r\n]{0,10000}?(?<=')(?:eval_|embedding_)?loss(?:/policy_avg)?'"
    r"\s*:\s*(?:[\w.]{1,30}\()?'?\s*[-+]?(?:\d|\.\d|nan|inf)"
)
_QUOTED_ROW = lazy(
    r'\{"(?=[^{}\r\n]*+\})[^{}\r\n]*?"loss": ?"?[-+]?(?:\d|nan|NaN|inf|Inf)[^{}\r\n]*+\}'
)
_TYPICAL = lazy(
    r"\{(?=')(?=[^{}\r\n]*+\}[ \t]*+\r?\n\{)[^{}\r\n]*?'loss': [^{}\r\n]*+\}[ \t]*+\r?\n(?=\{)"
)
_ANNOUNCED = {
    "total_steps": r"Total (?:optimization )?steps = ([\d,]{1,20})",
    "accumulation_steps": r"Gradient Accumulation steps = (\d{1,9})",
    "batch_size": r"(?:Instantaneous batch size per device|Batch size per device) = (\d{1,9})",
}
_LONGEST_ROW = 4096
"""Characters of a row and the bar behind it."""
_TELLING_ROWS = 200
"""Loss rows by which it is decided what tells the steps."""
_MOST_FRESH = 0.8
"""Share of loss rows before each of which the bar must have moved, for it to tell their steps."""


def _sniff(head: Head) -> int:
    text = _plain(head.text)
    rows = len(_ROW.findall(text))
    if '"learning_rate"' in text and not rows:
        # Alone on its line such a row is JSON, which is no mark of a tool.
        lines = (line.strip() for line in re.split(r"[\r\n]+", text))
        inside = (line for line in lines if '"learning_rate"' in line and not line.startswith("{"))
        rows = sum(_QUOTED_ROW.search(line) is not None for line in inside)
    return rows


def _read(source: Source, log: Log) -> None:
    habits = _habits(_plain(source.head.text), log)
    console = _Console(log, Rows(log), *(habits or (0, 1)))
    shape: UniformRows | None = None
    held = ""
    for block in source.blocks():
        text = held + _plain(block)
        if habits is None:  # the head showed no row
            habits = _habits(text, log)
            console.total, console.copies = habits or (0, 1)
        at = 0
        if console.takes_columns:
            shape = _shape(text, shape)
        if shape is not None:
            for start, stop in shape.spans(text):
                if console.may_add_stretch(shape, text[start:stop], text[at:start]):
                    at = stop
        # The bar behind the last row is in the next block.
        last = text.rfind("{", max(at, len(text) - _LONGEST_ROW))
        stop = last if console.total and last >= 0 else len(text)
        console.add(text[at:stop])
        held = text[stop:]
    console.add(held)


def _plain(text: str) -> str:
    """Without colours and set quotes."""
    if "\x1b" in text or "\x08" in text:
        text = _ESCAPE.sub("", text)
    return text.translate(_QUOTES) if "‘" in text or "“" in text else text  # noqa: RUF001


def _shape(text: str, before: UniformRows | None) -> UniformRows | None:
    """The shape of the row in the middle of the text, or the one from before."""
    found = _TYPICAL.search(text, len(text) // 2) or _TYPICAL.search(text)
    if found is None:
        return before
    row, brace, end = found[0].rpartition("}")
    shape = learn(row + brace, end, _UNIFORM_PAIR, _NUMBER)
    if shape is None or STEP_OF_TOTAL in shape.names:
        return None
    return before if before is not None and shape == before else shape


@dataclass
class _Console:
    """Adds what the console shows, event by event."""

    log: Log
    rows: Rows
    total: int
    """Steps of the training bar, by which it is told from others; 0 where rows are counted."""
    copies: int
    """How often each row is printed."""
    _bar: int = 0
    _row_bar: int = -1  # the bar at the newest loss row
    _row_step: int = 0
    _row: dict[str, str] = field(default_factory=dict)  # the newest loss row
    _epoch_begun: float | None = None  # of the first loss row of this training
    _epoch: float = 0.0  # of the newest
    _other: tuple[int, int] = (0, 0)  # total and step of another bar since the newest loss row
    _text: str = ""
    _repeats: int = 0

    @property
    def takes_columns(self) -> bool:
        """Whether a row means the same wherever it stands."""
        return not self.total and self.copies == 1

    def may_add_stretch(self, shape: UniformRows, stretch: str, before: str) -> bool:
        """Adds the text before a stretch, and it; False where it holds what is no number."""
        columns = shape.columns(stretch)
        if columns is None:
            return False
        self.add(before)
        first = _values(stretch[: stretch.index("}") + 1])
        last = _values(stretch[stretch.rindex("{") :])
        if is_same_row(self._row, first):
            columns = {name: column[1:] for name, column in columns.items()}
        self.rows.add_columns(columns)
        self._row = last
        return True

    def add(self, text: str) -> None:
        """Adds text that ends at the end of a line."""
        for event in _EVENT.finditer(text):
            kind = event.lastgroup
            if kind == "bar_total":
                self._see_bar(event["bar"], event["bar_total"])
            elif kind == "overflow":
                if self.total:
                    self.log.at(self._bar)
                add_overflow(event["overflow"], self.log)
            elif event["row"] is not None:
                if kind == "after_total":
                    self._see_bar(event["after"], event["after_total"])
                self._add_row(event["row"])
            elif kind == "broken":
                joined = re.sub(r"\r?\n", "", event["broken"])
                is_whole = _WHOLE.fullmatch(joined) is not None
                self._add_row(joined) if is_whole else self.log.skip(first=event["broken"])
            elif kind == "bare":
                self._add_row("{" + event["bare"] + "}")
            else:
                self.log.skip(first=event["torn"])

    def _see_bar(self, at: str, total: str) -> None:
        if self.total and int(total) == self.total:
            self._bar = int(at)
            self._other = 0, 0
        else:
            self._other = int(total), int(at)

    def _add_row(self, text: str) -> None:
        values = _values(text)
        if not _is_row(values):
            if "'loss'" in text:
                self.log.skip(first=text)
            return
        self._repeats = self._repeats + 1 if text == self._text else 0
        self._text = text
        is_copy = self._repeats % self.copies > 0
        if is_copy or is_final(values):
            return
        if not any(name in values for name in LOSSES):
            self.rows.add(values, max(self._bar, self._row_step) if self.total else None)
            return
        if not is_same_row(self._row, values):
            if self.total:
                self._see_epoch(number(values.get("epoch")))
            self.rows.add(values, self._step() if self.total else None)
        self._row = values
        self._other = 0, 0

    def _see_epoch(self, epoch: float | None) -> None:
        """Begins another training where the epoch is back at the first and the bar is not ahead."""
        if epoch is None:
            return
        first, before, self._epoch = self._epoch_begun, self._epoch, epoch
        if first is None:
            self._epoch_begun = epoch
            return
        if not begins_anew(epoch, before, first) or self._bar > self._row_bar > 0:
            return
        self._epoch_begun = epoch
        self.log.begin()
        total, at = self._other
        if at < total:
            self.total, self._bar = total, at
        elif self._bar == self._row_bar:
            self.total = self._bar = 0
        self.log.facts["total_steps"] = self.total or None
        self._row_bar, self._row_step = -1, 0

    def _step(self) -> int:
        """The bar's, unless it stood still since the last row or has not caught up with it."""
        is_back = self._bar < self._row_bar
        self._row_step = self._bar if is_back else max(self._bar, self._row_step + 1)
        self._row_bar = self._bar
        return self._row_step


def _values(text: str) -> dict[str, str]:
    return {found["key"]: found["value"] for found in _PAIR.finditer(text)}


def _is_row(values: dict[str, str]) -> bool:
    """Whether it is what the Trainer logs and not a printed configuration."""
    if is_final(values) or any(name.endswith("_runtime") for name in values):
        return True
    return any(number(values.get(name)) is not None for name in (*LOSSES, "eval_loss"))


def _habits(text: str, log: Log) -> tuple[int, int] | None:
    """(total of the bar that tells steps or 0, copies of each row), None where no row is there."""
    for name, pattern in _ANNOUNCED.items():
        if found := re.search(pattern, text):
            log.facts[name] = int(found[1].replace(",", "")) or None
    bars: list[tuple[int, int]] = []  # (total, step) at each loss row
    texts: list[str] = []
    before = (0, 0)
    for event in _EVENT.finditer(text):
        if event["bar"]:
            before = int(event["bar_total"]), int(event["bar"])
        elif event["row"]:
            is_loss = _is_loss_row(event["row"])
            after = int(event["after_total"] or 0), int(event["after"] or 0)
            if event["after"] and (not is_loss or before[0] in (0, after[0])):
                before = after
            if is_loss:
                bars.append(before)
                texts.append(event["row"])
                if len(texts) == _TELLING_ROWS:
                    break
    if not texts:
        return None
    total = _telling_total(bars, log.facts.get("total_steps"))
    if total:
        log.facts.setdefault("total_steps", total)
    return total, _copies(texts)


def _is_loss_row(text: str) -> bool:
    values = _values(text)
    return not is_final(values) and any(number(values.get(name)) is not None for name in LOSSES)


def _telling_total(bars: list[tuple[int, int]], announced: object) -> int:
    """The total of the bar that moves from loss row to loss row; 0 where none does."""
    totals = Counter(total for total, at in bars if total and at)
    if not totals:
        return 0
    total = max(totals, key=lambda total: (total == announced, totals[total]))
    steps = [at if of == total else 0 for of, at in bars]
    fresh = sum(at > before for before, at in pairwise([0, *steps]))
    return total if fresh >= _MOST_FRESH * len(bars) else 0


def _copies(texts: list[str]) -> int:
    """How often each row is printed, as by every process of a run: 1 where any stands alone."""
    runs = [len(list(run)) for _, run in groupby(texts)]
    whole = runs[:-1]  # the last may be cut
    return gcd(*whole) if len(whole) >= 4 else 1


READER = Reader(
    name="huggingface-console",
    sniff=_sniff,
    read=_read,
    aliases=ALIASES,
    marks=("loss",),
    sample="""  1%|          | 1/90 [00:01<02:10,  1.5s/it]
{'loss': 2.25, 'grad_norm': 1.5, 'learning_rate': 3e-05, 'epoch': 0.1}
{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 2e-05, 'epoch': 0.2}
{'eval_loss': '2.125', 'eval_runtime': '4.5', 'epoch': '0.2'}
{'loss': '2.062', 'grad_norm': '1.25', 'learning_rate': '1e-05', 'epoch': '0.3'}
""",
)
