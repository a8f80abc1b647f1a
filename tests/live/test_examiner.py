"""How often a run is examined while it trains: a shape is told soon, at a bounded cost."""

import json
from collections.abc import Callable
from itertools import count, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from made_up import finding, rule
from torch import nn

import optdoctor
from optdoctor.findings import Finding
from optdoctor.live import examiner
from optdoctor.live.announce import EXAMS, LASTS, ROWS
from optdoctor.live.examiner import FREE_S, Examiner
from optdoctor.rule import Limits, Rule
from optdoctor.synthetic import make_trace
from optdoctor.trace import Trace

LOSS = np.linspace(3, 2, 6000)


@pytest.fixture(params=[0.0, 0.008], ids=["free", "8 ms"])
def cost_s(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    """What one examination costs by the examiner's own clock."""
    clock = count()
    monkeypatch.setattr(examiner, "perf_counter", lambda: next(clock) * request.param)
    return float(request.param)


def shape(begins: int, ends: int = 10**9) -> Rule:
    """A statistic that is there from one step to another."""

    def check(trace: Trace, limits: Limits) -> list[Finding]:
        return [finding(begins)] if begins <= trace.steps[1] < ends else []

    return rule("shape", check=check, limits=Limits(rows=20))


def course(watched: Rule, paid: Callable[[int], bool], last: int) -> tuple[list[int], list[int]]:
    """(steps examined, steps at which it was told), as a run asks for them."""
    doctor, exams, told = Examiner([watched]), [], []
    for step in range(1, last + 1):
        if doctor.due(step) and (doctor.must(step) or paid(step)):
            exams.append(step)
            told += [n.step for n in doctor.examine(make_trace(loss=LOSS[:step]), step)]
    return exams, told


def test_a_rise_that_changes_its_name_is_told_once_and_named_anew() -> None:
    def named(name: str, begins: int, ends: int) -> Rule:
        def check(trace: Trace, limits: Limits) -> list[Finding]:
            return [finding(500)] if begins <= trace.steps[1] < ends else []

        return rule(name, check=check, limits=Limits(rows=20))

    def course_of(ends: int) -> list[tuple[str, str]]:
        doctor = Examiner([named("upward-drift", 1, ends), named("divergence", ends, 6000)])
        told = []
        for step in range(500, 1000, 100):
            told += doctor.examine(make_trace(loss=LOSS[:step]), step)
        assert doctor.announced.keys() == {"divergence"}
        return [(notice.what, notice.finding.rule) for notice in told]

    late = [("appeared", "upward-drift"), ("renamed", "divergence")]
    assert course_of(800) == late
    assert course_of(700) == [("appeared", "divergence")]


def always(step: int) -> bool:
    return True


def never(step: int) -> bool:
    return False


@pytest.mark.usefixtures("cost_s")
@pytest.mark.parametrize("begins", [500, 999, 1700, 3500])
def test_a_shape_is_told_once_it_has_lasted_for_a_fifth_of_the_run_so_far(begins: int) -> None:
    exams, told = course(shape(begins), always, 6000)
    assert len(told) == 1
    assert LASTS * begins <= told[0] <= 1.45 * begins
    assert sum(begins <= step <= told[0] for step in exams) == EXAMS


def test_without_a_bill_it_is_told_as_far_as_the_own_account_goes(cost_s: float) -> None:
    exams, told = course(shape(1700), never, 6000)
    assert told[0] <= (1.45 if cost_s == 0 else 1.8) * 1700
    follow_ups = EXAMS - 1
    assert (len(exams) - follow_ups) * cost_s <= FREE_S * 6000 + (1 + follow_ups) * cost_s


def test_the_cost_of_looking_at_a_healthy_run_is_bounded(cost_s: float) -> None:
    exams, told = course(shape(10**8), never, 6000)
    assert told == []
    assert len(exams) * cost_s <= FREE_S * 6000 + cost_s
    assert len(exams) <= 60


@pytest.mark.usefixtures("cost_s")
def test_once_told_it_is_not_looked_for_sooner_any_more() -> None:
    exams, told = course(shape(700), always, 6000)
    after = [step for step in exams if step >= told[0]]
    assert all(b >= int(a * 1.12) for a, b in pairwise(after))


@pytest.mark.usefixtures("cost_s")
def test_what_passes_before_the_third_look_is_not_told() -> None:
    assert course(shape(900, 960), always, 3000)[1] == []


@pytest.mark.usefixtures("cost_s")
def test_with_fewer_rows_than_it_takes_nobody_looks_sooner() -> None:
    exams, told = course(shape(20), always, 3000)
    young = [step for step in exams if step < ROWS]
    assert all(b >= int(a * 1.12) for a, b in pairwise(young))
    assert told == [min(step for step in exams if step >= ROWS)]


def test_a_loop_that_overfits_is_told_so_while_it_trains(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rng = np.random.default_rng(0)
    # A share of 1: what a run of long updates can pay, a short one shall too.
    with optdoctor.watch(model, optimizer, out=tmp_path, sinks=(), overhead=1.0) as doctor:
        for i in range(1200):
            optimizer.zero_grad()
            model(torch.ones(4)).sum().backward()
            optimizer.step()
            doctor.log(loss=float(np.exp(-i / 300) + 0.02 * rng.random()))
            if i % 25 == 24:
                doctor.log(eval_loss=float(np.exp(-i / 300) + 0.001 * max(i - 600, 0)))
    told = [json.loads(line) for line in (tmp_path / "findings.jsonl").read_text().splitlines()]
    (gap,) = [row for row in told if row["rule"] == "bimodal-gap"]
    assert gap["what"] == "appeared"
    assert 600 < gap["announced"] <= 1050
