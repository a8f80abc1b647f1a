"""Loads the recorded curves of real small trainings, which `scripts/record_curves.py` writes.

`recorded()` gives those of development: the first ones, and those that were held apart until their
exam. Those held apart now are for the exam (`validate_curves.py`) alone: no limit is set on them,
and nobody looks at them while a limit is being set.
"""

from functools import cache
from pathlib import Path

from curves.records import Record, load

HERE = Path(__file__).parent
DEVELOPMENT, OPENED = HERE / "recorded.npz", HERE / "opened_recorded.npz"
HELD = HERE / "held_recorded.npz"


@cache
def recorded(*, held: bool = False) -> tuple[Record, ...]:
    """Every run of development, or every run held apart; of each file the healthy ones first."""
    return load(HELD) if held else load(DEVELOPMENT) + load(OPENED)
