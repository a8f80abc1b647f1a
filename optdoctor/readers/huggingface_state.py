"""Hugging Face `trainer_state.json`, whole or cut off anywhere.

The history is taken object by object and never as one document: a file that a killed job left half
written still holds every row before the cut, and a large one never stands in memory whole. NaN and
Infinity stand there as bare tokens.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from optdoctor.reading.huggingface_rows import ALIASES, STEP, Rows
from optdoctor.reading.log import Log
from optdoctor.reading.reader import HEAD_BYTES, MAX_LINE, Head, Reader, Source, Unreadable
from optdoctor.reading.uniform_rows import JSON_NUMBER, JSON_PAIR, UniformRows, learn

_HISTORY = re.compile(r'"log_history"\s*:\s*\[')
_LONGEST_BEGINNING = 200  # characters that an unfinished `_HISTORY` may take
_MAX_FAILURES = 1000  # each may cost a scan of what follows
_LONGEST_TOKEN = 20  # characters of a name or number of JSON that may be cut
_TYPICAL = re.compile(
    r'\{\s*+(?=")(?=[^{}\[\]]*+\}\s*+,\s*+\{)[^{}\[\]]*?"loss"[^{}\[\]]*+\}(?P<end>\s*,\s*)(?=\{)'
)


def _sniff(head: Head) -> int:
    return 0 if _HISTORY.search(head.text) is None else max(1, head.text.count('"step"'))


def _read(source: Source, log: Log) -> None:
    history = _History(log, Rows(log))
    for block in source.blocks():
        history.add(block)
    history.end()
    if not history.is_found:
        raise Unreadable("it holds no log_history", "point at the newest checkpoint's state")
    log.facts["total_steps"] = history.integer("max_steps")
    log.facts["batch_size"] = history.integer("train_batch_size")
    # With logging_strategy="epoch" the stated interval is an unused default above the true one.
    intervals = history.integer("logging_steps"), log.loss_interval
    log.facts["loss_window"] = min(filter(None, intervals), default=None)


@dataclass
class _History:
    """Adds the rows of the history from pieces of the file that end anywhere."""

    log: Log
    rows: Rows
    is_found: bool = False
    _is_over: bool = False
    _about: list[str] = field(default_factory=list)  # the state around its history
    _rest: str = ""  # not understood until more follows
    _shape: UniformRows | None = None
    _failures: int = 0

    def add(self, piece: str) -> None:
        """Takes the next piece."""
        text = self._rest + piece
        self._rest = ""
        if not self.is_found:
            start = _HISTORY.search(text)
            self._remember(text[: start.start() if start else len(text)])
            if start is None:
                self._rest = text[-_LONGEST_BEGINNING:]
                return
            self.is_found = True
            text = text[start.end() :]
        self._take(text, is_last=False)

    def end(self) -> None:
        """Takes what is left where no more follows."""
        if self.is_found:
            self._take(self._rest, is_last=True)
            self.log.skip(self._failures)

    def integer(self, name: str) -> int | None:
        """The positive integer beside a name of the state, wherever the file is cut."""
        found = re.search(rf'"{name}"\s*:\s*(\d{{1,15}})\s*[,}}]', "".join(self._about))
        return int(found[1]) or None if found else None

    def _remember(self, text: str) -> None:
        if sum(map(len, self._about)) < HEAD_BYTES:
            self._about.append(text[:HEAD_BYTES])

    def _take(self, text: str, is_last: bool) -> None:
        at = 0
        if not self._is_over and (shape := self._shape_in(text)):
            for start, stop in shape.spans(text):
                columns = shape.columns(text[start:stop])
                if columns is None:
                    continue
                self._take_objects(text[at:start], is_last=True)
                if self._is_over:
                    break
                self.rows.add_columns(columns)
                at = stop
        if self._is_over:
            self._remember(text[at:])
        else:
            self._take_objects(text[at:], is_last)

    def _shape_in(self, text: str) -> UniformRows | None:
        """The shape of the row in the middle of the text."""
        found = _TYPICAL.search(text, len(text) // 2) or _TYPICAL.search(text)
        if found is not None:
            row = found[0][: found.start("end") - found.start()]
            shape = learn(row, found["end"], JSON_PAIR, JSON_NUMBER)
            if shape is not None and shape != self._shape:
                self._shape = shape if STEP in shape.names else None
        return self._shape

    def _take_objects(self, text: str, is_last: bool) -> None:
        """Adds the complete objects of a list; what is cut or torn counts as a skipped line."""
        stop = 0
        for row, end in self._objects(text, is_last):
            self.rows.add(row)
            stop = end
        if self._is_over:
            self._remember(text[stop:])

    def _objects(self, text: str, is_last: bool) -> Iterator[tuple[dict[str, object], int]]:
        """(object, where it ends) one by one."""
        decoder = json.JSONDecoder()
        at = 0
        while self._failures < _MAX_FAILURES:
            brace = text.find("{", at)
            if text[at : brace if brace >= 0 else len(text)].lstrip().startswith("]"):
                self._is_over = True
                return
            if brace < 0:
                return
            try:
                found, at = decoder.raw_decode(text, brace)
            except (ValueError, RecursionError) as error:
                if not is_last and len(text) - brace < MAX_LINE and _ran_out(error, text):
                    self._rest = text[brace:]
                    return
                self._failures += 1
                at = brace + 1
                continue
            yield found, at


def _ran_out(error: Exception, text: str) -> bool:
    """Whether an object could not be decoded because the text ends within it."""
    if not isinstance(error, json.JSONDecodeError):
        return False
    return error.pos > len(text) - _LONGEST_TOKEN or error.msg.startswith("Unterminated string")


READER = Reader(
    name="huggingface-state",
    sniff=_sniff,
    read=_read,
    aliases=ALIASES,
    grows=False,
    marks=('"log_history"',),
    sample="""{
  "best_metric": null, "epoch": 0.3, "global_step": 30,
  "log_history": [
    {"epoch": 0.1, "grad_norm": 1.5, "learning_rate": 3e-05, "loss": 2.25, "step": 10},
    {"epoch": 0.2, "grad_norm": NaN, "learning_rate": 2e-05, "loss": 0.0, "step": 20},
    {"epoch": 0.3, "eval_loss": 2.125, "eval_runtime": 4.5, "step": 30}
  ],
  "logging_steps": 10, "max_steps": 300, "train_batch_size": 8
}
""",
)
