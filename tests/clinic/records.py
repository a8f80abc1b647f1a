"""What the clinic trains, and where it keeps what it has trained.

A record is the run folder that the doctor wrote, and `result.json` beside it. Its name is a hash of
all that it hangs on: the setup, the fault and its dose, the code that trains, and the code that
measures. Rules are no part of it: they are run over records as often as wanted.
"""

import ast
import json
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from course import Outcome, course, train
from faulting import Fault, faults
from setups import HERE, Setup, digest, families_apart

ROOT = HERE.parent.parent
STORE = ROOT / ".clinic"
TRAINING = ("setups", "course", "makers", "tasks", "networks", "corpora", "trainings")
"""Modules of the clinic that every run is made with."""
MEASURING = ("store.py", "trace.py", "live", "optimizers")
"""Parts of the package that decide what is in a record."""
LACKING = "could not create a primitive"
"""What torch says of an LSTM in bfloat16 on a processor that has no such operation."""
SEEDS, FULL_SEEDS = (0, 1, 2), (0, 1, 2, 3, 4)
BASE = 1_000
"""Distance between the seeds of two bases."""
HEALTHY_APART = 12
"""Healthy configurations of each family apart."""


@dataclass(frozen=True)
class Job:
    """One run: of a fault, or healthy where it has none."""

    setup: Setup
    fault: str = ""
    dose: int = -1
    """Index into the fault's doses."""
    drawn: bool = False
    """Whether it is one of the healthy configurations that are drawn."""

    @property
    def configuration(self) -> str:
        """All but the seed."""
        return f"{self.fault}/{self.dose}/{self.setup.configuration}"

    @property
    def twin(self) -> "Job":
        """The same without the fault."""
        return Job(self.setup)

    @property
    def folder(self) -> Path:
        told = json.dumps([asdict(self.setup), self.fault, self.dose], sort_keys=True)
        return STORE / digest(told + code_of(self.setup.family, self.fault))


@dataclass(frozen=True)
class Result:
    """What a record says of how the run went."""

    first: float
    """Held-out loss before the first update."""
    final: float
    """Mean of the last held-out losses; infinite where one is not finite."""
    losses: tuple[float, ...]
    probe: bool
    seconds: float
    error: str = ""


@cache
def code_of(family: str, fault: str) -> str:
    """A hash of the code that a run of this family and fault hangs on, docstrings left out."""
    files = [HERE / f"{name}.py" for name in TRAINING]
    folder = "families_apart" if family in families_apart() else "families"
    files.append(HERE / folder / f"{family.replace('-', '_')}.py")
    if fault:
        files += [HERE / "mistakes.py", HERE / "faults" / f"{fault.replace('-', '_')}.py"]
    return digest("".join(map(meaning_of, files)) + _measuring())


@cache
def _measuring() -> str:
    found: list[Path] = []
    for name in MEASURING:
        path = ROOT / "optdoctor" / name
        found += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return digest("".join(map(meaning_of, found)))


@cache
def meaning_of(path: Path) -> str:
    """The code of a file without comments and docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            kept = [n for n in body if not _is_text(n)]
            node.body = kept  # type: ignore[attr-defined]
    return ast.dump(tree)


def _is_text(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def fault_jobs(several: Iterable[Fault], *, full: bool = False, base: int = 0) -> Iterator[Job]:
    """The sick runs: 2 doses x 3 seeds x 2 families, or 3 x 5 x 3."""
    for fault in several:
        for place in fault.places[: 3 if full else 2]:
            for dose in range(3 if full else 2):
                for seed in FULL_SEEDS if full else SEEDS:
                    yield Job(replace(place, seed=seed + BASE * base), fault.name, dose)


def twin_jobs(jobs: Iterable[Job]) -> list[Job]:
    """Their healthy twins, each once."""
    return list(dict.fromkeys(job.twin for job in jobs))


def drawn_jobs(count: int, base: int = 0) -> list[Job]:
    """The healthy configurations that are drawn."""
    from healthy_draws import draw

    return [Job(setup, drawn=True) for setup in draw(count, base)]


def jobs_apart(several: Iterable[Fault]) -> list[Job]:
    """Each fault that a task of any kind can have, in each family apart that has an optimizer of
    one of its places, with the settings of that place; and healthy configurations."""
    from healthy_draws import draw

    apart = families_apart()
    sick = []
    for fault in several:
        for family in () if fault.of_its_task else apart.values():
            fitting = [place for place in fault.places if place.optimizer in family.rates]
            sick += [Job(replace(p, family=family.name), fault.name, 1) for p in fitting[:1]]
    healthy = draw(HEALTHY_APART * len(apart), among=apart) if apart else ()
    return [*sick, *twin_jobs(sick), *(Job(setup, drawn=True) for setup in healthy)]


def quick_jobs() -> list[Job]:
    """A little of everything, with its twins: the mild dose of each fault once, 30 healthy ones."""
    sick = [Job(fault.places[0], fault.name, 1) for fault in faults().values()]
    return [*sick, *twin_jobs(sick), *drawn_jobs(30)]


def record(job: Job) -> Result:
    """Trains the run, or reads what was trained before."""
    if known := recorded(job):
        return known
    result = _trained(job)
    job.folder.mkdir(parents=True, exist_ok=True)
    told = {"job": asdict(job), **asdict(result)}
    part = job.folder / "result.part"
    part.write_text(json.dumps(told), encoding="utf-8")
    part.replace(job.folder / "result.json")
    return result


def recorded(job: Job) -> Result | None:
    """What was trained before, None if nothing was."""
    path = job.folder / "result.json"
    if not path.exists():
        return None
    told: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return Result(
        **{k: v for k, v in told.items() if k != "job"} | {"losses": tuple(told["losses"])}
    )


def _trained(job: Job) -> Result:
    began = time.process_time()
    fault = faults()[job.fault] if job.fault else None
    try:
        dose = fault.doses[job.dose] if fault else None
        run = course(fault.alter(job.setup, dose) if fault else job.setup)
        if fault:
            fault.inject(run, dose)
        outcome = train(run, job.folder / "run")
        probe = fault is None or bool(fault.probe(run))
    except Exception as error:
        spent = time.process_time() - began
        return Result(math.nan, math.nan, (), False, spent, f"{type(error).__name__}: {error}")
    return _result(outcome, probe, time.process_time() - began)


def _result(outcome: Outcome, probe: bool, seconds: float) -> Result:
    return Result(outcome.eval_losses[0], outcome.final, outcome.losses, probe, round(seconds, 3))


def damage(sick: Result, twin: Result) -> float:
    """How much worse the sick run ended than its twin, as a share of the twin's held-out loss, 0
    where the difference is below 1 % of what the twin began with."""
    if math.isnan(sick.final) or math.isinf(sick.final):
        return math.inf
    worse = sick.final - twin.final
    if abs(worse) < 0.01 * abs(twin.first):
        return 0.0
    return worse / max(abs(twin.final), 1e-12)
