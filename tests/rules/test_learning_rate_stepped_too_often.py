"""What the contract cannot know of `learning-rate-stepped-too-often`."""

from typing import Any

import numpy as np
import pytest

from optdoctor.engine import diagnose, examine
from optdoctor.findings import Finding, Severity, Status
from optdoctor.rules.learning_rate_stepped_too_often import RULE
from optdoctor.synthetic import make_trace
from optdoctor.trace import Trace

ROW = np.arange(400)


def line(at: Any, warm_up: int = 20, total: int = 400) -> Any:
    """The usual schedule: up to 1 in the warm-up, down to 0 at the end."""
    return np.maximum(np.minimum(at / warm_up, (total - at) / (total - warm_up)), 0)


def cosine(at: Any, total: int = 400, least: float = 0.0) -> Any:
    at = np.minimum(at, total)
    return least + (1 - least) * 0.5 * (1 + np.cos(np.pi * at / total))


def run(rates: Any, **facts: Any) -> Trace:
    return make_trace(lr=np.asarray(rates, float), **facts)


def ending(took: int) -> Trace:
    """A line that rests after so many of 9,800 planned updates; 4,900 would be the half."""
    return run(np.maximum(1 - np.arange(8000) / took, 0), total_steps=9800, world_size=2)


AT_LIMIT = {"tolerance": (lambda: ending(5001), lambda: ending(5000))}


def only_finding(trace: Trace) -> Finding:
    outcome = examine(RULE, trace)
    assert outcome.status is Status.FOUND, outcome.reason
    (finding,) = outcome.findings
    return finding


def status(trace: Trace) -> Status:
    return examine(RULE, trace).status


@pytest.mark.parametrize("shape", [line, cosine])
@pytest.mark.parametrize("times", [2, 3, 4, 8])
def test_the_number_of_calls_an_update_is_found_to_the_unit(shape: Any, times: int) -> None:
    finding = only_finding(run(shape(times * ROW), total_steps=400, accumulation_steps=times))
    assert finding.severity is Severity.WARN
    assert f"1/{times} to within" in finding.summary
    assert f"{times} micro-batches an update would have it" in finding.summary
    assert finding.steps[1] == 400


def test_processes_explain_it_as_well() -> None:
    finding = only_finding(run(cosine(4 * ROW), total_steps=400, world_size=4))
    assert "as 4 processes would have it" in finding.summary
    both = run(cosine(8 * ROW), total_steps=400, world_size=4, accumulation_steps=2)
    assert "as 2 micro-batches on 4 processes would have it" in only_finding(both).summary


def test_an_end_at_a_half_that_nothing_confirms_is_a_note() -> None:
    finding = only_finding(run(cosine(2 * ROW), total_steps=400, accumulation_steps=4))
    assert finding.severity is Severity.NOTE
    assert "or so planned" in finding.summary


def test_a_horizon_that_nothing_confirms_is_silent() -> None:
    """`T_max` is a quarter of the run on purpose: the rate rests, or rises again."""
    facts: dict[str, Any] = {"total_steps": 400, "accumulation_steps": 1, "world_size": 2}
    assert status(run(cosine(4 * ROW), **facts)) is Status.CLEAR
    assert status(run(0.5 * (1 + np.cos(np.pi * ROW / 100)), **facts)) is Status.CLEAR


def test_a_warm_up_at_the_planned_pace_disproves_it() -> None:
    rates = np.minimum((ROW + 1) / 20, cosine(4 * ROW))
    facts: dict[str, Any] = {"total_steps": 400, "accumulation_steps": 4}
    assert status(run(rates, **facts)) is Status.FOUND
    assert status(run(rates, **facts, warmup_steps=int(rates.argmax()) + 1)) is Status.CLEAR


def test_a_schedule_in_epochs_that_steps_with_each_batch_is_found() -> None:
    facts: dict[str, Any] = {"total_steps": 400, "batch_index": ROW % 25}
    finding = only_finding(run(cosine(25 * ROW), **facts))
    assert finding.severity is Severity.WARN
    assert "as 25 updates an epoch would have it" in finding.summary


def test_warm_up_and_end_confirm_each_other() -> None:
    finding = only_finding(run(line(4 * ROW), total_steps=400, warmup_steps=20))
    assert finding.severity is Severity.WARN
    assert "as the warm-up would have it" in finding.summary
    assert [e.channel for e in finding.evidence] == ["total_steps", "warmup_steps"]


def test_a_warm_up_alone_is_enough() -> None:
    rates = np.minimum((4 * ROW + 1) / 100, 1)
    finding = only_finding(run(rates, warmup_steps=100, accumulation_steps=4))
    assert (finding.severity, finding.steps) == (Severity.WARN, (26, 400))
    assert status(run(rates, warmup_steps=25, accumulation_steps=4)) is Status.CLEAR


