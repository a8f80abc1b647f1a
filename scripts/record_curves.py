"""Records the curves of real small trainings for the tests of the curve rules.

    python scripts/record_curves.py development
    python scripts/record_curves.py opened
    python scripts/record_curves.py held

Writes tests/curves/recorded.npz, opened_recorded.npz (held apart until their exam, for development
since) or held_recorded.npz, in about five minutes each on one core; `--only WORD` makes the
families whose name holds the word and prints them, and writes nothing.
Another release of torch, or another processor, gives other rounding and so slightly other curves:
the files in git are what counts.
"""

import argparse
import os
import sys
import time
from dataclasses import dataclass
from importlib import import_module
from itertools import count, islice
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
import numpy as np

TESTS = Path(__file__).parent.parent / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "clinic")]

from curves.recorded import DEVELOPMENT, HELD, OPENED  # noqa: E402
from curves.records import Record, save  # noqa: E402


@dataclass(frozen=True)
class Set:
    """Trainings that are recorded together."""

    trainings: str
    """Their module in tests/curves."""
    file: Path
    healthy: int
    """Runs of each healthy family; a sick one has `SICK`."""
    first: int
    """The first seed: no two sets share one."""


SETS = {
    "development": Set("recorded_trainings", DEVELOPMENT, 8, 0),
    "opened": Set("opened_trainings", OPENED, 12, 1000),
    "held": Set("held_trainings", HELD, 12, 2000),
}
SICK = 4
MOST_ABOVE = 0.05
"""Share of its best by which the last evaluation loss of a healthy run may lie above it."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("which", choices=SETS)
    parser.add_argument("--only", help="a word in the names of the families to make")
    parser.add_argument("--to", type=Path, help="another file to write to")
    asked = parser.parse_args()
    chosen = SETS[asked.which]
    made = _made(chosen, asked.which == "held", asked.only)
    path = asked.to or chosen.file
    if asked.only is None or asked.to:
        save(path, made)
        print(f"{len(made)} runs in {path.name}, {path.stat().st_size / 1e6:.2f} MB")


def _made(chosen: Set, held: bool, only: str | None) -> list[Record]:
    from curves.recording import record

    source = import_module(f"curves.{chosen.trainings}")
    made: list[Record] = []
    for family in (*source.HEALTHY, *source.SICK):
        if only is not None and only not in family.name:
            continue
        began = time.perf_counter()
        number = chosen.healthy if family.truth == "healthy" else SICK
        runs = (record(family, seed, held=held) for seed in count(chosen.first))
        kept = list(islice((run for run in runs if not run.healthy or stays_down(run)), number))
        made += kept
        took, left_out = time.perf_counter() - began, kept[-1].seed + 1 - chosen.first - number
        print(f"{took:6.1f} s  {family.truth:22} {family.name}: {left_out} left out", flush=True)
    return made


def stays_down(run: Record) -> bool:
    """The evaluation loss of a healthy run fell, and ends no more than 5 % above its best."""
    level = np.convolve(run.eval_loss, np.ones(3) / 3, "valid")
    best, end = level.min(), level[-1]
    return bool(best < run.eval_loss[0] and end - best <= MOST_ABOVE * abs(best))


if __name__ == "__main__":
    main()
