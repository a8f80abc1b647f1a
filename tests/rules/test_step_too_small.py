"""What the contract cannot know of `step-too-small`."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from optdoctor.engine import examine
from optdoctor.findings import Finding, Severity, Status
from optdoctor.rules.step_too_small import GUESS, RULE
from optdoctor.synthetic import make_trace
from optdoctor.trace import Kind, TensorInfo, Trace

STEPS, PLANNED = 256, 512
AT = np.arange(1, STEPS, 4)
WEIGHTS = tuple(TensorInfo(f"h.{i}.weight", (8, 8), kind="mlp") for i in range(3))


def run(
    ratio: Any = 2.0**-14,
    stands: float = 0.95,
    *,
    rates: Any = 1.0,
    at: Any = AT,
    tensors: tuple[TensorInfo, ...] = WEIGHTS,
    facts: dict[str, Any] | None = None,
) -> Trace:
    """A loss that begins at 1 and stands there after a tenth of the plan, and updates that move
    the weights by that part."""
    loss = np.full(STEPS, stands)
    loss[:20] = 1.0
    ratios = np.broadcast_to(np.asarray(ratio, float).T, (len(tensors), len(at))).T
    channels = {
        "loss": loss,
        "lr": np.full(STEPS, rates),
        "update_rms": ratios,
        "param_rms": np.ones(ratios.shape),
        "total_steps": PLANNED,
        "num_classes": np.e,  # a guess has a loss of 1
        "loss_base": "nats",
        **(facts or {}),
    }
    sampled = dict.fromkeys(("update_rms", "param_rms"), at)
    return make_trace(channels, tensors=tensors, steps=sampled)


def reaching(part: float) -> Trace:
    """A whole plan that moves the weights by that part: all factors but one are powers of 2."""
    return run(2.0**-13, facts={"total_steps": part * 2.0**13})


def lasting(samples: int) -> Trace:
    """The rate is at its peak in so many of the last samples, and at 0.4 of it in those before."""
    rates = np.full(STEPS, 0.4)
    rates[0] = 1.0
    rates[STEPS - 4 * samples :] = 1.0
    return run(rates=rates)


AT_LIMIT = {
    "reach": (lambda: reaching(0.08), lambda: reaching(float(np.nextafter(0.08, 0)))),
    "standing": (lambda: run(stands=0.71), lambda: run(stands=float(np.nextafter(0.71, 1)))),
    "lasting": (lambda: lasting(2), lambda: lasting(3)),
}


def test_weights_that_do_not_move_at_all_are_left_to_the_rules_that_say_why() -> None:
    assert examine(RULE, run(0.0)).status is Status.CLEAR
    assert examine(RULE, run(2.0**-30)).status is Status.FOUND


def only_finding(trace: Trace) -> Finding:
    outcome = examine(RULE, trace)
    assert outcome.status is Status.FOUND, outcome.reason
    (finding,) = outcome.findings
    return finding


def status(trace: Trace) -> Status:
    return examine(RULE, trace).status


def test_what_the_whole_plan_reaches_is_told() -> None:
    finding = only_finding(run(2.0**-14))
    assert finding.summary == (
        "All 512 planned updates together would move the weights by 3.1 % of their size (limit"
        " 8 %), and the loss stands at 95 % of its start."
    )
    assert finding.steps == (1, 253)
    assert finding.severity is Severity.WARN


@pytest.mark.parametrize("facts", [{"num_classes": 50_000}, {"loss_base": "bits"}])
def test_a_run_that_may_be_a_fine_tune_is_a_note(facts: dict[str, Any]) -> None:
    finding = only_finding(run(facts=facts))
    assert (finding.severity, finding.awaits_symptom) == (Severity.NOTE, True)
    unknown = run()
    without = {k: v for k, v in unknown.facts.items() if k not in ("num_classes", "loss_base")}
    assert only_finding(replace(unknown, facts=without)).severity is Severity.NOTE


def test_the_first_loss_may_differ_from_a_guess_by_a_fifth() -> None:
    for off in (1 + 0.9 * GUESS, 1 - 0.9 * GUESS):
        known = run(facts={"num_classes": float(np.exp(1 / off))})
        assert only_finding(known).severity is Severity.WARN
    for off in (1 + 2 * GUESS, 1 - 1.1 * GUESS):
        other = run(facts={"num_classes": float(np.exp(1 / off))})
        assert only_finding(other).severity is Severity.NOTE


def test_a_loss_that_falls_is_silent_however_small_the_steps() -> None:
    assert status(run(2.0**-20, 0.5)) is Status.CLEAR


def test_steps_of_ordinary_size_are_silent_whatever_the_loss() -> None:
    assert status(run(2.0**-8, 1.5)) is Status.CLEAR


def test_weights_that_have_moved_once_have_moved() -> None:
    ratios = np.full(len(AT), 2.0**-14)
    ratios[:3] = 0.5
    assert status(run(ratios)) is Status.CLEAR


def test_the_first_quarter_of_the_plan_is_not_judged() -> None:
    assert status(run(facts={"total_steps": 100_000})) is Status.CLEAR


def test_the_tail_of_a_schedule_is_not_judged() -> None:
    falling = np.linspace(1.0, 0.01, STEPS)
    tail = run(2.0**-14 * falling[AT - 1], rates=falling, facts={"total_steps": STEPS})
    assert only_finding(tail).steps == (1, 129)


def test_a_loss_that_began_to_fall_after_all_is_silent() -> None:
    trace = run()
    values = trace.series["loss"].values.copy()
    values[-20:] = 0.5
    late = replace(trace.series["loss"], values=values)
    assert status(replace(trace, series={**trace.series, "loss": late})) is Status.CLEAR


@pytest.mark.parametrize("planned", [0, -5, "many", float("inf")])
def test_a_plan_that_is_no_number_of_updates_is_not_judged(planned: Any) -> None:
    assert status(run(facts={"total_steps": planned})) is Status.ABSTAINED


NO_PLAN = {"total_steps": None}


def test_without_a_plan_ten_times_the_updates_so_far_are_taken_for_it() -> None:
    finding = only_finding(run(2.0**-17, facts=NO_PLAN))
    assert finding.summary == (
        "10 times the 253 updates made until step 253 would move the weights by 1.9 % of their size"
        " (limit 8 %), and the loss stands at 95 % of its start."
    )
    assert (finding.severity, finding.steps) == (Severity.WARN, (1, 253))
    assert status(run(2.0**-14, facts=NO_PLAN)) is Status.CLEAR
    assert status(run(2.0**-17, facts={**NO_PLAN, "resumed_from": 10})) is Status.ABSTAINED


def test_without_a_plan_the_first_updates_and_a_warm_up_are_not_judged() -> None:
    assert status(run(2.0**-17, at=AT[AT < 106], facts=NO_PLAN)) is Status.CLEAR
    assert status(run(2.0**-17, at=AT[AT < 110], facts=NO_PLAN)) is Status.FOUND
    rising = np.linspace(0.01, 1.0, STEPS)
    warm_up = run(2.0**-17 * rising[AT - 1], rates=rising, facts=NO_PLAN)
    assert status(warm_up) is Status.CLEAR
    rested = np.minimum(np.linspace(0.01, 2.5, STEPS), 1.0)
    assert status(run(2.0**-17 * rested[AT - 1], rates=rested, facts=NO_PLAN)) is Status.FOUND


def test_it_is_seen_in_samples_that_each_come_when_the_run_has_grown_by_half() -> None:
    at = np.array([1, 2, 3, 5, 8, 12, 18, 27, 41, 62, 94, 141, 212])
    assert status(run(at=at, facts={"total_steps": 255})) is Status.FOUND


@pytest.mark.parametrize("kind", ["norm", "bias", "adapter"])
def test_tensors_whose_size_is_no_measure_are_not_counted(kind: Kind) -> None:
    others = tuple(replace(t, kind=kind) for t in WEIGHTS)
    assert status(run(tensors=others)) is Status.CLEAR


def test_a_rate_of_zero_is_another_rules_matter() -> None:
    assert status(run(0.0, rates=0.0)) is Status.CLEAR


@pytest.mark.parametrize("kind", ["reward", "adversarial"])
def test_a_loss_that_need_not_fall_is_not_judged(kind: str) -> None:
    assert status(run(facts={"loss_kind": kind})) is Status.ABSTAINED
