"""What the clinic does when it is asked.

    python -m tests.clinic record [--full | --apart] [--base B] [--share K/N] [--half HALF]
        [--only NAME..]
    python -m tests.clinic judge [--full | --apart] [--base B] [--held REASON] [--log | --sparse]
        [--timed] [--list]
    python -m tests.clinic report REASON [--full]
    python -m tests.clinic nearness
    python -m tests.clinic trials [--held | --half HALF] [--healthy] [--follow]
        [--only FAULT..]
    python -m tests.clinic try --fault NAME [--seeds 1] | --healthy FAMILY OPTIMIZER

`record` trains what is not yet recorded and can be stopped at any time. `judge` runs the rules over
what is recorded: over the open half of the configurations, unless `--held` gives the reason for
which the other half is looked at; that is written down in docs/validation-history.md. `report`
judges both, and a second base of seeds, and writes docs/validation.md and the rates in reports.
`nearness` tightens each limit until healthy runs of the open half are called sick, and writes
docs/validation-of-limits.md. `trials` trains each recorded run that a fault harmed once more, with
what is proposed for it, and `--healthy` runs with each intervention; with `--follow` the doctor is
asked again after each treatment, which takes several times as long. It writes
docs/validation-of-treatments.md, unless `--only` some were asked for. `--apart` is of families that
nobody who set a limit has trained: all of them count as held apart. `try` trains one fault beside
its healthy twin, in seconds to minutes, and keeps nothing.
"""

import argparse
import importlib.util
import inspect
import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import bases
import nearness
import records
import trials
import trials_page
import validation
from faulting import faults
from figures import counted, sane
from judge import Judged, judged
from records import Job
from setups import Setup, families, families_apart, is_held

from optdoctor.errors import did_you_mean

NEEDED = ("pytorch_optimizer", "sklearn", "transformers")
"""Packages without which a part of the clinic cannot be trained."""
HEALTHY = 300
"""Healthy configurations that are drawn."""


