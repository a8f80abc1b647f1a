"""What a fault is: how it comes into a run, and how it is known to be at work there."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from course import Course
from setups import HERE, Setup, load

Dose = Any


@dataclass(frozen=True)
class Fault:
    """One fault: the file `faults/<name>.py`, with `-` as `_`."""

    name: str
    says: str
    """One sentence: what is wrong, and what is seen of it."""
    rules: tuple[str, ...]
    """The rules of which one is the right answer; empty for a decoy and where none knows it."""
    doses: tuple[Dose, Dose, Dose]
    """From mild to hard."""
    places: tuple[Setup, Setup, Setup]
    """Healthy setups of different families in which it is tried."""
    probe: Callable[[Course], bool]
    """Whether the mechanism was at work, asked after the run and without the doctor."""
    alter: Callable[[Setup, Dose], Setup] = lambda setup, dose: setup
    """The setup of the sick run, where the fault is one of settings."""
    inject: Callable[[Course, Dose], None] = lambda course, dose: None
    """Brings the fault into a run that is set up: replaces parts of it, adds acts."""
    cure: Callable[[Course, Dose], None] | None = None
    """The treatment that its rule proposes first, on the run set up with the fault; None where
    the treatment is to leave the fault out."""
    decoy: bool = False
    """Looks sick, does no harm."""
    static: bool = False
    """It stands before step 1."""
    of_its_task: bool = False
    """It lies in the task or the architecture of its places, and makes no sense in any other."""
    slow: bool = False
    """The loss shows it long after it began."""


@cache
def faults() -> Mapping[str, Fault]:
    """{name: fault}: the files of `faults`."""
    found = [load(path).FAULT for path in sorted((HERE / "faults").glob("*.py"))]
    return {fault.name: fault for fault in found}


def at(setup: Setup, **changes: Any) -> Setup:
    """The setup with further optimizer options, or other fields."""
    own = {k: v for k, v in changes.items() if k in Setup.__dataclass_fields__}
    options = {
        **dict(setup.optimizer_options),
        **{k: v for k, v in changes.items() if k not in own},
    }
    return replace(setup, **own, optimizer_options=tuple(sorted(options.items())))
