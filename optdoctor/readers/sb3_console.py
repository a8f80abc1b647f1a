"""The boxes that Stable-Baselines, Stable-Baselines3 and Baselines print: one a dump of the logger.

Names are those of progress.csv, the section in front: `train/loss`. The objective is a reward.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from optdoctor.knowledge.log_names import FREE_NAMES
from optdoctor.reading.log import Log
from optdoctor.reading.reader import Head, Reader, Source
from optdoctor.reading.text_format import NUMBER, clean_lines, value_of

_EDGE = re.compile(r"(?:^|\s)-{10,}\s*$")
_CELLS = re.compile(
    r"\| (?P<indent> {0,40})(?P<key>[^| ][^|]{0,80})\|"
    rf" {{0,80}}(?:(?P<value>{NUMBER})|(?P<text>[^|]{{0,80}})) {{0,80}}\|\s*$"
)
_STEPS = (
    *("time/total_timesteps", "total_timesteps", "total timesteps", "misc/total_timesteps"),
    *("steps", "TimestepsSoFar", "TotalEnvInteracts"),
)
_CLOCKS = ("fps", "time_elapsed", "time_remaining_est", "iterations", "episodes")


@dataclass
class _Box:
    section: str = ""
    values: dict[str, float] = field(default_factory=dict)

    def add(self, line: str) -> None:
        """Takes one line of the box."""
        cells = _CELLS.search(line)
        if cells is None:
            return
        key = cells["key"].rstrip()
        if key.endswith("/") and not cells["value"]:
            self.section = key
        elif cells["value"]:
            section = self.section if len(cells["indent"]) >= 3 else ""
            self.values[section + key] = value_of(cells["value"])

    @property
    def step(self) -> float | None:
        """Steps in the environment so far."""
        return next((self.values[name] for name in _STEPS if name in self.values), None)


def _boxes(lines: Iterator[str] | list[str]) -> Iterator[_Box]:
    """The boxes that are complete and say at which step they stand."""
    box: _Box | None = None
    for line in clean_lines(lines):
        if _EDGE.search(line):
            if box is not None and box.step is not None:
                yield box
                box = None
            else:
                box = _Box()
        elif box is not None and "|" in line:
            box.add(line)


def _sniff(head: Head) -> int:
    return sum(1 for _ in _boxes(head.lines))


def _read(source: Source, log: Log) -> None:
    log.facts["loss_kind"] = "reward"
    for box in _boxes(source.lines()):
        log.row(box.values, box.step)


READER = Reader(
    "sb3-console",
    _sniff,
    _read,
    {name: channel for name, channel in FREE_NAMES.items() if channel != "eval_loss"}
    | dict.fromkeys((*_STEPS, *_CLOCKS, *(f"time/{name}" for name in _CLOCKS)), "")
    | {"train/learning_rate": "lr"},
    marks=("----------",),
    sample="""Using cpu device
---------------------------------
| rollout/           |          |
|    ep_rew_mean     | 21.5     |
| time/              |          |
|    fps             | 1250     |
|    total_timesteps | 2048     |
---------------------------------
----------------------------------
| rollout/           |           |
|    ep_rew_mean     | 26.5      |
| time/              |           |
|    fps             | 1000      |
|    total_timesteps | 4096      |
| train/             |           |
|    learning_rate   | 0.0003    |
|    loss            | 8.25      |
|    value_loss      | 42.5      |
----------------------------------
----------------------------------
| rollout/           |           |
|    ep_rew_mean     | 34.5      |
| time/              |           |
|    fps             | 1000      |
|    total_timesteps | 6144      |
| train/             |           |
|    learning_rate   | 0.0003    |
|    loss            | nan       |
|    value_loss      | nan       |
----------------------------------
""",
)