def test_a_schedule_with_a_least_rate_is_found() -> None:
    finding = only_finding(run(cosine(4 * ROW, least=0.1), total_steps=400, world_size=4))
    assert finding.severity is Severity.WARN


def test_it_explains_that_the_rate_is_spent() -> None:
    trace = run(cosine(4 * ROW), total_steps=400, accumulation_steps=4)
    assert diagnose(trace).causes[0].rule == RULE.name
    assert "learning-rate-spent" in diagnose(trace).causes[0].explains


@pytest.mark.parametrize(
    "rates",
    [
        line(ROW),
        cosine(ROW),
        cosine(ROW, least=0.1),
        np.repeat([1.0, 0.1, 0.01, 0.001], 100),
        np.repeat(cosine(np.arange(0, 400, 20)), 20),
        np.repeat(0.9 ** np.arange(20), 20),
        np.full(400, 1e-3),
        np.minimum(1, (ROW + 1) / 100),
        np.minimum(1, (400 - ROW) / 40),
        np.tile(cosine(np.arange(100) * 4), 4),
        1 / np.sqrt(1 + ROW),
        np.where(ROW < 145, 1 - ROW / 160, 0.09),
        np.maximum(1 - ROW / 500, 0.6),
    ],
    ids=[
        "line",
        "cosine",
        "least rate",
        "milestones",
        "an epoch at a time",
        "exponential of epochs",
        "constant",
        "warm-up only",
        "stable-decay",
        "restarts",
        "root",
        "end at no fraction",
        "rest above half of the peak",
    ],
)
def test_schedules_that_go_as_planned_are_silent_at_every_length(rates: Any) -> None:
    facts = {"total_steps": 400, "accumulation_steps": 4, "world_size": 2}
    assert all(status(run(rates[:end], **facts)) is Status.CLEAR for end in range(30, 401, 10))


def test_without_a_plan_nothing_is_said() -> None:
    assert status(run(cosine(4 * ROW))) is Status.SKIPPED


def test_after_a_resume_nothing_is_said() -> None:
    assert status(run(cosine(4 * ROW), total_steps=400, resumed_from=10)) is Status.ABSTAINED


@pytest.mark.parametrize("schedule", ["StepLR", "ExponentialLR"])
def test_a_schedule_without_an_end_is_not_called_clear(schedule: str) -> None:
    rates = 1e-2 * 0.5 ** np.arange(280)
    facts = {"total_steps": 280, "schedule": schedule}
    outcome = examine(RULE, make_trace(lr=rates, **facts))
    assert (outcome.status, outcome.reason) == (
        Status.ABSTAINED,
        f"{schedule} has no end that could come too early",
    )


def test_rows_that_lie_apart_leave_room_for_the_end_between_them() -> None:
    at = np.arange(0, 4000, 10)
    trace = make_trace(
        lr=cosine(3 * at, total=4000),
        total_steps=4000,
        accumulation_steps=3,
        steps={"lr": at + 1},
    )
    assert "1/3 to within 0 %" in only_finding(trace).summary


def logged(rates: Any, every: int = 10, **facts: Any) -> Trace:
    """A log of each so many updates, of a run with a rate for each."""
    at = np.arange(every, len(rates) + 1, every)
    return make_trace(lr=np.asarray(rates)[at - 1], steps={"lr": at}, **facts)


def test_a_log_of_each_tenth_update_counts_from_the_first_update() -> None:
    rates = cosine(4 * np.arange(300), total=300)
    finding = only_finding(logged(rates, total_steps=300, accumulation_steps=4))
    assert finding.severity is Severity.WARN
    assert "within 80 updates of 300 planned for it, 1/4 to within 0 %" in finding.summary


def test_a_rate_that_fell_in_each_of_a_few_rows_that_lie_apart_followed_a_schedule() -> None:
    plan: dict[str, Any] = {"total_steps": 300, "accumulation_steps": 7}
    assert status(logged(cosine(7 * np.arange(300), total=300), **plan)) is Status.CLEAR
    plan["accumulation_steps"] = 6
    assert status(logged(cosine(6 * np.arange(300), total=300), **plan)) is Status.FOUND
    assert status(run(cosine(6 * np.arange(30), total=30), **plan | {"total_steps": 30})) is (
        Status.CLEAR
    )


def test_a_few_milestones_with_rests_between_are_no_schedule() -> None:
    rates = 0.5 ** np.minimum(np.arange(300) // 15, 5)
    assert status(logged(rates, total_steps=300, accumulation_steps=4)) is Status.CLEAR
