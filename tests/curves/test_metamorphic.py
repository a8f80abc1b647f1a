"""A changed curve has the verdict that follows from the change: no label is needed to test that."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curves.families import FAMILIES
from curves.faults import Sick, bimodal_gap, divergence
from curves.views import trace_of
from optdoctor.engine import diagnose
from optdoctor.findings import Finding, Severity
from optdoctor.rule import SYMPTOMS
from optdoctor.rules import RULES
from optdoctor.store import Series
from optdoctor.synthetic import make_trace
from optdoctor.trace import Trace

CURVES = SYMPTOMS - {"nonfinite-gradient"}
"""A counter is none."""
SICK = {rule.name: rule.sick() for rule in RULES if rule.name in CURVES}
LOSSES = ("loss", "eval_loss")
each_symptom = pytest.mark.parametrize("name", SICK)
each_but_a_plateau = pytest.mark.parametrize("name", sorted(SICK.keys() - {"early-plateau"}))
"""Chance is a number, and of a log that begins in mid-run nobody knows how flat it started."""


def found(trace: Trace) -> dict[str, Finding]:
    """{symptom: its gravest finding}."""
    return {f.rule: f for f in reversed(diagnose(trace).findings) if f.rule in CURVES}


def alarms(trace: Trace) -> set[str]:
    return {name for name, f in found(trace).items() if f.severity is not Severity.NOTE}


def judged(trace: Trace) -> dict[str, tuple[Severity, tuple[int, int]]]:
    return {name: (finding.severity, finding.steps) for name, finding in found(trace).items()}


def changed(trace: Trace, *, times: float = 1.0, shift: int = 0, apart: int = 1) -> Trace:
    """The trace with losses `times` as large, at steps `apart` times as far, then shifted."""

    def steps(series: Series) -> np.ndarray:
        return series.steps * apart + shift

    values = {
        name: series.values * (times if name in LOSSES else 1)
        for name, series in trace.series.items()
    }
    events = [replace(event, step=event.step * apart + shift) for event in trace.events]
    at = {name: steps(series) for name, series in trace.series.items()}
    return make_trace({**trace.facts, **values}, steps=at, events=events, tensors=trace.tensors)


@each_but_a_plateau
@settings(max_examples=12, deadline=None, derandomize=True)
@given(power=st.integers(-30, 30))
def test_the_unit_of_a_loss_changes_no_verdict(name: str, power: int) -> None:
    trace = SICK[name]
    other = changed(trace, times=2.0**power)
    assert judged(other) == judged(changed(trace)), f"times 2 to the power {power}"


@each_but_a_plateau
@settings(max_examples=8, deadline=None, derandomize=True)
@given(shift=st.integers(1, 10**9))
def test_a_log_that_begins_later_tells_the_same_at_later_steps(name: str, shift: int) -> None:
    here, there = judged(changed(SICK[name])), judged(changed(SICK[name], shift=shift))
    assert there == {
        rule: (gravity, (first + shift, last + shift))
        for rule, (gravity, (first, last)) in here.items()
    }


@each_symptom
@settings(max_examples=8, deadline=None, derandomize=True)
@given(apart=st.integers(2, 1000))
def test_the_distance_of_the_rows_changes_no_verdict(name: str, apart: int) -> None:
    here, there = judged(changed(SICK[name])), judged(changed(SICK[name], apart=apart))
    assert {n: gravity for n, (gravity, _) in there.items()} == {
        n: gravity for n, (gravity, _) in here.items()
    }
    for rule, (_, (first, last)) in here.items():
        for old, new in zip((first, last), there[rule][1], strict=True):
            assert abs(new - apart * old) <= apart  # a block begins between two rows


@pytest.mark.parametrize("name", ["loss-spike", "gradient-outlier", "nan-pulse"])
def test_what_has_passed_is_still_told_after_a_healthy_tail(name: str) -> None:
    trace = SICK[name]
    longer = make_trace({**trace.facts, **tailed(trace, rows=200)})
    if name == "nan-pulse":
        assert found(longer)[name].severity is not Severity.CRITICAL
    assert name in found(longer)


@pytest.mark.parametrize("name", ["divergence", "upward-drift"])
def test_a_rise_that_has_healed_is_no_rise(name: str) -> None:
    trace = SICK[name]
    loss = np.asarray(trace.series["loss"].values)
    assert name in alarms(make_trace(loss=loss))
    best = float(np.median(np.sort(loss)[:20]))
    healed = np.concatenate([loss, best * np.linspace(1, 0.9, 2 * loss.size)])
    assert alarms(make_trace(loss=healed)) & {"divergence", "upward-drift"} == set()


@pytest.mark.parametrize("fault", [divergence, bimodal_gap])
@pytest.mark.parametrize("times", [2, 4])
def test_every_second_row_tells_what_all_rows_tell(fault: Callable[..., Sick], times: int) -> None:
    every, told = Counter[bool](), 0
    for place, family in enumerate(FAMILIES.values()):
        rng = np.random.default_rng(place)
        sick = fault(family(1000, rng), rng, 0.8)
        if sick is None or sick.truth not in alarms(trace_of(sick.run, "raw")):
            continue
        told += 1
        rows = np.arange(times - 1, 1000, times)
        fewer = replace(sick.run, loss=sick.run.loss[rows])
        trace = make_trace(
            loss=fewer.loss,
            eval_loss=fewer.eval_loss,
            steps={"loss": rows + 1, "eval_loss": fewer.eval_steps},
            loss_kind="falling",
        )
        every[sick.truth in alarms(trace)] += 1
    assert told >= 12
    assert every[False] <= 1, every


def tailed(trace: Trace, rows: int) -> dict[str, np.ndarray]:
    """Its series, each with its last healthy values once more, mixed."""
    rng = np.random.default_rng(0)
    return {
        name: np.concatenate([values, 0.98 * rng.permutation(kept[-40:]).repeat(rows // 40)])
        for name, series in trace.series.items()
        for values in [np.asarray(series.values, np.float64)]
        for kept in [usual(values)]
    }


def usual(values: np.ndarray) -> np.ndarray:
    finite = values[np.isfinite(values)]
    return finite[finite <= np.quantile(finite, 0.9)]
