"""Megatron-LM's golden values: {"lm loss": {"start_step": .., "values": {"1": 10.5, ..}}, ..}.

Read by its tokens, so that a file that was cut still gives its rows. "nan" in quotes stands for a
step that was not measured. Older files hold a list of values instead of steps.
"""

import re
from collections.abc import Iterator

from optdoctor.reading.log import MAX_STEP, Log, number
from optdoctor.reading.reader import Head, Reader, Source

_NUMBER = r"(?>[-+]?(?:\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|NaN|Infinity))"
_TOKEN = re.compile(
    rf'"(?P<key>[^"\n]{{1,100}})"\s*:\s*(?:(?P<opens>[{{\[])|(?P<value>{_NUMBER})(?![\w.]))'
    rf'|(?<![\w.+-])(?P<item>{_NUMBER}|"nan")(?=\s*[,\]\n])|(?P<closes>\])'
)
_CLOCKS = (
    "iteration-time",
    "iteration_timing_avg",
    "mem-allocated-bytes",
    "mem-max-allocated-bytes",
)
_ALIASES = {"lm loss": "loss", **dict.fromkeys(_CLOCKS, "")}
_MARKS = ('"start_step"', '"step_interval"', '"values"')


def _sniff(head: Head) -> int:
    if not all(mark in head.text for mark in _MARKS) or not head.text.lstrip().startswith("{"):
        return 0
    return sum(1 for _ in _rows(iter([head.text])))


def _read(source: Source, log: Log) -> None:
    log.facts.update({"loss_kind": "falling", "loss_base": "nats"})
    for name, value, step in _rows(source.blocks()):
        if _ALIASES.get(name) != "":
            log.row({name: value}, step)


def _rows(blocks: Iterator[str]) -> Iterator[tuple[str, float, int]]:
    """(series, value, step) of each number in `values`."""
    series, is_list = "", False
    step, interval = 0, 1
    for block in blocks:
        for token in _TOKEN.finditer(block):
            key, value = token["key"], number(token["value"])
            if token["opens"]:
                is_list = token["opens"] == "["
                if key != "values":
                    series, step, interval = key, 0, 1
            elif token["closes"]:
                is_list = False
            elif key in ("start_step", "step_interval") and value is not None:
                whole = int(value) if 0 <= value < MAX_STEP else 0
                step, interval = (whole, interval) if key == "start_step" else (step, whole)
            elif key and key.isdecimal() and len(key) < 16 and value is not None:
                yield series, value, int(key)
            elif token["item"] and is_list:
                if (item := number(token["item"])) is not None:
                    yield series, item, step
                step += interval


READER = Reader(
    name="megatron-golden",
    sniff=_sniff,
    read=_read,
    aliases=_ALIASES,
    grows=False,
    marks=_MARKS[:1],
    sample="""{
 "lm loss": {
  "start_step": 1,
  "end_step": 4,
  "step_interval": 1,
  "values": {
   "1": 10.75,
   "2": 10.5,
   "3": "nan",
   "4": 9.25
  }
 },
 "iteration-time": {
  "start_step": 1,
  "end_step": 4,
  "step_interval": 1,
  "values": {
   "1": "nan",
   "4": 0.25
  }
 }
}
""",
)
