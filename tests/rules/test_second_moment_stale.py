"""What the contract cannot know of `second-moment-stale`."""

from typing import Any

import numpy as np
import pytest

from optdoctor.engine import examine
from optdoctor.findings import Finding, Severity, Status
from optdoctor.rules.second_moment_stale import RULE
from optdoctor.synthetic import make_trace
from optdoctor.trace import TensorInfo, Trace

ONE = (TensorInfo("w", (64,)),)
BETA2 = 0.5  # after 60 updates its correction is exactly 1


def run(
    ratios: Any,
    *,
    since: int = 100,
    beta2: float = BETA2,
    tensors: tuple[TensorInfo, ...] = ONE,
    begun: int = 1,
    family: str = "adam",
    every: int = 1,
    **more: Any,
) -> Trace:
    """From step `since` on gradients so many times the second moment's root, 1 before."""
    ratios = np.asarray(ratios, float)
    ratios = ratios[:, None] if ratios.ndim == 1 else ratios
    late = since + every * np.arange(len(ratios))
    early = np.arange(begun, since)
    steps = np.concatenate([early, late])
    values = np.concatenate([np.ones((len(early), ratios.shape[1])), ratios])
    return make_trace(
        grad_rms=values,
        moment2_rms=np.ones_like(values),
        beta2=beta2,
        optimizer_family=family,
        tensors=tensors,
        steps=dict.fromkeys(("grad_rms", "moment2_rms"), steps),
        **more,
    )


def of_updates(updates: int) -> Trace:
    """Gradients far above the moment in the last three of so many updates, with a beta2 that has
    forgotten the beginning by then."""
    return run([9.0] * 3, since=updates - 2, beta2=0.01)


def updates_of(size: float) -> Trace:
    """One sample above the ratio, and updates of that size, in learning rates, from it on; 1
    before."""
    moved = np.where(np.arange(1, 111) >= 100, size, 1.0)[:, None]
    return run([9.0] + [1.0] * 10, update_to_lr=moved)


def loss_of(level: float, noise: float = 0.0) -> Trace:
    """Gradients beyond the moment from step 100 on, and a loss of that level after it; 1 before."""
    losses = np.where(np.arange(1, 141) > 100, level, 1.0)
    losses[:100] += noise / 2 * (-1.0) ** np.arange(100)
    return run([9.0] * 5 + [1.0] * 36, loss=losses)


AT_LIMIT = {
    "ratio": (lambda: run([2.0] * 3), lambda: run([np.float32(2.0000002)] * 3)),
    "samples": (lambda: run([9.0, 9.0, 1.0]), lambda: run([9.0, 9.0, 9.0, 1.0])),
    "growth": (lambda: updates_of(2.5), lambda: updates_of(2.5001)),
    "rise": (lambda: loss_of(1.0625), lambda: loss_of(np.nextafter(1.0625, 2))),
    "noises": (lambda: loss_of(1.375, 0.25), lambda: loss_of(np.nextafter(1.375, 2), 0.25)),
    "after": (lambda: of_updates(21), lambda: of_updates(22)),
}


def only_finding(trace: Trace) -> Finding:
    outcome = examine(RULE, trace)
    assert outcome.status is Status.FOUND, outcome.reason
    (finding,) = outcome.findings
    return finding


def status(trace: Trace) -> Status:
    return examine(RULE, trace).status


def test_it_is_a_note_that_waits_for_a_symptom_with_its_first_and_worst_sample() -> None:
    finding = only_finding(run([3.0, 7.0, 4.0, 1.0]))
    assert (finding.severity, finding.awaits_symptom) == (Severity.NOTE, True)
    assert finding.steps == (100, 102)
    assert [e.observed for e in finding.evidence] == [3.0, 7.0]


def test_it_is_a_warning_where_the_loss_rises() -> None:
    finding = only_finding(loss_of(1.5))
    assert (finding.severity, finding.awaits_symptom) == (Severity.WARN, False)
    assert "from 1 to 1.5" in finding.summary


def test_one_sample_is_enough_where_updates_grow_with_it() -> None:
    assert only_finding(updates_of(4.0)).steps == (100, 100)
    assert status(run([1.0] * 11, update_to_lr=np.linspace(1, 9, 110)[:, None])) is Status.CLEAR


def test_two_stretches_are_one_finding_from_the_first_to_the_last() -> None:
    assert only_finding(run([3.0] * 3 + [1.0] * 5 + [5.0] * 4)).steps == (100, 111)


