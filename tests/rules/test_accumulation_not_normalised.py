"""What the contract cannot know of `accumulation-not-normalised`."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from optdoctor.engine import diagnose, examine
from optdoctor.findings import Cause, Evidence, Finding, Severity, Status
from optdoctor.rules import RULES
from optdoctor.rules.accumulation_not_normalised import RULE
from optdoctor.synthetic import make_trace
from optdoctor.trace import Trace

GUESS = math.log(10)
BY_NAME = {rule.name: rule for rule in RULES}


def run(times: float, evaluation: float = 1.0, rows: int = 40, **facts: Any) -> Trace:
    """A loss that is `times` that of a first evaluation at step 20, 4 micro-batches an update."""
    known = {"accumulation_steps": 4, "optimizer_family": "sgd", **facts}
    evaluated = {} if evaluation == 0 else {"eval_loss": np.array([evaluation])}
    return make_trace(
        loss=np.full(rows, times * (evaluation or 1.0)),
        steps={"eval_loss": np.array([20])},
        **known,
        **evaluated,
    )


def at_start(loss: float) -> Trace:
    return run(loss * GUESS, 0, num_classes=10)


AT_LIMIT = {
    "tolerance": (lambda: run(4.6000001), lambda: run(4.6)),
    "tolerance below": (lambda: run(3.3999999), lambda: run(3.4)),
    "tolerance at the start": (lambda: at_start(4.6000001), lambda: at_start(4.6)),
}


def only_finding(trace: Trace) -> Finding:
    outcome = examine(RULE, trace)
    assert outcome.status is Status.FOUND, outcome.reason
    (finding,) = outcome.findings
    return finding


def status(trace: Trace) -> Status:
    return examine(RULE, trace).status


def test_for_sgd_two_numbers_that_agree_are_a_warning() -> None:
    finding = only_finding(run(4.2, GUESS, num_classes=10))
    assert (finding.severity, finding.steps) == (Severity.WARN, (1, 40))
    assert "4.2 times the logarithm of the number of classes, in the first row" in finding.summary
    assert [e.channel for e in finding.evidence] == ["num_classes", "eval_loss"]


def test_for_sgd_the_evaluation_alone_is_a_note_that_waits_for_a_symptom() -> None:
    finding = only_finding(run(4.2, 0.7, num_classes=10))
    assert (finding.severity, finding.steps) == (Severity.NOTE, (20, 40))
    assert finding.awaits_symptom


def test_for_optimizers_that_do_not_feel_it_it_is_a_note() -> None:
    finding = only_finding(run(4.2, GUESS, num_classes=10, optimizer_family="adam"))
    assert finding.severity is Severity.NOTE
    assert not finding.awaits_symptom


def test_the_first_rows_tell_before_any_evaluation() -> None:
    finding = only_finding(at_start(4.0))
    assert (finding.severity, finding.steps) == (Severity.NOTE, (1, 40))
    assert "times the logarithm of the number of classes" in finding.summary


@pytest.mark.parametrize("name", ["dead-units", "loss-spike"])
def test_for_sgd_the_first_rows_are_the_cause_of_what_too_large_steps_do(name: str) -> None:
    harm = Finding(Severity.CRITICAL, "Harm, 1.", (12, 40), (Evidence("loss", "x", 1.0, 0.0, "1"),))
    symptom = replace(BY_NAME[name], needs=("loss",), check=lambda trace, limits: [harm])
    diagnosis = diagnose(at_start(4.0), [RULE, symptom])
    assert diagnosis.causes[0] == Cause("accumulation-not-normalised", (name,))


@pytest.mark.parametrize("times", [0.25, 1.0, 1.5, 2.0, 3.0, 8.0, 100.0])
def test_another_ratio_is_silent(times: float) -> None:
    assert status(run(times)) is Status.CLEAR
    assert status(run(times, GUESS, num_classes=10)) is Status.CLEAR


def test_an_evaluation_that_contradicts_the_first_rows_is_believed() -> None:
    assert status(run(1.0, 4 * GUESS, num_classes=10)) is Status.CLEAR


@pytest.mark.parametrize("several", [0, 1, 2, 16])
def test_another_number_of_micro_batches_is_silent(several: int) -> None:
    assert status(run(4.2, accumulation_steps=several)) is Status.CLEAR


@pytest.mark.parametrize(
    "facts",
    [
        {"losses_comparable": "no"},
        {"loss_form": "sum"},
        {"loss_form": "divided"},
        {"loss_form": "running mean"},
        {"loss_kind": "reward"},
    ],
    ids=str,
)
def test_losses_that_are_not_alike_are_not_compared(facts: dict[str, Any]) -> None:
    assert status(run(4.0, **facts)) is Status.ABSTAINED


def test_later_evaluations_do_not_count() -> None:
    loss, steps = np.full(100, 4.0), {"eval_loss": np.array([20, 100])}
    trace = make_trace(loss=loss, eval_loss=np.array([4.0, 1.0]), accumulation_steps=4, steps=steps)
    assert status(trace) is Status.CLEAR


def test_an_evaluation_before_the_first_updates_is_left_out() -> None:
    early = make_trace(
        loss=np.full(9, 4.0),
        eval_loss=np.array([1.0]),
        accumulation_steps=4,
        steps={"eval_loss": np.array([1])},
    )
    assert status(early) is Status.CLEAR


@pytest.mark.parametrize("base", ["bits", "other"])
def test_without_nats_the_number_of_classes_tells_nothing(base: str) -> None:
    assert only_finding(run(4.0, GUESS, num_classes=10, loss_base=base)).severity is Severity.NOTE
