"""GaLore, SPAM and their kin: `loss at N x`, where N counts micro-batches and x is divided.

The printed loss is the loss over the accumulation steps. Evaluations count updates. Two processes
often write into each other's line: the first number is the step, the last the loss.
"""

import math
import re

from optdoctor.reading.log import Log
from optdoctor.reading.reader import Head, Reader, Source
from optdoctor.reading.text_format import NUMBER, clean_lines, lines_of, value_of

_COUNT = r"\d{1,15}"
_LOSS = re.compile(
    rf"^\s*+loss at\s*+(?:loss at\s*+)?(?P<micro>{_COUNT})\s*+(?:loss at)?+(?:\s*+{_COUNT})?"
    rf"(?:loss at)?\s*+(?<![\d.])(?P<loss>{NUMBER})\s*$"
)
_EVALUATION = re.compile(rf"\bEval loss at step (?P<step>{_COUNT}): (?P<loss>{NUMBER})")
_RATE = re.compile(rf"^lr (?P<lr>{NUMBER})\s*$")
_SETTING = re.compile(
    r"\b(?P<name>gradient_accumulation|num_training_steps)\s+(?P<value>\d{1,15})\s*$"
)
_FACTS = {"gradient_accumulation": "accumulation_steps", "num_training_steps": "total_steps"}


def _sniff(head: Head) -> int:
    lines = (line for line in clean_lines(head.lines) if "loss at" in line)
    return sum(bool(_LOSS.match(line) or _EVALUATION.search(line)) for line in lines)


def _read(source: Source, log: Log) -> None:
    log.facts.update({"loss_kind": "falling", "loss_base": "nats", "loss_form": "divided"})
    accumulation = 1
    for line in lines_of(source):
        if setting := _SETTING.search(line):
            log.facts[_FACTS[setting["name"]]] = int(setting["value"])
            if setting["name"] == "gradient_accumulation":
                accumulation = max(int(setting["value"]), 1)
        elif rate := _RATE.match(line):
            log.row({"lr": value_of(rate["lr"])})
        elif "loss at" not in line:
            continue
        elif found := _EVALUATION.search(line):
            log.row({"eval_loss": value_of(found["loss"])}, int(found["step"]))
        elif found := _LOSS.match(line):
            step = math.ceil(int(found["micro"]) / accumulation)
            log.row({"loss": value_of(found["loss"])}, step)
        else:
            log.skip(first=line)
    if accumulation == 1:
        log.facts["loss_form"] = "mean"


READER = Reader(
    name="galore",
    sniff=_sniff,
    read=_read,
    aliases={"loss": "loss", "eval_loss": "eval_loss", "lr": "lr"},
    marks=("loss at",),
    sample="""gradient_accumulation          4
num_training_steps             900
loss at 4 2.625
loss at loss at404  404 1.875
lr 0.00125
2026-01-02 03:04:05.678 | INFO     | __main__:main:576 - Eval loss at step 150: 6.5,tokens_seen: 1
loss at 804 nan
""",
)