def test_tensors_weigh_by_their_elements() -> None:
    tensors = TensorInfo("bias", (2,)), TensorInfo("weight", (998,))
    assert status(run([[9.0, 1.0]] * 4, tensors=tensors)) is Status.CLEAR
    finding = only_finding(run([[1.0, 9.0]] * 4, tensors=tensors))
    assert finding.tensors == ("weight",)
    assert finding.evidence[0].observed == pytest.approx(np.sqrt((2 + 998 * 81) / 1000))


def test_only_tensors_beyond_the_limit_are_named() -> None:
    tensors = TensorInfo("at", (8,)), TensorInfo("beyond", (8,))
    assert only_finding(run([[2.0, 9.0]] * 3, tensors=tensors)).tensors == ("beyond",)


def test_a_layer_that_is_set_free_late_has_a_moment_that_has_seen_little() -> None:
    """Its moment is (1 - beta2) g^2 after one update: corrected, it matches its gradient."""
    tensors = TensorInfo("old", (10,)), TensorInfo("new", (990,))
    steps = np.arange(1, 161)
    late = steps >= 101
    gradient = np.ones((160, 2))
    gradient[~late, 1] = np.nan
    updates = np.maximum(steps - 100, 0)
    moment = np.stack([np.ones(160), np.where(late, 1 - 0.999**updates, np.nan)], 1)
    moment[:, 0] = 1 - 0.999**steps
    trace = make_trace(
        grad_rms=gradient,
        moment2_rms=moment,
        beta2=0.999,
        optimizer_family="adam",
        tensors=tensors,
    )
    assert status(trace) is Status.CLEAR
    uncorrected = gradient[120, 1] / np.sqrt(moment[120, 1] / (1 - 0.999**121))
    assert uncorrected > RULE.limits.ratio


@pytest.mark.parametrize(("loaded", "found"), [("no", Status.CLEAR), ("yes", Status.FOUND)])
def test_a_state_that_was_lost_at_a_resume_has_seen_little(loaded: str, found: Status) -> None:
    steps = np.arange(1, 1061)
    since = np.where(steps > 1000, steps - 1000, steps)
    moment = (1 - 0.999**since)[:, None]
    trace = make_trace(
        grad_rms=np.ones_like(moment),
        moment2_rms=moment,
        beta2=0.999,
        optimizer_family="adam",
        resumed_from=1000,
        state_loaded=loaded,
        tensors=ONE,
    )
    assert status(trace) is found


@pytest.mark.parametrize("family", ["adabelief", "rmsprop", "adafactor", "stable_adamw", "other"])
def test_moments_that_are_no_running_mean_of_squares_are_not_judged(family: str) -> None:
    assert status(run([9.0] * 5, family=family)) is Status.CLEAR


@pytest.mark.parametrize("form", ["quantized", "factored", "rooted", "projected"])
def test_moments_held_in_another_form_make_it_abstain(form: str) -> None:
    outcome = examine(RULE, run([9.0] * 5, moment2_form=form))
    assert outcome.status is Status.ABSTAINED
    assert form in str(outcome.reason)


def test_full_moments_are_judged() -> None:
    assert status(run([9.0] * 5, moment2_form="full")) is Status.FOUND


def test_a_moment_in_float16_is_another_rules_affair() -> None:
    half = (TensorInfo("w", (64,), state_dtype="float16"),)
    assert status(run([9.0] * 5, tensors=half)) is Status.CLEAR
    assert status(run([9.0] * 5, tensors=(TensorInfo("w", (64,), state_dtype="bfloat16"),))) is (
        Status.FOUND
    )


def test_an_empty_moment_is_not_divided_by() -> None:
    trace = make_trace(
        grad_rms=np.ones((90, 1)),
        moment2_rms=np.zeros((90, 1)),
        beta2=0.999,
        optimizer_family="adam",
        tensors=ONE,
    )
    assert status(trace) is Status.CLEAR


def test_a_shorter_memory_is_not_proposed_to_who_has_it() -> None:
    assert [t.changes for t in only_finding(run([9.0] * 3, beta2=0.95)).treatments] == [{}]
    changes = only_finding(run([9.0] * 3, since=20_000, beta2=0.999)).treatments[1].changes
    assert changes == {"beta2": (0.999, 0.95)}


def test_how_far_the_weights_moved_stands_beside_it_where_it_was_measured() -> None:
    moved = make_trace(
        grad_rms=np.full((90, 1), 3.0),
        moment2_rms=np.ones((90, 1)),
        update_to_lr=np.full((90, 1), 2.5),
        beta2=BETA2,
        optimizer_family="adam",
        tensors=ONE,
    )
    assert [e.observed for e in only_finding(moved).evidence if e.channel == "update_to_lr"] == [
        2.5
    ]
