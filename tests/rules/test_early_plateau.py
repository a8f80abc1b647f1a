"""What the contract cannot know of `early-plateau`."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from curve_families import FAMILIES, VIEWS, Floats
from judging import gravity

from optdoctor.engine import examine
from optdoctor.findings import Finding, Severity, Status
from optdoctor.rules.early_plateau import RULE
from optdoctor.synthetic import falling_loss, make_trace, small_gpt
from optdoctor.trace import Trace

N = 400
SEEDS = range(3)
TENSORS = small_gpt()
T = np.arange(N) / N


def learned(rate: Floats, bounce: float = 0.0, seed: int = 0) -> Trace:
    """A run whose loss falls with the sum of its rates so far, and by `bounce` with the rate."""
    work, share = np.cumsum(rate) / rate.max(), rate / rate.max()
    loss = 1.5 + 3.0 * (1 + work / 5) ** -0.5 + bounce * share
    return make_trace(loss=loss * flat(1.0, 0.03, rate.size, seed), lr=rate)


def flat(level: float = 3.3, noise: float = 0.02, rows: int = N, seed: int = 0) -> Floats:
    return np.asarray(level * np.exp(noise * np.random.default_rng(seed).standard_normal(rows)))


def sampled(value: float, rows: int = 40) -> Floats:
    """One value of a tensor channel for all tensors at every sample."""
    return np.full((rows, len(TENSORS)), value)


def beside(loss: Floats, **channels: Floats) -> Trace:
    """A run with tensor channels sampled at every tenth step."""
    every = 1 + 10 * np.arange(40)
    return make_trace(loss=loss, tensors=TENSORS, steps=dict.fromkeys(channels, every), **channels)


SLOW = 4.0 - 0.3 * np.sqrt(T)
"""A quiet loss that still falls by 2.6 % in the last half."""
TAIL = 2.0 + np.exp(-60 * T)
"""Flat after a fast fall."""


def with_rate(at: int, low: float = 0.01) -> Trace:
    """Spent from row `at` on, where the loss stops."""
    fall = 2.0 + 2.0 * np.minimum(np.arange(1, 101), at) ** -0.5
    return make_trace(loss=fall, lr=np.where(np.arange(100) < at, 1.0, low))


def late_fall(size: float) -> Trace:
    """A steep fall until the rate is spent, then one of that size in the rest."""
    fall = np.where(T < 0.25, np.maximum(20 - 84 * T, 4), 4 * np.exp(-size * (T - 0.25)))
    return make_trace(loss=fall, lr=np.where(T < 0.25, 1.0, 0.001))


def unpaid(size: float) -> Trace:
    fall = np.where(T < 0.25, 4 - 1.6 * T, 3.6 * np.exp(-size * np.minimum(T - 0.25, 0.2)))
    return make_trace(loss=fall, lr=np.where(T < 0.25, 1.0, 0.001))


def drifting(size: float) -> Trace:
    return make_trace(loss=3.3 * np.exp(-size * T))


def off_chance(size: float) -> Trace:
    """Rises from chance among ten and comes back near it."""
    return make_trace(loss=math.log(10) * (1 + size + 0.8 * np.exp(-20 * T) * (T > 0.01)))


def with_gaps(loss: Floats) -> Trace:
    """30 finite losses among 60 rows, which is just enough."""
    return make_trace(loss=np.insert(loss, np.arange(30), np.nan))


def at_chance(off: float = 0.0, swing: float = 0.0) -> Trace:
    """Down to chance among ten within a few rows, and by `off` of it beside; blocks swing."""
    beside = off + 0.05 * np.exp(-200 * T) + swing * (-1.0) ** (np.arange(N) // 10)
    return make_trace(loss=math.log(10) * (1 + beside))


def restless_chance(swing: float) -> Trace:
    return at_chance(swing=swing)


def slow_beside_still_weights(size: float) -> Trace:
    return beside(4.0 * np.exp(-size * T), update_unchanged=sampled(0.9))


def tail(fall: float = 0.0, swing: float = 0.0) -> Floats:
    """Flat after a fast fall, but for a fall over the last half and blocks that swing."""
    late = fall * np.maximum(T - 0.5, 0) + swing * (-1.0) ** (np.arange(N) // 10)
    return TAIL * np.exp(-late)


def falling_beside_updates(fall: float) -> Trace:
    return beside(tail(fall), update_ratio=sampled(0.0029 / 199))


def restless_tail(swing: float) -> Trace:
    return make_trace(loss=tail(swing=swing))


def tail_with_rate(low: float) -> Trace:
    return make_trace(loss=TAIL, lr=np.where(T < 0.45, 1.0, low))


def shelf(height: float) -> Trace:
    """A fast fall onto a shelf that ends with block 20 of 40."""
    return make_trace(loss=TAIL * np.exp(height * (np.arange(N) < 210)))


@cache
def turn(make: Callable[[float], Trace], low: float, high: float) -> tuple[Trace, Trace]:
    """Neighbours between which the judgement changes, from `low` clear to `high` graver."""
    before = gravity(RULE, make(low))
    assert before < gravity(RULE, make(high))
    for _ in range(45):
        middle = (low + high) / 2
        low, high = (low, middle) if gravity(RULE, make(middle)) > before else (middle, high)
    return make(low), make(high)


AT_LIMIT = {
    "low_rate": (lambda: with_rate(30, 0.15), lambda: with_rate(30, np.nextafter(0.15, 0))),
    "spent_share": (lambda: with_rate(41), lambda: with_rate(40)),
    "late_fall": (lambda: turn(late_fall, 0.4, 0.01)[0], lambda: turn(late_fall, 0.4, 0.01)[1]),
    "unpaid": (lambda: turn(unpaid, 1.0, 0.01)[0], lambda: turn(unpaid, 1.0, 0.01)[1]),
    "flat": (lambda: turn(drifting, 0.1, 0.001)[0], lambda: turn(drifting, 0.1, 0.001)[1]),
    "chance": (lambda: turn(off_chance, 0.02, 0.0)[0], lambda: turn(off_chance, 0.02, 0.0)[1]),
    "finite rows": (
        lambda: with_gaps(falling_loss(30)),
        lambda: with_gaps(flat(noise=0.001, rows=30)),
    ),
    "chance in the last half": (
        lambda: turn(at_chance, 0.02, 0.0)[0],
        lambda: turn(at_chance, 0.02, 0.0)[1],
    ),
    "late fall at chance": (
        lambda: turn(restless_chance, 0.1, 0.0)[0],
        lambda: turn(restless_chance, 0.1, 0.0)[1],
    ),
    "late fall beside still weights": (
        lambda: turn(slow_beside_still_weights, 0.5, 0.06)[0],
        lambda: turn(slow_beside_still_weights, 0.5, 0.06)[1],
    ),
    "late fall beside updates": (
        lambda: turn(falling_beside_updates, 0.5, 0.0)[0],
        lambda: turn(falling_beside_updates, 0.5, 0.0)[1],
    ),
    "rate in a tail": (
        lambda: tail_with_rate(np.nextafter(0.15, 0)),
        lambda: tail_with_rate(0.15),
    ),
    "shelf": (lambda: turn(shelf, 0.1, 0.001)[0], lambda: turn(shelf, 0.1, 0.001)[1]),
    "late fall of a tail": (
        lambda: turn(restless_tail, 0.1, 0.0)[0],
        lambda: turn(restless_tail, 0.1, 0.0)[1],
    ),
    "still": (
        lambda: beside(SLOW, update_unchanged=sampled(0.6998)),
        lambda: beside(SLOW, update_unchanged=sampled(0.7)),
    ),
    "travel": (
        lambda: beside(TAIL, update_ratio=sampled(0.003 / 199)),
        lambda: beside(TAIL, update_ratio=sampled(0.0029 / 199)),
    ),
}


def only_finding(trace: Trace) -> Finding:
    outcome = examine(RULE, trace)
    assert outcome.status is Status.FOUND, outcome.reason
    (finding,) = outcome.findings
    return finding


def is_clear(trace: Trace) -> bool:
    return examine(RULE, trace).status is Status.CLEAR


def is_calm(trace: Trace) -> bool:
    """Whether it raises no alarm; a note is none."""
    outcome = examine(RULE, trace)
    assert outcome.status is not Status.CRASHED, outcome.reason
    return all(finding.severity is Severity.NOTE for finding in outcome.findings)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("view", VIEWS)
def test_healthy_curves_raise_no_alarm(family: str, view: str) -> None:
    for seed in SEEDS:
        for rows in (400, 1000):
            loss = VIEWS[view](FAMILIES[family](rows, np.random.default_rng(seed)))
            assert is_calm(make_trace(loss=loss)), (rows, seed)


@pytest.mark.parametrize(
    "family", ["linear", "exponential", "shelf then drop", "epoch staircase", "near zero"]
)
def test_curves_that_fall_or_end_near_zero_get_no_note(family: str) -> None:
    for seed in SEEDS:
        assert is_clear(make_trace(loss=FAMILIES[family](N, np.random.default_rng(seed))))


SCHEDULES: Mapping[str, Floats] = {
    "constant": np.ones(N),
    "cosine": (1 + np.cos(np.pi * T)) / 2,
    "linear": 1 - T,
    "warm-up, stable, decay": np.minimum(1, np.minimum(20 * T + 0.05, 5 * (1 - T) + 0.001)),
    "steps at 30, 60, 90 %": 0.1 ** np.floor((T + 1e-9) / 0.3),
    "steps at half and three quarters": 0.1 ** ((T >= 0.5) + (T >= 0.75)),
    "restarts": (1 + np.cos(np.pi * (5 * T % 1))) / 2,
    "one cycle": np.interp(T, [0, 0.3, 1], [0.04, 1, 1e-5]),
    "exponential": np.exp(-4 * T),
    "inverse root": np.minimum(20 * T + 0.05, (20 * T + 1e-9) ** -0.5),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_usual_schedules_raise_no_alarm(schedule: str) -> None:
    for seed in SEEDS:
        assert is_calm(learned(SCHEDULES[schedule], bounce=0.5, seed=seed))


@pytest.mark.parametrize("low", [0.0, 1e-4, 1e-2])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_rate_spent_while_the_loss_still_fell_is_found(low: float, seed: int) -> None:
    finding = only_finding(learned(np.where(T < 0.15, 1.0, low), seed=seed))
    assert (finding.severity, finding.steps) == (Severity.WARN, (61, N))
    assert "learning rate" in finding.summary
    assert {t.when for t in finding.treatments} == {"now", "next", "check"}


def test_a_rate_that_fades_early_is_spent_where_it_is_nearly_nothing() -> None:
    finding = only_finding(learned(np.exp(-20 * T)))
    assert finding.steps[0] == 1 + math.ceil(N * math.log(1 / 0.03) / 20)


def test_a_rate_cut_after_the_loss_had_converged_is_no_plateau_of_the_rate() -> None:
    loss = 1.0 + 2.0 * np.exp(-80 * T)
    assert is_calm(make_trace(loss=loss * flat(1.0), lr=np.where(T < 0.3, 1.0, 1e-3)))


def test_a_rate_whose_cut_lowers_the_noise_and_the_loss_is_healthy() -> None:
    loss = (1.0 + 2.0 * (1 + 40 * T) ** -0.5) * np.where(T < 0.3, 1.0, 0.7)
    assert is_calm(make_trace(loss=loss * flat(1.0), lr=np.where(T < 0.3, 1.0, 0.1)))


@pytest.mark.parametrize(("classes", "base"), [(10, "nats"), (2, "nats"), (1000, "bits")])
def test_a_loss_at_chance_names_the_number_of_classes(classes: int, base: str) -> None:
    level = math.log2(classes) if base == "bits" else math.log(classes)
    loss = flat(level, 0.01)
    loss[:3] *= 1.05
    finding = only_finding(make_trace(loss=loss, loss_base=base))
    assert finding.severity is Severity.WARN
    assert f"{'log2' if base == 'bits' else 'ln'} {classes} =" in finding.summary
    assert "classes, if that is their number:" in finding.summary


def test_chance_is_that_of_the_known_number_of_classes() -> None:
    unusual = only_finding(make_trace(loss=flat(math.log(37), 0.01), num_classes=37))
    assert "ln 37" in unusual.summary
    assert "if that is" not in unusual.summary
    other = only_finding(make_trace(loss=flat(math.log(10), 0.01), num_classes=37))
    assert "chance" not in other.summary


def test_the_two_halves_of_a_discriminators_loss_are_no_chance_among_four() -> None:
    assert is_calm(make_trace(loss=flat(2 * math.log(2), 0.01) * (1 + 0.12 * np.exp(-20 * T))))


def test_a_loss_that_is_surely_below_chance_is_better_than_chance_if_barely() -> None:
    barely = math.log(2) * (1 - 0.004) * (1 + 0.05 * np.exp(-20 * T))
    finding = only_finding(make_trace(loss=barely * flat(1.0, 0.005)))
    assert finding.severity is Severity.NOTE
    assert "barely better than chance among 2 classes" in finding.summary
    unsure = math.log(2) * (1 - 0.002) * flat(1.0, 0.02, seed=4)
    assert "no better than chance" in only_finding(make_trace(loss=unsure)).summary


def test_a_model_that_broke_and_came_back_to_chance_is_found_from_there() -> None:
    loss = flat(math.log(10), 0.005)
    loss[3:100] *= np.linspace(4, 1.2, 97)
    finding = only_finding(make_trace(loss=loss))
    assert "ln 10" in finding.summary
    assert 90 < finding.steps[0] <= 110


def test_a_loss_that_rose_from_chance_and_never_fell_below_it_is_found() -> None:
    creeping = math.log(10) * (1 + 0.06 * np.minimum(20 * T, 1 - T))
    finding = only_finding(make_trace(loss=creeping))
    assert finding.severity is Severity.WARN
    assert "ln 10" in finding.summary
    assert is_calm(make_trace(loss=creeping * (1 - 0.05 * T)))
    dipping = creeping.copy()
    dipping[1:8] -= 0.03  # the first batch after the start is learned by heart
    assert not is_calm(make_trace(loss=dipping))


def test_a_short_run_that_has_not_learned_yet_is_a_note() -> None:
    assert is_calm(make_trace(loss=flat(math.log(10), 0.005, rows=99)))
    assert is_calm(make_trace(loss=flat(3.3, 0.002, rows=99)))
    assert not is_calm(make_trace(loss=flat(math.log(10), 0.005, rows=100)))


def test_a_loss_that_falls_far_to_a_number_like_chance_is_no_alarm() -> None:
    assert is_calm(make_trace(loss=math.log(10) + 2.5 * np.exp(-60 * T)))


def test_a_loss_flat_from_the_start_is_found() -> None:
    for seed in SEEDS:
        finding = only_finding(make_trace(loss=flat(noise=0.01, seed=seed)))
        assert finding.severity is Severity.WARN
        assert "flat from the start" in finding.summary
        assert {t.when for t in finding.treatments} == {"now", "next", "check"}


def test_a_loss_that_exploded_and_is_back_where_it_began_has_learned_nothing() -> None:
    loss = flat(0.7, 0.01)
    loss[1:6] = [6765, 4526, 3021, 510, 35]
    finding = only_finding(make_trace(loss=loss))
    assert finding.severity is Severity.WARN
    assert "flat from the start" in finding.summary


def test_a_loss_that_rose_a_little_did_not_fall() -> None:
    assert ": it did not fall from step 41" in only_finding(make_trace(loss=3 + 0.1 * T)).summary


def test_the_scale_of_the_loss_does_not_matter() -> None:
    for scale in (1e-100, 1e-15, 1e15):
        assert is_clear(make_trace(loss=scale * falling_loss(start=7, end=1)))
        assert not is_calm(make_trace(loss=scale * flat(noise=0.01)))


def test_a_small_steady_fall_is_a_note_at_most() -> None:
    assert is_calm(drifting(0.015))


def test_a_fall_within_the_first_rows_is_not_flat_from_the_start() -> None:
    loss = flat(1.9, 0.002)
    loss[:4] += [1.0, 0.6, 0.3, 0.1]
    assert is_calm(make_trace(loss=loss))


def test_a_log_that_begins_in_mid_run_is_a_note() -> None:
    steps = {"loss": 50_000 + np.arange(N)}
    assert is_calm(make_trace(loss=flat(noise=0.005), steps=steps))
    assert not is_calm(make_trace(loss=flat(noise=0.005)))


def test_a_rate_that_still_warms_up_is_not_judged() -> None:
    outcome = examine(RULE, make_trace(loss=flat(), lr=T + 0.001))
    assert outcome.status is Status.ABSTAINED
    assert "rises" in (outcome.reason or "")


@pytest.mark.parametrize("channel", ["update_unchanged", "moment2_saturated", "update_ratio"])
def test_a_slow_loss_beside_weights_that_stand_still_is_found(channel: str) -> None:
    still, moving = (1e-9, 1e-3) if channel == "update_ratio" else (0.9, 0.3)
    finding = only_finding(beside(SLOW, **{channel: sampled(still)}))
    assert finding.severity is Severity.WARN
    assert finding.evidence[0].channel == channel
    assert is_calm(beside(SLOW, **{channel: sampled(moving)}))
    late = sampled(moving)
    late[30:] = still  # the tail of a schedule
    assert is_calm(beside(SLOW, **{channel: late}))


def test_a_solved_run_whose_weights_rest_is_silent() -> None:
    solved = np.maximum(0.64 * np.exp(-80 * T), 1e-9)
    assert is_clear(beside(solved, update_unchanged=sampled(1.0)))
    assert not is_calm(beside(solved + 0.1, update_unchanged=sampled(1.0)))


def test_it_tells_how_many_weights_stand_still_not_that_all_do() -> None:
    summary = only_finding(beside(SLOW, update_unchanged=sampled(0.81))).summary
    assert "since step 1, 81 % of the weights with a gradient do not move (limit 70 %)" in summary


def test_where_the_number_format_holds_the_weights_it_says_nothing_else() -> None:
    for loss in (SLOW, flat(math.log(10), 0.005)):
        trace = beside(loss, update_unchanged=sampled(0.9))
        half = replace(trace, facts={"param_dtype": "bfloat16"})
        first = only_finding(half).treatments[0]
        assert "float32" in first.title
        assert not any("Stop the run" in t.title for t in only_finding(half).treatments)
        assert any("Stop the run" in t.title for t in only_finding(trace).treatments)


def test_one_tensor_with_saturated_moments_is_enough() -> None:
    share = sampled(0.0)
    share[5:, 3] = 1.0
    assert only_finding(beside(SLOW, moment2_saturated=share)).steps == (51, N)


def test_a_loss_that_falls_well_is_silent_whatever_the_weights_do() -> None:
    loss = falling_loss(start=5, end=1)
    assert is_clear(beside(loss, update_unchanged=sampled(0.95)))


def test_a_flat_tail_is_a_note_that_leaves_it_open() -> None:
    finding = only_finding(make_trace(loss=TAIL * flat(1.0)))
    assert finding.severity is Severity.NOTE
    assert "converged or stalled" in finding.summary
    assert is_clear(make_trace(loss=TAIL * flat(1.0), lr=np.where(T < 0.4, 1.0, 1e-3)))
    assert is_clear(make_trace(loss=0.01 + np.exp(-60 * T)))


def test_a_loss_printed_with_too_few_digits_is_not_called_flat() -> None:
    assert is_clear(make_trace(loss=np.full(N, 0.01)))
    assert is_clear(make_trace(loss=np.zeros(N)))
    assert is_clear(make_trace(loss=np.round(2 * np.exp(-60 * T) + 0.01, 2)))
    assert not is_calm(make_trace(loss=np.full(N, 3.37)))


@pytest.mark.parametrize("level", [0.5, 1.5, 2.0])
def test_a_loss_that_never_changes_is_flat_however_few_digits_it_has(level: float) -> None:
    assert "flat from the start" in only_finding(make_trace(loss=np.full(100, level))).summary
    assert is_clear(make_trace(loss=np.full(99, level)))


def test_a_loss_that_rises_again_is_no_plateau() -> None:
    assert is_clear(make_trace(loss=flat(2.0, 0.005) * np.exp(0.3 * T)))


@pytest.mark.parametrize("kind", ["reward", "adversarial", "diffusion", "unknown"])
def test_losses_that_need_not_fall_are_not_judged(kind: str) -> None:
    assert examine(RULE, make_trace(loss=flat(), loss_kind=kind)).status is Status.ABSTAINED


def test_no_treatment_names_beta2() -> None:
    for trace in (RULE.sick(), make_trace(loss=flat(noise=0.01), beta2=0.9999)):
        said = " ".join(t.title + t.source for t in only_finding(trace).treatments)
        assert "beta" not in said
