"""What the contract cannot know of `learning-rate-jump`."""

from typing import Any

import numpy as np
import pytest

from optdoctor.engine import examine
from optdoctor.findings import Finding, Severity, Status
from optdoctor.rules.learning_rate_jump import RULE
from optdoctor.synthetic import falling_loss, make_trace
from optdoctor.trace import Trace

ROW = np.arange(200)


def run(rates: Any, loss: Any, **facts: Any) -> Trace:
    return make_trace(lr=np.asarray(rates, float), loss=np.asarray(loss, float), **facts)


def jump(factor: float, rise: float = 0.5) -> Trace:
    """At step 101 the rate is so many times as high, and the loss, 2 until then, that much."""
    return run(np.where(ROW < 100, 1.0, factor), np.where(ROW <= 100, 2.0, 2.0 * (1 + rise)))


def bump(rise: float) -> Trace:
    """After a jump at step 101 the loss, 2 until then, is higher by so much for thirty rows."""
    is_high = (ROW > 100) & (ROW <= 130)
    return run(np.where(ROW < 100, 1.0, 5.0), np.where(is_high, 2.0 * (1 + rise), 2.0))


def apart(rate: float) -> Trace:
    """Rows at steps 1, 2 and 4, then one a step: a straight warm-up doubles the rate to step 4."""
    steps = np.array([1, 2, 4, *range(5, 202)])
    lr = np.array([0.5, 1.0, *[rate] * 198])
    loss = np.where(steps <= 4, 2.0, 4.0)
    before = np.arange(-19, 1)
    return make_trace(
        lr=lr,
        loss=np.append(np.full(20, 2.0), loss),
        steps={"lr": steps + 20, "loss": np.append(before, steps) + 20},
    )


def logged(loss: Any, row: int = 4, every: int = 10) -> Trace:
    """A log of each so many updates, whose rate is 300 times as high from that row on."""
    loss = np.asarray(loss, float)
    at = every * np.arange(1, loss.size + 1)
    rates = np.where(np.arange(loss.size) < row, 0.01, 3.0)
    return make_trace(lr=rates, loss=loss, steps={"lr": at, "loss": at})


def outdone(first: float) -> Trace:
    """A log with three rows before the jump, and such a loss in the first after it."""
    return logged([4.0, 3.5, 3.0, first, *[3.2] * 12], row=3)


AT_LIMIT = {
    "rise above all before": (lambda: outdone(4.2), lambda: outdone(4.200001)),
    "factor": (lambda: apart(6.0), lambda: apart(float(np.nextafter(6.0, 7)))),
    "rise": (lambda: jump(5.0, 0.05), lambda: jump(5.0, 0.050001)),
    "uphill": (lambda: bump(0.5), lambda: bump(0.500001)),
}


def only_finding(trace: Trace) -> Finding:
    outcome = examine(RULE, trace)
    assert outcome.status is Status.FOUND, outcome.reason
    (finding,) = outcome.findings
    return finding


def status(trace: Trace) -> Status:
    return examine(RULE, trace).status


LOSS = falling_loss(200)
JUMP = np.where(ROW < 100, 1e-4, 1e-2)


def test_a_loss_that_stays_higher_is_a_warning() -> None:
    finding = only_finding(run(JUMP, LOSS + (ROW > 100)))
    assert (finding.severity, finding.steps) == (Severity.WARN, (101, 200))
    assert "from 0.0001 to 0.01 at step 101" in finding.summary
    assert finding.evidence[1].observed > 20


def test_a_loss_that_is_not_finite_from_then_on_is_critical() -> None:
    finding = only_finding(run(JUMP, np.where(ROW > 110, np.nan, LOSS)))
    assert finding.severity is Severity.CRITICAL
    assert "not finite from step 112 on to the end" in finding.summary
    assert finding.evidence[1].observed == 11


def test_a_single_loss_that_is_not_finite_is_that_of_a_batch() -> None:
    assert status(run(JUMP, np.where(ROW == 110, np.nan, LOSS))) is Status.CLEAR


def test_a_rise_that_passes_is_a_note() -> None:
    finding = only_finding(run(JUMP, LOSS * np.where((ROW > 100) & (ROW < 130), 1.4, 1.0)))
    assert finding.severity is Severity.NOTE
    assert "% above the" in finding.summary
    assert finding.awaits_symptom


def test_a_jump_that_does_no_harm_is_silent() -> None:
    assert status(run(JUMP, LOSS)) is Status.CLEAR


def test_a_rise_long_after_the_jump_is_no_answer() -> None:
    assert status(run(JUMP, LOSS + (ROW > 170))) is Status.CLEAR


def test_a_loss_that_rises_without_a_jump_is_silent() -> None:
    assert status(run(np.full(200, 1e-3), LOSS + (ROW > 100))) is Status.CLEAR


@pytest.mark.parametrize(
    "rates",
    [
        np.minimum(1, (ROW + 1) / 50),
        np.minimum(1, ROW / 5),
        np.minimum(1, 1e-6 * 2.0**ROW),
        np.minimum(1, 1e-6 * 4.0 ** np.minimum(ROW, 20)),
        np.where(ROW < 1, 0.0, 1.0),
        np.minimum(1, np.maximum(ROW - 1, 0) / 20),
        np.repeat([1.0, 2.0, 4.0, 8.0], 50),
    ],
    ids=[
        "straight",
        "short",
        "exponential",
        "steep exponential",
        "from 0",
        "twice at 0",
        "milestones that rise",
    ],
)
def test_a_warm_up_is_no_jump_whatever_the_loss_does(rates: Any) -> None:
    rising = 2.0 + 0.02 * ROW + (ROW > 20)
    assert status(run(rates, rising)) is Status.CLEAR


