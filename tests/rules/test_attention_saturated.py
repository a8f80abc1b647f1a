"""What the contract cannot know of `attention-saturated`."""

from typing import Any

import numpy as np
import pytest

from optdoctor.engine import diagnose, examine
from optdoctor.findings import Finding, Severity, Status, Verdict
from optdoctor.rules import RULES
from optdoctor.rules.attention_saturated import RULE
from optdoctor.synthetic import make_trace
from optdoctor.trace import Trace


def run(nats: Any, logit: Any, samples: int = 40, **more: Any) -> Trace:
    return make_trace(
        {"attention_entropy": np.broadcast_to(nats, samples)},
        attention_logit_max=np.broadcast_to(logit, samples),
        **more,
    )


def sharp_in(*rows: int) -> Trace:
    nats = np.full(40, 2.5)
    nats[list(rows)] = 0.5
    return run(nats, 50.0)


AT_LIMIT = {
    "entropy": (lambda: run(1.0, 50.0), lambda: run(np.nextafter(1.0, 0), 50.0)),
    "logit": (lambda: run(0.5, 32.0), lambda: run(0.5, np.nextafter(32.0, 33))),
    "passing": (lambda: sharp_in(4, 5), lambda: sharp_in(4, 5, 6)),
}


def only_finding(trace: Trace) -> Finding:
    outcome = examine(RULE, trace)
    assert outcome.status is Status.FOUND, outcome.reason
    (finding,) = outcome.findings
    return finding


def test_it_says_when_it_began_and_by_how_much() -> None:
    finding = only_finding(sharp_in(1, 2, 10, 11, 12, 13, 30, 31, 32, 39))
    assert finding.steps == (11, 33)
    assert finding.summary == (
        "Attention had an entropy of 0.5 nats (limit 1) and logits up to 50 (limit 32) at step 11."
    )
    assert [e.observed for e in finding.evidence] == [0.5, 50.0]


@pytest.mark.parametrize(("nats", "logit"), [(0.5, 20.0), (2.0, 500.0), (0.0, 32.0), (3.0, 1.0)])
def test_little_entropy_or_a_large_logit_alone_say_nothing(nats: float, logit: float) -> None:
    assert examine(RULE, run(nats, logit)).status is Status.CLEAR


@pytest.mark.parametrize("nats", [np.nan, -1.0, np.inf])
def test_an_entropy_that_none_can_be_says_nothing(nats: float) -> None:
    assert examine(RULE, run(nats, 500.0)).status is Status.CLEAR


def test_infinite_logits_are_large() -> None:
    assert only_finding(run(0.5, np.inf)).evidence[1].observed == 1e300


def test_samples_without_one_of_both_are_left_out() -> None:
    steps = {"attention_entropy": np.arange(1, 80, 2)}
    assert only_finding(run(0.5, 50.0, steps=steps)).steps == (1, 39)


def test_alone_it_leaves_the_run_healthy_and_beside_a_spike_it_is_its_cause() -> None:
    assert only_finding(RULE.sick()).severity is Severity.NOTE
    spike = next(r for r in RULES if r.name == "loss-spike")
    calm = np.random.default_rng(0).normal(3, 0.02, 400)
    high = calm.copy()
    high[300:303] += 4
    for loss, found in ((calm, False), (high, True)):
        diagnosis = diagnose(run(0.5, 50.0, 400, loss=loss, loss_kind="falling"), [RULE, spike])
        assert diagnosis.verdict is (Verdict.SICK if found else Verdict.HEALTHY)
        assert [c.rule for c in diagnosis.causes] == (["attention-saturated"] if found else [])
