"""NVIDIA's DLLogger (DeepLearningExamples): lines of text that begin with DLL, of JSON with DLLL.

A step is a list: the epoch, the iteration and, in an evaluation, its batch. A line of fewer
numbers than others sums up what they said.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from optdoctor.knowledge.log_names import FREE_NAMES
from optdoctor.reading.log import Log, number
from optdoctor.reading.reader import Head, Reader, Source
from optdoctor.reading.text_format import NUMBER, clean_lines, lines_of, value_of

_TEXT = re.compile(r"\bDLL [\d-]{8,10} [\d:.]{6,20} - (?P<rest>[^\n]*)")
_JSON = "DLLL {"
_STEP = re.compile(r"[A-Z][A-Za-z]*(?: [A-Z][A-Za-z]*){0,3} ?: {1,8}(?P<at>\d{1,15})(?!\S)")
_PAIR = re.compile(rf"(?<!\S)(?P<key>[A-Za-z][\w./-]{{0,60}}) : (?P<value>{NUMBER})")
_LOSSES = (
    # The mean since the last line, before the loss of one batch.
    *("average_loss", "avg_loss", "avg_loss_step", "step_loss", "total_loss", "train.loss"),
    *("train_iteration_loss", "train_loss", "loss"),
)
_DECODER = json.JSONDecoder()
_EVALUATIONS = ("val.loss", "val_loss", "eval_loss", "validation_loss")


@dataclass(frozen=True, slots=True)
class _Row:
    step: tuple[int, ...]
    """Epoch and iteration, one of them alone, or () where it stands at the row before."""
    values: dict[str, float]


def _of_json(line: str) -> _Row | None:
    try:
        record, _ = _DECODER.raw_decode(line, line.index("{"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or record.get("type") != "LOG":
        return None
    data, step = record.get("data"), record.get("step")
    if not isinstance(data, dict):
        return None
    steps = step if isinstance(step, list) else [step]
    at = tuple(v for v in steps if isinstance(v, int) and not isinstance(v, bool))
    values = {str(name): parsed for name, v in data.items() if (parsed := number(v)) is not None}
    return _Row(at if len(steps) < 3 else (), values) if values and step != "PARAMETER" else None


def _of_text(rest: str) -> _Row | None:
    if rest.startswith("PARAMETER"):
        return None
    pairs = list(_PAIR.finditer(rest))
    if not pairs:
        return None
    place = rest[: pairs[0].start()]
    at = () if "Validation" in place else tuple(int(f["at"]) for f in _STEP.finditer(place))
    return _Row(at[:2], {pair["key"]: value_of(pair["value"]) for pair in pairs})


def _rows(lines: Iterator[str] | list[str]) -> Iterator[_Row]:
    for line in clean_lines(lines):
        if "DLL" not in line:
            continue
        row = None
        if _JSON in line:
            row = _of_json(line[line.index(_JSON) :])
        elif found := _TEXT.search(line):
            row = _of_text(found["rest"])
        if row is not None:
            yield row


def _sniff(head: Head) -> int:
    return sum(1 for _ in _rows(head.lines))


def _read(source: Source, log: Log) -> None:
    log.facts |= {"loss_kind": "falling", "loss_form": "mean"}
    usual = max((len(row.step) for row in _rows(source.head.lines)), default=1)
    log.count_from_one()
    for row in _rows(lines_of(source)):
        if len(row.step) == usual == 2:
            epoch, iteration = row.step
            log.row({**row.values, "epoch": epoch}, iteration)
        elif len(row.step) == usual == 1:
            log.row(row.values, row.step[0])
        else:
            rest = {n: v for n, v in row.values.items() if n not in _LOSSES}
            if rest:
                log.row(rest)


READER = Reader(
    "dllogger",
    _sniff,
    _read,
    dict.fromkeys(_LOSSES, "loss")
    | dict.fromkeys(_EVALUATIONS, "eval_loss")
    | {n: c for n, c in FREE_NAMES.items() if n not in (*_LOSSES, *_EVALUATIONS)},
    marks=("DLL",),
    sample="""DLL 2026-01-02 03:04:05.678901 - PARAMETER learning_rate : 0.00025
DLL 2026-01-02 03:05:05.678901 - Training Epoch: 0 Training Iteration: 50  average_loss : 9.25  \
step_loss : 9.125  learning_rate : 0.000125
DLL 2026-01-02 03:06:05.678901 - Training Epoch: 0 Training Iteration: 100  average_loss : 7.75  \
step_loss : 7.5  learning_rate : 0.00025
DLLL {"timestamp": "1767322000.0", "datetime": "2026-01-02 03:07:05.678901", \
"elapsedtime": "99.5", "type": "LOG", "step": [0, 150], \
"data": {"average_loss": NaN, "step_loss": NaN, "learning_rate": 0.00025}}
DLL 2026-01-02 03:08:05.678901 - e2e_train_time : 192.5
""",
)
