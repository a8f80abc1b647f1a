"""What the contract cannot know of `schedule-not-followed`."""

from typing import Any

import numpy as np
import pytest

from optdoctor.engine import examine
from optdoctor.findings import Finding, Severity, Status
from optdoctor.rules.schedule_not_followed import RULE
from optdoctor.synthetic import make_trace
from optdoctor.trace import Trace

TOTAL = 400
AT = np.arange(TOTAL)


def linear(at: Any, warm: int = 0) -> Any:
    return np.minimum((at + 1) / warm if warm else 1, 1 - at / TOTAL)


def run(rates: Any, schedule: str = "linear", **more: Any) -> Trace:
    facts = {"schedule": schedule, "total_steps": TOTAL}
    return make_trace({"lr": np.asarray(rates, float), **facts, **more})


def stuck(since: int, until: int) -> Trace:
    """A line that stops to come down at one update, watched until another."""
    return run(linear(np.minimum(AT[:until], since)))


AT_LIMIT = {"apart": (lambda: stuck(200, 281), lambda: stuck(200, 282))}


def only_finding(trace: Trace) -> Finding:
    outcome = examine(RULE, trace)
    assert outcome.status is Status.FOUND, outcome.reason
    (finding,) = outcome.findings
    return finding


def status(trace: Trace) -> Status:
    return examine(RULE, trace).status


def test_a_rate_that_stays_where_it_was_is_a_note() -> None:
    finding = only_finding(stuck(100, TOTAL))
    assert (finding.severity, finding.steps) == (Severity.NOTE, (101, TOTAL))
    assert finding.evidence[0].observed == pytest.approx(0.75 - 1 / TOTAL)
    assert finding.awaits_symptom


def test_a_rate_that_never_fell_is_found_after_most_of_the_run() -> None:
    assert status(run(np.ones(240))) is Status.CLEAR
    assert status(run(np.ones(TOTAL))) is Status.FOUND
    warm = np.minimum(1, (AT + 1) / 20)
    assert only_finding(run(warm, "cosine", warmup_steps=20)).steps == (20, TOTAL)


def test_a_warm_up_that_was_planned_and_not_made_is_found() -> None:
    finding = only_finding(run(linear(np.maximum(AT - 40, 0)), warmup_steps=40))
    assert (finding.steps, finding.evidence[0].observed) == ((1, 20), 20)
    resumed = run(linear(np.maximum(AT - 40, 0)), warmup_steps=40, resumed_from=0.5)
    assert status(resumed) is Status.CLEAR


@pytest.mark.parametrize(
    "trace",
    [
        run(linear(AT)),
        run(linear(AT, warm=40), warmup_steps=40),
        run(0.5 * (1 + np.cos(np.pi * AT / TOTAL)), "warm-cosine"),
        run(np.maximum(linear(AT), 0.1)),
        run(linear(AT // 50 * 50)),
        run(linear(AT[:390] // 130 * 130)),
        run(np.ones(TOTAL), "constant"),
        run(np.ones(TOTAL), "cosine_with_restarts"),
        run(np.ones(TOTAL), "cosine_with_min_lr"),
        run(np.zeros(TOTAL)),
        run(np.ones(TOTAL), optimizer_family="schedule_free"),
    ],
)
def test_what_was_planned_is_silent(trace: Trace) -> None:
    assert status(trace) is Status.CLEAR


def test_after_the_planned_updates_nothing_is_expected() -> None:
    longer = run(np.r_[linear(AT), np.full(400, linear(AT)[-1])])
    assert status(longer) is Status.CLEAR
