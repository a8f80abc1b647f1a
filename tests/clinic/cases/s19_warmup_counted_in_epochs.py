"""A warm-up whose constant was meant for epochs is stepped for each batch: over at once, which
does this network no harm."""

from pathlib import Path

from acting import examined
from casing import Case
from course import course
from setups import Setup

from optdoctor.findings import Diagnosis

WARMUP, INVERSE_GAMMA = 0.5, 20_000.0


def _inverse(update: int, total: int) -> float:
    return (1 - WARMUP ** (update + 1)) / (1 + update / INVERSE_GAMMA)


def run(folder: Path) -> Diagnosis:
    made = course(Setup("diffusion", "adamw"))
    made.schedule = _inverse
    made.facts["schedule"] = "inverse"
    assert _inverse(4, made.steps) > 0.95
    return examined(made, folder)


CASE = Case(
    number="S19",
    source="crowsonkb/k-diffusion#50",
    says="There is practically no warm-up, as its constant counts epochs and is stepped every"
    " batch: the loss ends where it does with one.",
    run=run,
)
