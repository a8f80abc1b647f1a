"""What the contract cannot know of `warmup-too-short`."""

from typing import Any

import numpy as np
import pytest

from optdoctor.engine import examine
from optdoctor.findings import Finding, Severity, Status
from optdoctor.rules.warmup_too_short import RULE
from optdoctor.synthetic import make_trace
from optdoctor.trace import Trace

EXACT = 1 - 2.0**-10  # a memory of 1024 updates exactly


def run(warmup: Any = 0, **more: Any) -> Trace:
    facts = {
        "optimizer_family": "adam",
        "norm_placement": "post",
        "beta2": EXACT,
        "warmup_steps": warmup,
        "peak_lr": 1e-3,
        "weights_rms": 0.02,
    }
    return make_trace({**facts, **more})


def above(number: float) -> float:
    return float(np.nextafter(number, np.inf))


AT_LIMIT = {
    "memories": (lambda: run(2048), lambda: run(2047)),
    "share": (lambda: run(50, total_steps=1000), lambda: run(49, total_steps=1000)),
    "rate": (
        lambda: run(peak_lr=0.002, weights_rms=1.0),
        lambda: run(peak_lr=above(0.002), weights_rms=1.0),
    ),
}


def only_finding(trace: Trace) -> Finding:
    outcome = examine(RULE, trace)
    assert outcome.status is Status.FOUND, outcome.reason
    (finding,) = outcome.findings
    return finding


def status(trace: Trace) -> Status:
    return examine(RULE, trace).status


def test_no_warm_up_is_a_note_before_step_1() -> None:
    finding = only_finding(run())
    assert (finding.severity, finding.steps, finding.awaits_symptom) == (
        Severity.NOTE,
        (0, 0),
        True,
    )
    assert finding.treatments[0].changes == {"warmup_steps": (0, 2048)}


def test_blocks_that_normalize_first_are_silent() -> None:
    assert status(run(norm_placement="pre")) is Status.CLEAR


@pytest.mark.parametrize("family", ["sgd", "radam", "lion", "adafactor", "schedule_free", "other"])
def test_optimizers_that_need_none_or_are_not_known_are_silent(family: str) -> None:
    assert status(run(optimizer_family=family)) is Status.CLEAR


@pytest.mark.parametrize("rate", [1e-5, 2e-5, 5e-5, 8e-5])
def test_a_fine_tune_at_its_usual_rates_is_silent(rate: float) -> None:
    """Weights of BERT have a root mean square of about 0.04."""
    assert status(run(peak_lr=rate, weights_rms=0.04, total_steps=3_000)) is Status.CLEAR


def test_a_short_run_needs_no_more_than_its_share() -> None:
    finding = only_finding(run(0, total_steps=1_000))
    assert finding.treatments[0].changes == {"warmup_steps": (0, 50)}
    assert "(limit 50)" in finding.summary


def test_a_faster_second_moment_needs_less() -> None:
    assert status(run(40, beta2=0.95)) is Status.CLEAR
    assert only_finding(run(10, beta2=0.95)).treatments[0].changes == {"warmup_steps": (10, 40)}
