"""What the contract cannot know of `learning-rate-restarted`."""

from typing import Any

import numpy as np
import pytest

from optdoctor.engine import examine
from optdoctor.findings import Finding, Severity, Status
from optdoctor.rules.learning_rate_restarted import RULE
from optdoctor.synthetic import falling_loss, make_trace
from optdoctor.trace import Event, Trace

ROW = np.arange(400)


def warm_cosine(at: Any) -> Any:
    return np.minimum(1, (at + 1) / 20) * 0.5 * (1 + np.cos(np.pi * at / 400))


def resumed_at(step: int) -> dict[str, Any]:
    return {"resumed_from": step - 1, "events": (Event(step, "resume", "training begins"),)}


def run(rates: Any, resume: int = 0, **facts: Any) -> Trace:
    more = resumed_at(resume) if resume else {}
    return make_trace(lr=np.asarray(rates, float), **{**more, **facts})


def restarted(row: int, rows: int = 400) -> Any:
    at = np.where(np.arange(rows) >= row, np.arange(rows) - row, np.arange(rows))
    return warm_cosine(at)


def held(factor: float) -> Trace:
    """A constant rate that is that many times as high after a resume."""
    return run([1.0] * 50 + [factor] * 50, 51)


def again(rows: int) -> Trace:
    """A resume after which so many rows of the warm-up come again, and no jump out of the usual."""
    warmup = [0.1 * (i + 1) for i in range(20)]
    return run([*warmup, *[0.25] * 30, *warmup[:rows], *[0.05] * 30], 51)


AT_LIMIT = {
    "jump": (lambda: held(1.5), lambda: held(float(np.nextafter(1.5, 2)))),
    "repeated": (
        lambda: run(restarted(200, 209), 201),
        lambda: run(restarted(200, 210), 201),
    ),
    "rows that are those of the start": (lambda: again(9), lambda: again(10)),
    "rows before it": (
        lambda: run([1.0] * 9 + [2.0] * 30, 10),
        lambda: run([1.0] * 10 + [2.0] * 30, 11),
    ),
}


def only_finding(trace: Trace) -> Finding:
    outcome = examine(RULE, trace)
    assert outcome.status is Status.FOUND, outcome.reason
    (finding,) = outcome.findings
    return finding


def status(trace: Trace) -> Status:
    return examine(RULE, trace).status


def test_a_warm_up_that_begins_again_at_a_resume_is_a_warning_with_a_plan() -> None:
    finding = only_finding(run(restarted(200), 201, total_steps=400))
    assert (finding.severity, finding.steps) == (Severity.WARN, (201, 400))
    assert "starts again at the resume at step 201: from 0.504 to 0.05" in finding.summary
    assert finding.evidence[1].observed == 200


def test_without_a_plan_it_is_a_note_unless_the_loss_rises() -> None:
    assert only_finding(run(restarted(200), 201)).severity is Severity.NOTE
    loss = falling_loss()
    assert only_finding(run(restarted(200), 201, loss=loss)).severity is Severity.NOTE
    loss[200:] *= 1.3
    finding = only_finding(run(restarted(200), 201, loss=loss))
    assert finding.severity is Severity.WARN
    assert finding.evidence[-1].observed == pytest.approx(30, abs=3)


def test_a_rate_that_is_back_at_its_first_value_is_found() -> None:
    step_decay = np.repeat([1.0, 0.1], 200)
    step_decay[300:] = 1.0
    finding = only_finding(run(step_decay, 301, total_steps=400))
    assert (finding.severity, finding.steps[0]) == (Severity.WARN, 301)


def test_the_rate_that_an_optimizer_brings_along_may_last_one_update_more() -> None:
    rates = restarted(200)
    rates[200] = rates[199]
    finding = only_finding(run(rates, 201, total_steps=400))
    assert (finding.severity, finding.steps) == (Severity.WARN, (201, 400))
    assert "starts again at the resume at step 201: from 0.504 to 0.1" in finding.summary
    assert finding.evidence[1].observed == 199
    rates[201] = rates[199]
    assert status(run(rates, 201, total_steps=400)) is Status.CLEAR, "two are no loaded rate"


def test_a_jump_to_another_rate_is_a_note() -> None:
    finding = only_finding(run([1.0] * 50 + [0.3] * 50, 51, total_steps=100))
    assert finding.severity is Severity.NOTE
    assert "jumps at the resume" in finding.summary


def test_a_schedule_that_had_come_to_its_end_is_a_note() -> None:
    ended = np.concatenate([warm_cosine(np.arange(400)), warm_cosine(np.arange(200))])
    finding = only_finding(run(ended, 401, total_steps=800))
    assert finding.severity is Severity.NOTE
    assert "had come to its end" in finding.summary


@pytest.mark.parametrize(
    "rates",
    [
        warm_cosine(ROW),
        np.full(400, 1e-3),
        1 - ROW / 400,
        1 / np.sqrt(1 + ROW),
        np.minimum(1, (ROW + 1) / 300),
        np.repeat([1.0, 0.1, 0.01, 0.001], 100),
    ],
    ids=["cosine", "constant", "line", "root", "long warm-up", "milestones"],
)
@pytest.mark.parametrize("resume", [0, 61, 151, 251])
def test_a_schedule_that_goes_on_after_a_resume_is_silent(rates: Any, resume: int) -> None:
    assert status(run(rates, resume, total_steps=400)) is Status.CLEAR


def test_a_milestone_at_the_very_resume_is_no_warning() -> None:
    rates = np.repeat([1.0, 0.1, 0.01, 0.001], 100)
    assert only_finding(run(rates, 201, total_steps=400)).severity is Severity.NOTE


def test_warm_restarts_are_silent_also_where_one_falls_on_a_resume() -> None:
    cycles = np.tile(warm_cosine(np.arange(100) * 4), 4)
    assert status(run(cycles)) is Status.CLEAR
    assert status(run(cycles, 201)) is Status.CLEAR
    assert status(run(restarted(200), 201, schedule="CosineAnnealingWarmRestarts")) is Status.CLEAR


@pytest.mark.parametrize("growth", [1, 2])
def test_cosine_restarts_of_torch_are_silent(growth: int) -> None:
    torch = pytest.importorskip("torch")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 60, growth)
    rates = []
    for _ in range(400):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert all(status(run(rates[:end])) is Status.CLEAR for end in range(30, 401, 10))


def test_a_warm_up_that_begins_again_without_a_resume_is_a_note_once() -> None:
    finding = only_finding(run(restarted(200), total_steps=400))
    assert finding.severity is Severity.NOTE
    assert [t.when for t in finding.treatments] == ["check"]
    twice = np.where(ROW >= 150, ROW - 150, ROW)
    twice = np.where(ROW >= 300, ROW - 300, twice)
    assert status(run(warm_cosine(twice))) is Status.CLEAR


def test_between_two_cycles_and_without_a_warm_up_nothing_is_said() -> None:
    assert status(run(restarted(300))) is Status.CLEAR
    assert status(run([0.3] * 50 + [1.0] * 100 + [0.3] * 100)) is Status.CLEAR


def test_rates_every_tenth_step_are_judged_alike() -> None:
    rates = restarted(100, 1000)[9::10]
    steps = {"lr": np.arange(10, 1001, 10)}
    trace = make_trace(lr=rates, total_steps=1000, steps=steps, **resumed_at(101))
    assert only_finding(trace).steps[0] == 110
