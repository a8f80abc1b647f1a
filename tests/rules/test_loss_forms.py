"""What a log says of how its losses are made keeps rules from what they cannot know."""

from dataclasses import replace

import numpy as np
import pytest

from optdoctor.engine import diagnose
from optdoctor.findings import Severity, Status
from optdoctor.rules import RULES
from optdoctor.synthetic import falling_loss, make_trace
from optdoctor.trace import Trace

BY_NAME = {rule.name: rule for rule in RULES}


def with_form(trace: Trace, form: str) -> Trace:
    return replace(trace, facts={**trace.facts, "loss_form": form})


def found(trace: Trace) -> dict[str, Severity]:
    return {finding.rule: finding.severity for finding in diagnose(trace).findings}


@pytest.mark.parametrize(
    ("rule", "form"),
    [
        ("staircase-oscillation", "running mean"),
        ("staircase-oscillation", "sum"),
        ("early-plateau", "sum"),
        ("upward-drift", "sum"),
        ("divergence", "sum"),
    ],
)
def test_a_shape_that_the_form_makes_by_itself_is_not_judged(rule: str, form: str) -> None:
    sick = BY_NAME[rule].sick()
    assert rule in found(sick)
    diagnosis = diagnose(with_form(sick, form))
    assert diagnosis.outcomes[rule].status is Status.ABSTAINED
    assert form in (diagnosis.outcomes[rule].reason or "")


@pytest.mark.parametrize("form", ["sum", "divided"])
def test_the_level_of_a_rescaled_loss_is_not_compared_with_chance(form: str) -> None:
    rng = np.random.default_rng(1)
    trace = make_trace(loss=np.log(10) + rng.normal(0, 1e-3, 200), loss_kind="falling")
    said = " ".join(finding.summary for finding in diagnose(trace).findings)
    assert "ln 10" in said
    again = " ".join(f.summary for f in diagnose(with_form(trace, form)).findings)
    assert "ln 10" not in again


@pytest.mark.parametrize(
    ("epochs", "severity"),
    [(None, Severity.WARN), (0.9, Severity.WARN), (2.5, Severity.CRITICAL)],
)
def test_a_running_mean_keeps_one_nan_until_the_epoch_after_the_next(
    epochs: float | None, severity: Severity
) -> None:
    losses = falling_loss(200)
    losses[100:] = np.nan
    epoch = {} if epochs is None else {"epoch": np.linspace(0, 2 * epochs, 200)}
    trace = make_trace(loss=losses, loss_form="running mean", **epoch)
    assert found(trace)["nan-pulse"] is severity
    assert found(with_form(trace, "mean"))["nan-pulse"] is Severity.CRITICAL
