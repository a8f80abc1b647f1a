"""What the contract cannot know of `clipping-too-low`."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from optdoctor.engine import examine
from optdoctor.findings import Finding, Severity, Status
from optdoctor.rules.clipping_too_low import RULE
from optdoctor.synthetic import make_trace
from optdoctor.trace import TensorInfo, Trace

ROWS = 100
WEIGHT = (TensorInfo("h.0.weight", (8, 8), kind="mlp"),)
SGD = {"optimizer": "SGD", "optimizer_family": "sgd"}


def run(used: Any = 0.01, *, norm: float = 1.0, **more: Any) -> Trace:
    """Gradients of one norm, of which the optimizer was given that much."""
    after = np.full(ROWS, used) * 1.0
    channels = {**SGD, "grad_norm": np.full(ROWS, norm), "grad_norm_used": after, **more}
    return make_trace(channels, tensors=WEIGHT)


def newest(rows: int) -> Trace:
    """A factor of 10 throughout, and one of a million so many updates before the end."""
    used = np.full(ROWS, 0.1)
    used[ROWS - rows] = 1e-6
    return run(used)


def moving(step: float) -> Trace:
    """With updates that move the weights by that part, in float64."""
    flat = np.full((ROWS, 1), 1.0)
    trace = run(0.01, param_rms=flat, update_rms=flat)
    fine = replace(trace.series["update_rms"], values=np.full((ROWS, 1), step))
    return replace(trace, series={**trace.series, "update_rms": fine})


AT_LIMIT = {
    "depth": (lambda: run(0.1), lambda: run(0.1 * (1 - 1e-15))),
    "window": (lambda: newest(51), lambda: newest(50)),
    "step": (lambda: moving(0.001), lambda: moving(float(np.nextafter(0.001, 0)))),
    "rates below half": (
        lambda: run(lr=np.append(np.full(71, 0.49), np.full(29, 1.0))[::-1].copy()),
        lambda: run(lr=np.append(np.full(71, 0.5), np.full(29, 1.0))[::-1].copy()),
    ),
}


def only_finding(trace: Trace) -> Finding:
    outcome = examine(RULE, trace)
    assert outcome.status is Status.FOUND, outcome.reason
    (finding,) = outcome.findings
    return finding


def status(trace: Trace) -> Status:
    return examine(RULE, trace).status


def test_the_factor_and_its_updates_are_told() -> None:
    finding = only_finding(run(0.01))
    assert finding.summary == (
        "Clipping has shortened the gradient 100 times on average (limit 10) since step 1, and SGD"
        " feels it."
    )
    assert finding.steps == (1, 100)
    assert [round(e.observed, 6) for e in finding.evidence] == [2.0, 100.0]


@pytest.mark.parametrize("family", ["adam", "lion", "muon", "lamb", "adafactor", "other"])
def test_optimizers_that_do_not_feel_the_length_are_silent(family: str) -> None:
    assert status(run(1e-6, optimizer_family=family)) is Status.CLEAR


def test_the_threshold_stands_in_for_what_was_not_measured() -> None:
    norms = np.full(ROWS, 1.0)
    assert only_finding(make_trace({**SGD, "max_grad_norm": 0.01}, grad_norm=norms)).steps[0] == 1
    assert status(make_trace({**SGD, "max_grad_norm": 0.0}, grad_norm=norms)) is Status.ABSTAINED
    assert status(make_trace(SGD, grad_norm=norms)) is Status.ABSTAINED
    few = make_trace(
        {**SGD, "max_grad_norm": 0.01, "grad_norm": norms, "grad_norm_used": norms[:5] / 100},
        steps={"grad_norm_used": np.arange(1, 100, 20)},
    )
    assert status(few) is Status.FOUND


def test_a_threshold_that_was_never_applied_is_seen_through() -> None:
    assert status(run(1.0, max_grad_norm=0.01)) is Status.CLEAR


def test_gradients_below_the_threshold_count_as_not_shortened() -> None:
    norms = np.full(ROWS, 1.0)
    norms[::2] = 1e-4
    assert status(make_trace({**SGD, "max_grad_norm": 0.05}, grad_norm=norms)) is Status.CLEAR
    assert status(make_trace({**SGD, "max_grad_norm": 0.005}, grad_norm=norms)) is Status.FOUND


def test_it_began_when_the_mean_over_the_window_passed_the_limit() -> None:
    used = np.full(ROWS, 1.0)
    used[40:] = 0.01
    assert only_finding(run(used)).steps == (66, 100)  # 26 of the last 50 have two decades
    used[90:] = 1.0
    assert status(run(used)) is Status.FOUND  # 40 of the last 50 still do
    used[60:] = 1.0
    assert status(run(used)) is Status.CLEAR


def test_a_few_updates_say_nothing() -> None:
    used = np.full(20, 0.01)
    trace = make_trace(SGD, grad_norm=np.ones(ROWS), grad_norm_used=used)
    assert status(trace) is Status.CLEAR
    sampled = make_trace(SGD, grad_norm=np.ones(ROWS), grad_norm_used=used[:4])
    assert status(sampled) is Status.ABSTAINED


def test_a_tail_of_the_schedule_is_not_judged() -> None:
    rates = np.linspace(1.0, 0.0, ROWS)
    finding = only_finding(run(lr=rates))
    assert finding.steps[1] <= 51


def test_steps_of_ordinary_length_make_it_a_note() -> None:
    finding = only_finding(moving(0.01))
    assert (finding.severity, finding.awaits_symptom) == (Severity.NOTE, True)
    assert only_finding(moving(1e-4)).severity is Severity.WARN
    assert only_finding(run(0.01)).severity is Severity.NOTE


def test_five_times_the_median_norm_is_proposed() -> None:
    (treatment,) = only_finding(run(0.03, norm=3.0, max_grad_norm=0.03)).treatments
    assert treatment.changes == {"max_grad_norm": (0.03, 15.0)}
    (unknown,) = only_finding(run(0.03, norm=3.0)).treatments
    assert unknown.changes == {}


def logged(rows: int, every: int, factor: float = 100.0) -> Trace:
    """A log of each so many updates, of norms so much longer than the threshold."""
    at = {"grad_norm": every * np.arange(1, rows + 1)}
    return make_trace(SGD, grad_norm=np.ones(rows), max_grad_norm=1 / factor, steps=at)


def test_a_log_of_each_tenth_update_needs_ten_rows() -> None:
    assert only_finding(logged(10, 10)).steps == (10, 100)
    assert status(logged(9, 10)) is Status.ABSTAINED
    assert status(logged(30, 10, factor=9.9)) is Status.CLEAR


def test_ten_rows_over_few_updates_say_nothing() -> None:
    assert status(logged(29, 1)) is Status.CLEAR
    assert only_finding(logged(30, 1)).steps == (1, 30)
    assert status(logged(10, 3)) is Status.CLEAR
    assert only_finding(logged(11, 3)).steps == (3, 33)


def test_only_the_rows_of_a_log_at_the_full_rate_are_judged() -> None:
    rates = np.append(np.full(9, 1.0), np.full(21, 0.4))
    at = 10 * np.arange(1, 31)
    channels = {**SGD, "grad_norm": np.ones(30), "max_grad_norm": 0.01, "lr": rates}
    steps = {"grad_norm": at, "lr": at}
    assert status(make_trace(channels, steps=steps)) is Status.CLEAR
    rates[9] = 0.5
    assert only_finding(make_trace(channels, steps=steps)).steps == (10, 100)
