"""Distances of healthy runs from limits, and limits set with a family left out."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import nearness
import pytest
from nearness import FAR, STEP, Nearness
from setups import families_apart

from optdoctor import rule
from optdoctor.findings import Evidence, Finding, Severity, Treatment
from optdoctor.rules import momentum_too_long
from optdoctor.synthetic import make_trace
from optdoctor.trace import Trace


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    bound: float = 6.0


def judging(is_sick: Callable[[float, float], bool], severity: Severity) -> rule.Rule:
    """A rule that compares the planned rate with its limit."""

    def check(trace: Trace, limits: Limits) -> list[Finding]:
        if not is_sick(trace.facts["peak_lr"], limits.bound):
            return []
        return [
            Finding(
                severity=severity,
                summary="The rate is beyond its limit.",
                steps=(0, 0),
                evidence=(Evidence("peak_lr", "rate", trace.facts["peak_lr"], limits.bound, "1"),),
                treatments=(Treatment("Lower the rate.", source="nowhere"),),
            )
        ]

    return replace(momentum_too_long.RULE, needs=("peak_lr",), check=check, limits=Limits(rows=0))


@pytest.mark.parametrize(("rate", "steps"), [(7.0, 0), (6.0 / 1.01, 1), (2.0, 6), (0.1, FAR)])
def test_a_distance_is_what_tightens_an_upper_limit_to_the_measured_number(rate, steps) -> None:
    upper = judging(lambda rate, bound: rate > bound, Severity.WARN)
    found = nearness._distance(upper, "bound", make_trace(peak_lr=rate))
    assert found == steps
    if 0 < found < FAR:
        assert 6.0 / STEP**found < rate <= 6.0 / STEP ** (found - 1)


def test_a_lower_limit_is_tightened_upwards_and_a_note_is_no_alarm() -> None:
    trace = make_trace(peak_lr=12.5)
    lower = judging(lambda rate, bound: rate < bound, Severity.WARN)
    assert nearness._distance(lower, "bound", trace) == 4
    noted = judging(lambda rate, bound: rate < bound, Severity.NOTE)
    assert nearness._distance(noted, "bound", trace) == FAR


def test_a_family_is_judged_by_a_limit_that_the_others_set() -> None:
    """The others' nearest run stands at 9 steps: a margin wider, their limit calls sick what
    stands at 7 or nearer."""
    families = {"a": {0: 7, 1: 8}, "b": {2: 9}, "c": {3: FAR}}
    one = Nearness("a-rule", "bound", 6.0, families)
    assert one.beyond("a") == {0}
    assert one.beyond("b") == one.beyond("c") == set()
    assert list(one.distances.items()) == [("a", 7), ("b", 9), ("c", FAR)]


def test_the_page_counts_a_run_once_however_many_limits_call_it_sick() -> None:
    families = {"a": {0: 3}, "b": {1: 9}, "c": {2: FAR}}
    several = [Nearness("a-rule", name, 6.0, families) for name in ("bound", "other")]
    far = Nearness("b-rule", "bound", 1.0, {"a": {0: FAR}, "b": {1: FAR}})
    text = nearness.page([*several, far], 3)
    assert "these are 1 of 3 runs" in text
    assert "1 of 3 limits are not below" in text
    assert "| a-rule | bound | 6 | 3 | a 1.84 | b 6.2 | a 1 of 1 |" in text


def test_families_apart_have_each_fault_and_healthy_runs() -> None:
    from faulting import faults
    from records import HEALTHY_APART, jobs_apart

    jobs = jobs_apart(faults().values())
    assert {job.setup.family for job in jobs} == set(families_apart())
    assert sum(job.drawn for job in jobs) == HEALTHY_APART * len(families_apart())
    for job in jobs:
        assert job.setup.optimizer in families_apart()[job.setup.family].rates
