"""How often rules are right: the counts, their intervals, and that they are today's."""

import os
import subprocess
import sys
from math import comb
from pathlib import Path

import pytest

from optdoctor.knowledge.rates import Measured, Rate, Z, rates_of
from optdoctor.report.explain import render
from optdoctor.rule import SYMPTOMS
from optdoctor.rules import RULES

ROOT = Path(__file__).resolve().parents[2]
CORPUS = os.environ.get("OPTDOCTOR_CORPUS", "")


@pytest.mark.parametrize(("count", "of"), [(0, 55), (1, 55), (6, 7), (7, 7), (30, 60)])
def test_an_interval_ends_where_the_counts_would_be_an_accident(count: int, of: int) -> None:
    rate = Rate(count, of)
    for bound in rate.interval:
        if bound not in (0.0, 1.0):  # Wilson: the share is Z standard deviations from the bound
            deviation = (bound * (1 - bound) / of) ** 0.5
            assert abs(count / of - bound) == pytest.approx(Z * deviation)
    low, high = rate.interval
    exact = [comb(of, k) * high**k * (1 - high) ** (of - k) for k in range(count + 1)]
    assert low <= count / of <= high
    assert count == of or sum(exact) < 0.2  # and nearly as the exact binomial has it


def test_a_rate_is_printed_with_its_counts_and_its_interval() -> None:
    assert Rate(0, 55).told("logs") == "0 of 55 logs (95 % interval 0-7 %)"
    assert Rate(6, 7, 7).told("logs") == "6 of 7 logs (95 % interval 49-97 %)"
    # Three seeds are one case.
    assert Rate(6, 6, 2).told("runs") == "6 of 6 runs of 2 configurations (95 % interval 34-100 %)"
    assert Rate(3, 3, 1).told("runs").startswith("3 of 3 runs of 1 configuration (")


def test_what_was_never_tried_sick_is_said_so() -> None:
    one = Measured("on logs", None, Rate(0, 55))
    assert str(one).endswith(
        "healthy runs (95 % interval 0-7 %); no sick run of this kind was tried"
    )


def test_every_symptom_rule_prints_what_was_measured_of_it() -> None:
    for rule in RULES:
        if rule.name in SYMPTOMS:
            assert rates_of(rule.name)[0].alarms.of > 0
            assert str(rates_of(rule.name)[0]) in " ".join(render(rule).split())


@pytest.mark.skipif(not Path(CORPUS, "index.jsonl").is_file(), reason="OPTDOCTOR_CORPUS is not set")
def test_the_counts_are_those_of_today() -> None:
    script = [sys.executable, str(ROOT / "scripts" / "measure_rates.py"), "--check"]
    subprocess.run(script, check=True, cwd=ROOT, timeout=300)
