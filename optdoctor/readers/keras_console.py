"""What Keras 1, 2 and 3 print while `fit` runs: a row an epoch, whose values are means over it.

A progress bar is written anew over and over, with the mean since the epoch began: its last frame
is the row. One that never filled, because the log ends or the training died, shows a mean over
other data than the epochs before; it counts only where it shows a number that is not finite, or
where there is nothing else.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from optdoctor.knowledge.log_names import FREE_NAMES
from optdoctor.reading.lazy_regex import lazy
from optdoctor.reading.log import Log
from optdoctor.reading.reader import Head, Reader, Source
from optdoctor.reading.text_format import NUMBER, clean_lines, value_of

_BLANKS = r"[ \t]{1,12}"
_TIME = rf"\d[\d:]{{0,12}}(?:s|ms|us)?(?:{_BLANKS}\d{{1,9}}(?:s|ms|us)/(?:step|sample|epoch))?"
_TOKEN = lazy(
    r"Epoch (?P<epoch>\d{1,9})/(?P<epochs>\d{1,9})"
    # Behind the count Keras 1 and 2 write [===>..], Keras 3 ━━━, and verbose=2 neither.
    r"|(?<![\w./-])(?<!step )(?P<seen>\d{1,12})/(?P<of>\d{1,12}|Unknown)"
    rf"(?:{_BLANKS}(?:\[[=>.]{{0,200}}\]|━[━ ]{{0,200}}))?(?:{_BLANKS}-)?{_BLANKS}"
    rf"(?:(?P<eta>ETA: )|(?=[\d:]{{1,12}}(?:[smu]| \d+[mu]?s/))){_TIME}{_BLANKS}(?=-[ \t])"
    rf"|^[ \t]{{0,80}}(?:- )?\d+s(?:{_BLANKS}\d+(?:s|ms|us)/(?:step|sample))?{_BLANKS}"
    rf"(?=-[ \t]{{1,4}}[^:]{{1,60}}: {NUMBER})"
)
_PAIR = lazy(
    # Text may be glued to a value: 1.3988Batch 8: Invalid loss, terminating training
    r"-[ \t]{1,4}(?P<key>(?:(?! - )[^:\n]){1,80}): "
    rf"(?P<value>{NUMBER}|[-+]?(?:nan|inf))"
)


@dataclass
class _Bar:
    """One frame of a bar, or (with `epochs`) the line above it."""

    text: str = ""
    seen: int = 0
    of: int = 0  # 0 where it is not known
    is_over: bool = False
    epoch: int = 0
    epochs: int = 0

    @cached_property
    def values(self) -> dict[str, float]:
        """{name: number}; most frames are written over before anyone asks."""
        return {pair["key"]: value_of(pair["value"]) for pair in _PAIR.finditer(self.text)}

    @property
    def is_finite(self) -> bool:
        """Whether all that it shows is."""
        return all(map(math.isfinite, self.values.values()))


def _bars(lines: Iterator[str] | list[str]) -> Iterator[_Bar]:
    for line in clean_lines(lines):
        if "Epoch " not in line and ": " not in line:
            continue
        found = list(_TOKEN.finditer(line))
        ends = [*(token.start() for token in found[1:]), len(line)]
        for token, end in zip(found, ends, strict=False):
            if token["epoch"]:
                yield _Bar(epoch=int(token["epoch"]), epochs=int(token["epochs"]))
            elif _PAIR.search(line, token.end(), end):  # else it is one of `predict`
                seen = int(token["seen"] or 1)
                of = 0 if token["of"] == "Unknown" else int(token["of"] or 1)
                is_over = seen == of and not token["eta"]
                yield _Bar(line[token.end() : end], seen, of, is_over)


def _sniff(head: Head) -> int:
    return sum(not bar.epochs for bar in _bars(head.lines))


@dataclass
class _Epochs:
    """Turns frames into rows."""

    log: Log
    bar: _Bar = field(default_factory=_Bar)  # the newest frame that counts
    epoch: int = 0  # that the bar belongs to, 0 where no line named it
    is_counted: bool = False  # Epoch 1/1 again and again: `fit` is called in a loop
    num_rows: int = 0

    def see(self, frame: _Bar) -> None:
        """Takes the next frame."""
        if frame.epochs:
            self._begin(frame)
        elif self._goes_on(frame):
            self.bar = frame
        elif frame.of == self.bar.of and not self.epoch:
            # No line names epochs: each bar of this length is one.
            self.end(is_over=True)
            self.bar = frame

    def _goes_on(self, frame: _Bar) -> bool:
        bar = self.bar
        if not bar.text or (self.epoch and not bar.of and frame.seen >= bar.seen):
            return True
        if frame.of != bar.of or frame.seen < bar.seen:
            return False
        if bar.is_over:  # what comes now adds the numbers of the validation
            return frame.values.keys() > bar.values.keys()
        return True

    def _begin(self, line: _Bar) -> None:
        if line.epoch == 1 and not self.epoch:
            self.bar = _Bar()  # of an `evaluate` before the training
        elif not self.epoch:
            self.epoch = line.epoch - 1  # the head of the log is cut off
        self.end(is_over=self.is_counted or line.epoch == self.epoch + 1)
        self.is_counted = line.epochs == 1
        if not self.is_counted:
            self.log.facts["total_steps"] = line.epochs
        self.epoch = line.epoch
        self.bar = _Bar()

    def end(self, is_over: bool) -> None:
        """Adds the row of the bar that was written last."""
        bar = self.bar
        counts = is_over or bar.is_over or not bar.is_finite or not self.num_rows
        if not bar.text or not counts:
            return
        self.num_rows += 1
        if self.epoch and not self.is_counted:
            self.log.row({**bar.values, "epoch": self.epoch}, self.epoch)
        else:
            self.log.row(bar.values, self.num_rows)


def _read(source: Source, log: Log) -> None:
    log.facts["loss_form"] = "running mean"
    epochs = _Epochs(log)
    for frame in _bars(source.lines()):
        epochs.see(frame)
    epochs.end(is_over=False)


READER = Reader(
    "keras-console",
    _sniff,
    _read,
    FREE_NAMES,
    marks=("- ", "-\t"),
    sample="""Epoch 1/3
 50/250 [=====>........................] - ETA: 8s - loss: 2.3125 - acc: 0.1250\r\
250/250 [==============================] - 10s 40ms/step - loss: 2.1250 - acc: 0.2500 \
- val_loss: 2.1875 - val_acc: 0.1875
Epoch 2/3
 50/250 [=====>........................] - ETA: 8s - loss: 1.8750 - acc: 0.3750\r\
250/250 [==============================] - 10s 40ms/step - loss: 1.7500 - acc: 0.4375 \
- val_loss: 1.8125 - val_acc: 0.3750
Epoch 3/3
250/250 [==============================] - 10s 40ms/step - loss: nan - acc: 0.0000e+00 \
- val_loss: nan - val_acc: 0.0000e+00
""",
)
