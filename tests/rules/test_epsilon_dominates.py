"""What the contract cannot know of `epsilon-dominates`."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from optdoctor.engine import examine
from optdoctor.findings import Finding, Severity, Status
from optdoctor.rules.epsilon_dominates import RULE
from optdoctor.synthetic import make_trace
from optdoctor.trace import TensorInfo, Trace

TWO = TensorInfo("small", (16, 16)), TensorInfo("large", (16, 48))
EPS = 2.0**-10
TINY = EPS / 8
WIDE = EPS * 8


def run(
    gradient: Any = TINY,
    *,
    rows: int = 60,
    eps: float = EPS,
    rate: float = 2.0**-6,
    below: Any = 1.0,
    loss: Any = None,
    family: str = "adam",
    tensors: tuple[TensorInfo, ...] = TWO,
    **more: Any,
) -> Trace:
    """Gradients of that size, [P] or [T, P]; weights of size 1."""
    wide = np.ones((rows, len(tensors)))
    return make_trace(
        grad_rms=gradient * wide,
        moment2_below_eps=below * wide,
        tensor_lr=rate * wide,
        param_rms=wide,
        loss=np.full(rows, 4.0) if loss is None else loss,
        eps=eps,
        optimizer_family=family,
        tensors=tensors,
        **more,
    )


def at_rows(rows: slice, total: int = 60) -> np.ndarray:
    """[total, 2]: tiny gradients in those rows, wide ones in all others."""
    gradients = np.full((total, 2), WIDE)
    gradients[rows] = TINY
    return gradients


def falling_to(level: float) -> Trace:
    """Gradients are tiny from step 31 on, where the loss is that share of the first."""
    return run(at_rows(slice(30, None)), loss=[4.0] * 30 + [4.0 * level] * 30)


AT_LIMIT = {
    "ratio": (lambda: run(EPS), lambda: run(np.nextafter(np.float32(EPS), np.float32(0)))),
    "samples": (lambda: run(at_rows(slice(30, 34))), lambda: run(at_rows(slice(30, 35)))),
    "after": (
        lambda: run(at_rows(slice(18, 23))),  # steps 19 to 23, of which the first is too early
        lambda: run(at_rows(slice(19, 24))),
    ),
    "share": (lambda: run(below=0.5), lambda: run(below=0.5000001)),
    "rate": (lambda: run(rate=0.25), lambda: run(rate=0.2499)),
    "fallen": (lambda: falling_to(0.5), lambda: falling_to(0.5001)),
}


def only_finding(trace: Trace) -> Finding:
    outcome = examine(RULE, trace)
    assert outcome.status is Status.FOUND, outcome.reason
    (finding,) = outcome.findings
    return finding


def status(trace: Trace) -> Status:
    return examine(RULE, trace).status


def test_most_entries_at_an_ordinary_rate_and_an_unsolved_problem_are_a_warning() -> None:
    finding = only_finding(run())
    assert (finding.severity, finding.awaits_symptom) == (Severity.WARN, False)
    assert finding.steps == (20, 60)
    assert finding.tensors == ("large", "small")
    assert finding.evidence[0].observed == pytest.approx(8)
    assert "8 times" in finding.summary


def test_a_tensor_that_holds_few_of_the_entries_cannot_be_what_ails_a_run() -> None:
    assert status(run([TINY, WIDE])) is Status.CLEAR
    finding = only_finding(run([WIDE, TINY]))
    assert (finding.severity, finding.tensors) == (Severity.WARN, ("large",))
    assert finding.evidence[1].observed == pytest.approx(75)


def test_steps_in_which_epsilon_rules_a_few_entries_are_not_told() -> None:
    gradients = at_rows(slice(40, None))
    gradients[:, 0] = TINY
    finding = only_finding(run(gradients))
    assert (finding.steps, finding.tensors) == ((41, 60), ("large", "small"))


def test_a_rate_that_was_chosen_for_it_makes_it_a_note() -> None:
    assert only_finding(run(rate=0.5)).severity is Severity.NOTE


def test_a_problem_that_is_solved_makes_it_a_note() -> None:
    assert only_finding(falling_to(0.01)).severity is Severity.NOTE


@pytest.mark.parametrize(
    ("kind", "severity"),
    [
        ("falling", Severity.WARN),
        ("unknown", Severity.WARN),
        ("reward", Severity.NOTE),
        ("adversarial", Severity.NOTE),
    ],
)
def test_only_a_loss_that_should_fall_makes_it_a_warning(kind: str, severity: Severity) -> None:
    assert only_finding(run(loss_kind=kind)).severity is severity


def test_without_rate_or_loss_it_is_a_note() -> None:
    bare = make_trace(
        grad_rms=np.full((60, 2), TINY), eps=EPS, optimizer_family="adam", tensors=TWO
    )
    assert only_finding(bare).severity is Severity.NOTE
    assert only_finding(run(loss=[-4.0] * 60)).severity is Severity.NOTE


def test_gradients_that_are_exactly_zero_do_not_count() -> None:
    assert status(run(0.0)) is Status.CLEAR
    finding = only_finding(run([TINY, 0.0]))
    assert finding.tensors == ("small",)
    assert finding.evidence[1].observed == pytest.approx(100)


def test_rows_of_an_embedding_that_nobody_used_do_not_make_it() -> None:
    """Their second moment is 0, which is below epsilon; the gradients of the others are not."""
    assert status(run(WIDE, below=0.99)) is Status.CLEAR


@pytest.mark.parametrize(
    "family", ["rmsprop", "adagrad", "adabelief", "lion", "adafactor", "other"]
)
def test_other_families_are_silent(family: str) -> None:
    assert status(run(family=family)) is Status.CLEAR


@pytest.mark.parametrize("eps", [0.0, -1.0, np.inf, None, "garbage"])
def test_an_epsilon_that_is_no_number_above_0_makes_it_abstain(eps: Any) -> None:
    outcome = examine(RULE, run(eps=eps))
    assert outcome.status in (Status.ABSTAINED, Status.SKIPPED)


def test_the_proposed_epsilon_is_measured_by_the_gradients() -> None:
    title = only_finding(run()).treatments[0].title
    assert f"{TINY:.2g}" in title
    assert all(not treatment.changes for treatment in only_finding(run()).treatments)


def test_gradients_whose_squares_are_zero_have_a_size() -> None:
    trace = RULE.sick()
    tiny = np.asarray(trace.series["grad_rms"].values, np.float64) * 1e-25
    steps = trace.series["grad_rms"].steps
    small = make_trace({"grad_rms": tiny}, steps={"grad_rms": steps}, tensors=trace.tensors)
    outcome = examine(RULE, replace(trace, series={**trace.series, **small.series}))
    assert outcome.status is not Status.CRASHED
    assert outcome.findings


def test_small_gradients_under_moments_that_still_remember_larger_ones_are_none_of_its() -> None:
    trace = RULE.sick()
    shape = np.asarray(trace.series["grad_rms"].values).shape
    steps = trace.series["grad_rms"].steps
    none = make_trace(
        {"moment2_below_eps": np.zeros(shape)},
        steps={"moment2_below_eps": steps},
        tensors=trace.tensors,
    )
    outcome = examine(RULE, replace(trace, series={**trace.series, **none.series}))
    assert outcome.status is Status.CLEAR