def main() -> None:
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        how = "`make lint` installs it, as does pip install --editable '.[dev]'"
        raise SystemExit(f"the clinic needs the extra dev ({', '.join(missing)}): {how}")
    parser = argparse.ArgumentParser(
        prog="python -m tests.clinic",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True)
    for name, act in (("record", record), ("judge", judge), ("report", report)):
        one = commands.add_parser(name)
        one.set_defaults(act=act, apart=False)
        which = one.add_mutually_exclusive_group()
        which.add_argument("--full", action="store_true", help="3 doses x 5 seeds x 3 families")
        if act is not report:
            which.add_argument("--apart", action="store_true", help="families that no limit saw")
        one.add_argument("--base", type=int, default=0, help="which seeds")
        one.add_argument("--only", nargs="*", default=(), help="faults, `healthy`")
        one.add_argument("--workers", type=int, default=2)
        if act is record:
            one.add_argument("--share", default="1/1", help="this of so many equal shares")
            one.add_argument("--half", choices=("open", "held"), help="only its runs, and twins")
        elif act is report:
            one.add_argument("reason", help="why the half held apart is looked at")
        else:
            one.add_argument("--held", metavar="REASON", default="", help="judge the other half")
            view = one.add_mutually_exclusive_group()
            view.add_argument("--log", action="store_true", help="runs reduced to a log")
            view.add_argument("--sparse", action="store_true", help="the fewest samples")
            one.add_argument("--timed", action="store_true", help="when runs are called sick")
            one.add_argument("--list", action="store_true", help="every run")
    one = commands.add_parser("nearness")
    one.set_defaults(act=nearest)
    one.add_argument("--workers", type=int, default=2)
    one = commands.add_parser("trials")
    one.set_defaults(act=treat)
    which = one.add_mutually_exclusive_group()
    which.add_argument("--half", choices=("open", "held"), default="open", help="of which runs")
    which.add_argument("--held", dest="half", action="store_const", const="held")
    one.add_argument("--healthy", action="store_true", help="healthy runs with each intervention")
    one.add_argument("--follow", action="store_true", help="asks the treated runs again and again")
    one.add_argument("--only", nargs="*", default=(), help="faults")
    one.add_argument("--workers", type=int, default=2)
    one = commands.add_parser(
        "try",
        description=inspect.getdoc(attempt),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    one.set_defaults(act=attempt)
    which = one.add_mutually_exclusive_group(required=True)
    which.add_argument("--fault", default="", help="a file in tests/clinic/faults, `-` for `_`")
    which.add_argument("--healthy", nargs=2, metavar=("FAMILY", "OPTIMIZER"))
    one.add_argument("--seeds", type=int, default=1, help="how many of each")
    one.add_argument("--sparse", action="store_true", help="judged by the fewest samples")
    told = parser.parse_args()
    told.act(told)


def jobs_of(told: argparse.Namespace) -> list[Job]:
    """What the command asks for: sick runs, their twins, healthy ones that were drawn."""
    chosen = [f for f in faults().values() if not told.only or f.name in told.only]
    if told.apart:
        return list(dict.fromkeys(records.jobs_apart(chosen)))
    sick = list(records.fault_jobs(chosen, full=told.full, base=told.base))
    drawn = []
    if not told.only or "healthy" in told.only:
        drawn = records.drawn_jobs(HEALTHY, told.base)
    return list(dict.fromkeys([*sick, *records.twin_jobs(sick), *drawn]))


def record(told: argparse.Namespace) -> None:
    share, of = map(int, told.share.split("/"))
    jobs = sorted(jobs_of(told), key=lambda job: job.folder)[share - 1 :: of]  # a little of each
    if told.half:
        jobs = [job for job in jobs if is_held(job.configuration) == (told.half == "held")]
        sick = [job for job in jobs if job.fault]
        jobs = list(dict.fromkeys([*jobs, *records.twin_jobs(sick)]))  # wherever they belong
    open_jobs = [job for job in jobs if records.recorded(job) is None]
    print(f"{len(jobs)} runs, {len(open_jobs)} to train", flush=True)
    began = time.perf_counter()
    for i, (job, result) in enumerate(_several(records.record, open_jobs, told.workers), 1):
        if result.error:
            print(f"{job.fault or 'healthy'} {job.setup}: {result.error}", flush=True)
        if i % 50 == 0:
            print(f"{i} of {len(open_jobs)}, {time.perf_counter() - began:.0f} s", flush=True)


def judge(told: argparse.Namespace) -> None:
    jobs = jobs_of(told)
    if told.apart and not told.held:
        raise SystemExit("families apart are looked at for a reason: add --held REASON")
    runs = _judged(jobs, bool(told.held), told)
    figures = counted(runs, families_apart() if told.apart else families())
    if told.list:
        for run in runs:
            print(_line(run))
    print(f"{len(runs)} runs")
    print(figures)
    if told.held:
        reason = "families apart: " * told.apart + told.held
        reason += ", with the fewest samples" * told.sparse
        validation.remember(reason, figures, len(runs), as_log=told.log)


def report(told: argparse.Namespace) -> None:
    """Judges everything that is recorded, and writes it down."""
    jobs = jobs_of(told)
    told.log, told.sparse, told.timed = False, False, True
    held = _judged(jobs, True, told)
    told.timed = False
    opened = counted(_judged(jobs, False, told), families())
    told.log = True
    logged = _judged(jobs, True, told)
    told.log, told.base = False, told.base + 1
    other = _judged(jobs_of(told), True, told)
    told.apart = True
    apart = counted(_judged(jobs_of(told), True, told), families_apart())
    figures, as_logs = counted(held, families()), counted(logged, families())
    validation.remember(told.reason, figures, len(held), as_log=False)
    validation.remember(told.reason, as_logs, len(logged), as_log=True)
    validation.write_rates(figures)
    other_seeds = bases.compared(held, other)
    validation.write_page(held, figures, opened, as_logs, apart, other_seeds)
    print(figures)


def nearest(told: argparse.Namespace) -> None:
    """How far the open half's healthy runs are from each limit, written down."""
    drawn = [j for j in records.drawn_jobs(HEALTHY) if not is_held(j.configuration)]
    healthy = sane([run for _, run in _several(judged, drawn, told.workers) if run is not None])
    several = [found for _, found in _several(nearness.distances, healthy, told.workers)]
    text = nearness.page(nearness.collected(healthy, several), len(healthy))
    validation.LIMITS_PAGE.write_text(text, encoding="utf-8")
    print(text)


def treat(told: argparse.Namespace) -> None:
    """What is proposed for harmed runs, tried on them, written down."""
    chosen = [fault for fault in faults().values() if not told.only or fault.name in told.only]
    held = told.half == "held"
    jobs = [j for j in records.fault_jobs(chosen) if is_held(j.configuration) == held]
    several: list[trials.Trial] = []
    began = time.perf_counter()
    for i, (_, found) in enumerate(_several(trials.tried, jobs, told.workers), 1):
        several += found
        if i % 50 == 0:
            print(f"{i} of {len(jobs)} runs, {time.perf_counter() - began:.0f} s", flush=True)
    going = [t for t in trials_page.primary(several) if t.offer.way == "knobs" and t.treated]
    going = going if told.follow else []
    followed = [trial for _, trial in _several(trials.followed, going, told.workers)]
    names, left = trials.constructible()
    asked = [(job, name) for name in names for job in _healthy()]
    asked = [one for one in asked if told.healthy or trials.is_kept(one)]
    healthy = [trial for _, trial in _several(trials.tried_in_health, asked, told.workers)]
    half = "held apart" if held else "open"
    text = trials_page.page(several, followed, healthy, left, half)
    if not told.only:
        trials_page.PAGE.write_text(text, encoding="utf-8")
    print(text)


def _healthy() -> list[Job]:
    return trials.healthy_jobs(records.drawn_jobs(HEALTHY))


def _judged(jobs: Sequence[Job], held: bool, told: argparse.Namespace) -> list[Judged]:
    chosen = [job for job in jobs if told.apart or is_held(job.configuration) == held]
    act = _Judge(told.log, told.sparse, told.timed)
    return [run for _, run in _several(act, chosen, told.workers) if run is not None]


class _Judge:
    """`judged` with its settings, as another process can be sent it."""

    def __init__(self, as_log: bool, sparse: bool, timed: bool) -> None:
        self.as_log, self.sparse, self.timed = as_log, sparse, timed

    def __call__(self, job: Job) -> Judged | None:
        return judged(job, as_log=self.as_log, sparse=self.sparse, timed=self.timed)


def _several(
    act: Callable[[Any], Any], jobs: Sequence[Any], workers: int
) -> Iterable[tuple[Any, Any]]:
    if workers < 2 or len(jobs) < 4:
        yield from ((job, act(job)) for job in jobs)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_quiet) as pool:
        yield from zip(jobs, pool.map(act, jobs, chunksize=1), strict=True)


