"""The clinic itself: its faults are well formed, its split holds, a share of it is trained here."""

import os
from dataclasses import replace

import pytest
import records
from faulting import Fault, faults
from figures import counted
from judge import Judged, judged
from records import LACKING, Job, damage
from setups import HERE, Setup, families, is_held

from optdoctor.rules import RULES

NAMES = {rule.name for rule in RULES}
HEALTHY = 300


@pytest.mark.parametrize("fault", faults().values(), ids=lambda fault: fault.name)
def test_a_fault_says_what_the_clinic_needs(fault: Fault) -> None:
    assert (HERE / "faults" / f"{fault.name.replace('-', '_')}.py").is_file()
    assert fault.says.endswith(".")
    assert set(fault.rules) <= NAMES
    assert len(fault.places) == 3
    assert len({place.family for place in fault.places[:2]}) == 2 or fault.decoy
    assert len({str(dose) for dose in fault.doses}) == 3
    for place in fault.places:
        assert place.optimizer in families()[place.family].rates


def test_there_are_enough_of_each_kind() -> None:
    assert sum(not fault.decoy for fault in faults().values()) >= 30
    assert sum(fault.decoy for fault in faults().values()) >= 11
    assert sum(len(family.rates) for family in families().values()) >= 60


def test_healthy_configurations_differ_and_fall_into_both_halves() -> None:
    jobs = records.drawn_jobs(HEALTHY)
    held = [is_held(job.configuration) for job in jobs]
    assert len({job.configuration for job in jobs}) == HEALTHY
    assert 0.4 < sum(held) / HEALTHY < 0.6


def test_a_configuration_is_on_one_side_whatever_its_seed() -> None:
    job = Job(Setup("char-gpt", "adamw"), "a-fault", 1)
    sides = {
        is_held(replace(job, setup=replace(job.setup, seed=i)).configuration) for i in range(9)
    }
    assert len(sides) == 1


def test_a_record_is_known_by_everything_that_it_hangs_on() -> None:
    job = Job(Setup("char-gpt", "adamw"))
    others = [
        Job(Setup("char-gpt", "lion")),
        Job(Setup("char-gpt", "adamw", seed=1)),
        Job(Setup("char-gpt", "adamw", optimizer_options=(("eps", 1e-6),))),
        Job(Setup("char-gpt", "adamw"), next(iter(faults())), 0),
        Job(Setup("char-gpt", "adamw"), next(iter(faults())), 1),
    ]
    assert len({each.folder for each in (job, *others)}) == 6


@pytest.fixture(scope="module")
def quick() -> list[Judged]:
    """A record of a few runs of each kind; those that are there are not trained again."""
    os.environ["OMP_NUM_THREADS"] = "1"
    jobs = records.quick_jobs()
    for job in jobs:
        result = records.record(job)
        assert not result.error or LACKING in result.error, f"{job}: {result.error}"
    runs = [run for job in jobs if (run := judged(job))]  # twins have to be there before
    assert len(runs) >= len(jobs) - 3
    return runs


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_healthy_runs_are_left_alone(quick: list[Judged]) -> None:
    figures = counted(quick, families())
    alarms = {str(r.job.setup): r.alarms for r in quick if not r.job.fault and r.alarms}
    assert figures.mechanisms.of > 15
    assert figures.mechanisms.times == 0, alarms
    assert figures.healthy.times <= 1, alarms


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_harm_is_found_and_its_cause_is_named(quick: list[Judged]) -> None:
    figures = counted(quick, families())
    print(figures)
    assert figures.found.of >= 20
    assert figures.found.times >= 0.9 * figures.found.of
    assert figures.first.times >= 0.75 * figures.first.of
    assert figures.first_three.times >= 0.85 * figures.first_three.of


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_rule_crashes_on_any_run(quick: list[Judged]) -> None:
    assert {name for run in quick for name in run.crashed} == set()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_decoys_do_no_harm(quick: list[Judged]) -> None:
    for run in quick:
        if run.fault is not None and run.fault.decoy and run.twin is not None:
            assert damage(run.result, run.twin) < 0.15, run.job