def test_a_straight_warm_up_in_rows_that_lie_apart_is_no_jump() -> None:
    steps = np.array([1, *range(10, 2000, 10)])
    rates = np.minimum(1, steps / 500)
    loss = 2.0 + 0.02 * np.arange(200)
    trace = make_trace(lr=rates, loss=loss, steps={"lr": steps, "loss": steps})
    assert status(trace) is Status.CLEAR


def test_a_jump_far_below_the_highest_rate_is_none() -> None:
    rates = np.where(ROW < 50, 1.0, np.where(ROW < 100, 1e-3, 5e-3))
    assert status(run(rates, LOSS + (ROW > 100))) is Status.CLEAR


@pytest.mark.parametrize("seed", range(20))
def test_a_noisy_loss_answers_to_nothing(seed: int) -> None:
    noise = np.exp(0.3 * np.random.default_rng(seed).standard_normal(200))
    assert status(run(JUMP, LOSS * noise)) is Status.CLEAR


def test_warm_restarts_that_the_loss_recovers_from_are_silent() -> None:
    at = ROW % 50
    rates = 0.5 * (1 + np.cos(np.pi * at / 50))
    bumps = LOSS * np.where((at > 0) & (at < 20) & (ROW > 50), 1.4, 1.0)
    assert status(run(rates, bumps)) is Status.CLEAR


def test_a_later_jump_is_found_behind_a_harmless_one() -> None:
    rates = np.where(ROW < 50, 1e-4, np.where(ROW < 120, 1e-3, 1e-1))
    finding = only_finding(run(rates, LOSS + 2 * (ROW > 120)))
    assert finding.steps[0] == 121


def test_losses_that_need_not_fall_are_left_out() -> None:
    assert status(run(JUMP, LOSS + (ROW > 100), loss_kind="adversarial")) is Status.CLEAR
    assert status(run(JUMP, LOSS + (ROW > 100), loss_kind="falling")) is Status.FOUND


BEFORE = [2.29, 2.28, 2.26, 2.24]


def test_four_rows_are_a_level_in_a_log_of_each_tenth_update() -> None:
    finding = only_finding(logged([*BEFORE, *[2.6] * 8]))
    assert finding.severity is Severity.WARN
    assert finding.steps == (50, 120)
    assert "the loss stayed 14.5 % above the 2.27 before" in finding.summary
    assert status(logged([*BEFORE[1:], *[2.6] * 9], row=3)) is Status.CLEAR
    assert status(logged([*BEFORE, *[2.6] * 4, *[2.2] * 8])) is Status.FOUND
    assert status(logged([*BEFORE, *[2.2] * 4, *[2.6] * 8])) is Status.CLEAR


def test_four_losses_that_scatter_hide_a_rise_of_less() -> None:
    assert status(logged([2.0, 2.4, 2.4, 2.4, *[2.7] * 8])) is Status.CLEAR


def test_where_each_update_has_a_row_a_level_has_ten() -> None:
    assert status(logged([*BEFORE, *[2.6] * 40], every=1)) is Status.CLEAR


def test_a_loss_that_breaks_long_after_the_jump_is_no_answer() -> None:
    early, late = [2.2] * 5 + [np.nan] * 10, [2.2] * 6 + [np.nan] * 10
    assert status(logged([*BEFORE, *early])) is Status.FOUND
    assert status(logged([*BEFORE, *late])) is Status.CLEAR


def test_a_few_rows_before_a_jump_must_all_be_outdone() -> None:
    finding = only_finding(outdone(5.0))
    assert finding.severity is Severity.NOTE
    assert finding.awaits_symptom
    assert "the loss rose 25 % above the 4 before, and fell" in finding.summary
    assert "over the highest of the rows before" in finding.evidence[1].what
    assert only_finding(outdone(6.1)).severity is Severity.WARN


@pytest.mark.parametrize(
    ("loss", "row"),
    [
        ([4.0, 4.0, 4.0, 5.0, *[3.2] * 12], 3),
        ([4.0, 3.0, 5.0, *[3.2] * 13], 2),
        ([4.0, 3.5, 3.0, *[5.0] * 12], 3),
        ([4.0, 3.5, 3.0, 3.9, *[3.2] * 12], 3),
    ],
    ids=["had not fallen", "two rows before", "has not come down", "not above all"],
)
def test_a_loss_that_outdoes_few_rows_by_chance_is_silent(loss: Any, row: int) -> None:
    assert status(logged(loss, row=row)) is Status.CLEAR


def test_one_loss_soon_after_a_jump_is_too_few() -> None:
    assert status(logged([4.0, 3.5, 3.0, 5.0, *[3.2] * 12], row=3, every=60)) is Status.CLEAR


def test_where_each_update_has_a_row_the_first_updates_tell_nothing() -> None:
    assert status(logged([4.0, 3.5, 3.0, 3.0, 5.0, *[3.2] * 12], row=3, every=1)) is Status.CLEAR
