"""The rules on development runs: silence on healthy ones, and floors of what is found on sick ones.

The whole exam is `scripts/validate_curves.py`; this is the part of it that fits into each test run.
"""

from collections import defaultdict

import pytest

from curves import exam, figures, tables
from curves.exam import Result, Task
from curves.families import FAMILIES
from curves.faults import FAULTS
from curves.opened import OPENED
from curves.views import SHORT_VIEWS

RUNS = ((400, 0), (400, 1), (1000, 2))
"""Steps and seeds; faults go into the first."""
OPENED_RUNS = ((400, 0), (1000, 1))
"""Of the families that were held apart once; no faults, for this must stay short."""
HEALTHY_VIEWS = ("raw", "every 10", "EMA 0.9", "epochs", "12 rows")
OVERALL, EACH_FAMILY = 0.01, 0.03

FLOORS = {
    "spike of 1": 0.4,
    "spike of 4": 0.6,
    "spike of 15": 0.55,
    "x1.5 over 5": 0.7,
    "recovering spike": 0.65,
    "spike of evaluation": 0.4,
    "gradient outlier": 0.85,
    "divergence": 0.85,
    "rise that falls back": 0.75,
    "drift": 0.7,
    "saw": 0.65,
    "spike train": 0.6,
    "sine": 0.65,
    "overfitting": 0.7,
    "stop": 0.45,
    "stop with the rate": 0.95,
    "flat from start": 0.7,
    "one NaN": 1.0,
    "NaN to the end": 1.0,
    "gradients not finite": 0.95,
    "scale to nothing": 0.95,
}
"""Least shares of faults of each kind that are named where every row is logged."""


@pytest.fixture(scope="module")
def results() -> list[Result]:
    """Of every development family, and of the recorded runs."""
    tasks = [
        Task(
            False, name, n, seed, views=HEALTHY_VIEWS, sick_views=("raw",),
            faults=tuple(FAULTS) if (n, seed) == RUNS[0] else (),
        )
        for name in FAMILIES
        for n, seed in RUNS
    ]  # fmt: skip
    tasks += [
        Task(False, name, n, seed, views=HEALTHY_VIEWS)
        for name in OPENED
        for n, seed in OPENED_RUNS
    ]
    return [result for task in tasks for result in exam.sit(task)]


def test_healthy_runs_call_for_no_alarm(results: list[Result]) -> None:
    share = figures.false_alarms(results)

    runs = len(FAMILIES) * len(RUNS) + len(OPENED) * len(OPENED_RUNS)
    assert share.of == runs * len(HEALTHY_VIEWS)
    assert share.value <= OVERALL, tables.alarms(figures.healthy(results))


def test_no_family_of_healthy_runs_alarms_often(results: list[Result]) -> None:
    families = defaultdict(list)
    for result in figures.healthy(results):
        families[result.family].append(result)

    assert set(families) == {*FAMILIES, *OPENED}
    for name, chosen in families.items():
        share = figures.false_alarms(chosen)
        assert share.value <= EACH_FAMILY, (name, tables.alarms(chosen))


@pytest.mark.parametrize("kind", FAULTS)
def test_faults_are_named_as_often_as_measured(kind: str, results: list[Result]) -> None:
    chosen = [r for r in results if r.kind == kind and r.is_visible]

    assert len(chosen) >= 10
    assert figures.hits(chosen).value >= FLOORS[kind], tables.alarms(chosen)


def test_no_rule_crashes(results: list[Result]) -> None:
    assert not [crash for result in results for crash in result.crashed]


def test_recorded_healthy_runs_call_for_no_alarm() -> None:
    first = {}
    for place, record in enumerate(exam.records(False)):
        if record.healthy:
            first.setdefault(record.family, place)
    views = ("raw", "every 10", "epochs", *list(SHORT_VIEWS)[:2])
    tasks = [Task(False, name, n, 0, is_recorded=True, views=views) for name, n in first.items()]
    found = [result for task in tasks for result in exam.sit(task)]

    assert found
    assert figures.false_alarms(found).value <= EACH_FAMILY, tables.alarms(found)