def _quiet() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch

    torch.set_num_threads(1)


def attempt(told: argparse.Namespace) -> None:
    """Trains a few runs in a folder of their own, and says what became of them.

    A fault has three doses, from 0 (mild) to 2 (hard): how strongly it is given, as the factor of a
    rate that is too high. 0 and 1 are tried and recorded, all with `record --full`. Each line:

    dose D       which of them
    A -> B       held-out loss before and after
    damage       how much worse than that of its twin, the same run without the fault, it ended
    probe        whether the mechanism was at work, asked of the run itself without the doctor
    sick at      the update at which the doctor first gave a warning or worse
    shown at     the update from which the training loss was visibly worse than the twin's
    ranked       the rules that answer for it, best answer first; found: all that spoke
    """
    if not told.healthy and told.fault not in faults():
        remedy = did_you_mean(told.fault, faults(), f"there are {', '.join(faults())}")
        raise SystemExit(f"no fault is named {told.fault!r}; {remedy}")
    if told.healthy and told.healthy[1] not in getattr(
        families().get(told.healthy[0]), "rates", {}
    ):
        pairs = (f"{f.name} ({', '.join(f.rates)})" for f in families().values())
        raise SystemExit(f"no such pair; there are {'; '.join(pairs)}")
    if told.healthy:
        family, optimizer = told.healthy
        jobs = [Job(Setup(family, optimizer, seed=seed)) for seed in range(told.seeds)]
    else:
        several = records.fault_jobs([faults()[told.fault]])
        jobs = [job for job in several if job.setup.seed < told.seeds]
    with tempfile.TemporaryDirectory() as folder:
        records.STORE = Path(folder)
        for job in jobs:
            for each in dict.fromkeys((job.twin, job)):
                result = records.record(each)
                if result.error:
                    print(f"{each.fault or 'healthy'}: {result.error}")
            run = judged(job, sparse=told.sparse, timed=True)
            if run is not None:
                print(_line(run))
            shutil.rmtree(job.folder, ignore_errors=True)


def _line(run: Judged) -> str:
    """One run in one line."""
    setup, job = run.job.setup, run.job
    what = f"{job.fault or 'healthy'} dose {job.dose}" if job.fault else "healthy"
    worse = "" if run.twin is None else f" damage {records.damage(run.result, run.twin):+.0%}"
    seen = f" sick at {run.detected}, shown at {run.shown}" if run.detected is not None else ""
    found = ", ".join(f"{rule} {severity} from {step}" for rule, severity, step in run.found)
    return (
        f"{what} in {setup.family}/{setup.optimizer}/{setup.precision} seed {setup.seed}:"
        f" {run.result.first:.3g} -> {run.result.final:.3g}{worse}"
        f" probe {run.result.probe}{seen}, {run.result.seconds:.1f} s"
        f"\n    ranked {', '.join(run.ranked) or 'nothing'}; found {found or 'nothing'}"
    )
