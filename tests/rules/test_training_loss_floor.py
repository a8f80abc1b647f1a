"""What the contract cannot know of `training-loss-floor`."""

from typing import Any

import numpy as np
import pytest

from optdoctor.engine import examine
from optdoctor.findings import Finding, Severity, Status
from optdoctor.rules.training_loss_floor import RULE
from optdoctor.synthetic import make_trace
from optdoctor.trace import Trace

ROW = np.arange(400)
AT = np.arange(20, 401, 20)
FALL = np.exp(-ROW / 40)


def run(loss: Any, evaluations: Any, **facts: Any) -> Trace:
    rows = len(evaluations)
    return make_trace(
        loss=np.asarray(loss, float),
        eval_loss=np.asarray(evaluations, float),
        steps={"eval_loss": AT[:rows]},
        **facts,
    )


def floor(octaves: float, last: int = 20, level: float = 1.0) -> Trace:
    """Training at `level` from 2 on, evaluations so far below in the last ones."""
    loss = np.where(ROW < 10, 2.0, level)
    evaluations = np.where(np.arange(20) >= 20 - last, level * 2.0**-octaves, level)
    return run(loss, evaluations)


def falling(share: float) -> Trace:
    """The training loss falls by so much over the last eighth of the run before each evaluation.

    The level is the median of 32 rows, so the two halves of the run hold still but for one step.
    """
    loss = np.where(ROW < 10, 2.0, np.where(ROW < 340, 1.0, 1.0 - share))
    return run(loss, np.full(20, 0.5))


AT_LIMIT = {
    "octaves": (lambda: floor(0.7), lambda: floor(0.7000001)),
    "height": (lambda: floor(1.0, level=0.4), lambda: floor(1.0, level=0.4000001)),
    "fall": (lambda: falling(0.1), lambda: falling(0.0999999)),
    "evaluations": (lambda: floor(1.0, last=4), lambda: floor(1.0, last=5)),
}


def only_finding(trace: Trace) -> Finding:
    outcome = examine(RULE, trace)
    assert outcome.status is Status.FOUND, outcome.reason
    (finding,) = outcome.findings
    return finding


def status(trace: Trace) -> Status:
    return examine(RULE, trace).status


def test_it_is_a_note_that_says_what_it_cannot_tell_apart() -> None:
    finding = only_finding(floor(1.2))
    assert finding.severity is Severity.NOTE
    assert "2.3 times the evaluation loss (limit 1.62) in 20 evaluations" in finding.summary
    assert "or a training loss that is harder on purpose" in finding.summary
    assert finding.awaits_symptom


def test_it_is_a_warning_where_the_losses_are_known_to_be_comparable() -> None:
    trace = floor(1.2)
    comparable = run(trace.series["loss"].values, np.full(20, 0.4), losses_comparable="yes")
    assert only_finding(comparable).severity is Severity.WARN
    assert "on purpose" not in only_finding(comparable).summary


@pytest.mark.parametrize(
    "facts",
    [
        {"losses_comparable": "no"},
        {"loss_form": "running mean"},
        {"loss_form": "sum"},
        {"loss_form": "divided"},
        {"loss_kind": "reward"},
        {"accumulation_steps": 2},
    ],
    ids=str,
)
def test_losses_that_are_not_alike_are_not_compared(facts: dict[str, Any]) -> None:
    trace = run(np.where(ROW < 10, 4.0, 2.0), np.full(20, 1.0), **facts)
    assert status(trace) is Status.ABSTAINED


def test_micro_batches_of_another_number_explain_nothing() -> None:
    loss, evaluations = np.where(ROW < 10, 4.0, 2.0), np.full(20, 1.0)
    assert status(run(loss, evaluations, accumulation_steps=4)) is Status.FOUND
    assert status(run(loss, evaluations, accumulation_steps=1)) is Status.FOUND


def test_a_loss_that_was_multiplied_by_thousands_is_not_compared() -> None:
    loss = 65_536 * np.where(ROW < 10, 4.0, 2.0)
    assert status(run(loss, np.full(20, 1.0))) is Status.ABSTAINED


@pytest.mark.parametrize(
    ("loss", "evaluations"),
    [
        (2.2 + 2 * FALL, (2.3 + 2 * FALL)[19::20]),
        (2.2 + 2 * FALL, 1.5 + 2 * FALL[19::20]),
        (0.02 + 2 * FALL, 0.01 + 1 * FALL[19::20]),
        (3.0 * 0.994**ROW, 1.2 * 0.994 ** ROW[19::20]),
        (0.5 + 2 * FALL, 1.5 + 2 * FALL[19::20]),
    ],
    ids=["alike", "dropout", "solved", "still falling", "overfitted"],
)
def test_runs_that_go_well_are_silent(loss: Any, evaluations: Any) -> None:
    assert status(run(loss, evaluations)) is Status.CLEAR


def test_the_onset_is_the_first_of_the_evaluations_in_a_row() -> None:
    assert only_finding(floor(1.0, last=7)).steps == (280, 400)


def test_one_evaluation_that_is_not_below_breaks_the_row() -> None:
    loss, evaluations = np.where(ROW < 10, 2.0, 1.0), np.full(20, 0.5)
    evaluations[16] = 1.0
    assert status(run(loss, evaluations)) is Status.CLEAR


def test_broken_numbers_are_left_out() -> None:
    loss, evaluations = np.where(ROW < 10, 2.0, 1.0), np.full(20, 0.5)
    loss[::7], evaluations[3] = np.nan, np.nan
    assert status(run(loss, evaluations)) is Status.FOUND
