"""What the contract cannot know of `early-plateau`."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from curve_families import FAMILIES, VIEWS, Floats
from curves.families import FAMILIES as DEVELOPMENT
from curves.faults import FAULTS
from curves.views import ALL_VIEWS, trace_of
from judging import gravity

from optdoctor.curves import flatness
from optdoctor.curves.masked import loss_curve
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


def swinging(size: float) -> Trace:
    """Flat from the start, in blocks that swing."""
    return make_trace(loss=3.3 * np.exp(size * (-1.0) ** (np.arange(N) // 10)))


def course(pace: float, at: float = 0.3) -> Floats:
    """A power law that goes on at `pace` of its own pace from `at` on."""
    level = -0.12 * np.log(np.arange(1, N + 1))
    kink = int(at * N)
    level[kink:] = level[kink] + pace * (level[kink:] - level[kink])
    return np.asarray(4 * np.exp(level))


def slowed(pace: float) -> Trace:
    return make_trace(loss=course(pace))


def epochs(losses: Floats, first: int = 1, **channels: Floats) -> Trace:
    """A log of one row an epoch."""
    at = first + np.arange(losses.size)
    steps = dict.fromkeys(["loss", *channels], at)
    return make_trace(loss=losses, steps=steps, step_source="epochs", **channels)


def handful(size: float) -> Trace:
    """12 losses within a range of that size."""
    return make_trace(
        loss=3.3 * (1 + size * np.linspace(0, 1, 12)[[3, 0, 11, 7, 5, 2, 9, 1, 8, 4, 10, 6]])
    )


def handful_at_chance(size: float) -> Trace:
    """Ten epochs around the logarithm of 10."""
    return epochs(math.log(10) * (1 + size * np.linspace(-0.5, 0.5, 10)))


def slowed_by_the_rate(pace: float) -> Trace:
    return make_trace(loss=course(pace), lr=np.where(T < 0.3, 1.0, 1e-3))


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
    """A fall that fades by itself, and one of that size after the rate was spent."""
    level = 0.3 * np.exp(-np.minimum(T, 0.25) / 0.1) - size * np.maximum(T - 0.25, 0)
    return make_trace(loss=4 * np.exp(level), lr=np.where(T < 0.25, 1.0, 0.001))


def drifting(size: float) -> Trace:
    return make_trace(loss=3.3 * np.exp(-size * T))


def off_chance(size: float) -> Trace:
    """Rises from chance among ten and comes back near it."""
    return make_trace(loss=math.log(10) * (1 + size + 0.8 * np.exp(-20 * T) * (T > 0.01)))


def with_gaps(loss: Floats) -> Trace:
    """As many finite losses as NaN between them."""
    return make_trace(loss=np.insert(loss, np.arange(loss.size), np.nan))


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
    "unpaid": (lambda: turn(unpaid, 0.1, 0.001)[0], lambda: turn(unpaid, 0.1, 0.001)[1]),
    "flat": (lambda: turn(drifting, 0.1, 0.001)[0], lambda: turn(drifting, 0.1, 0.001)[1]),
    "chance": (lambda: turn(off_chance, 0.02, 0.0)[0], lambda: turn(off_chance, 0.02, 0.0)[1]),
    "hardly": (lambda: turn(swinging, 0.1, 0.018)[0], lambda: turn(swinging, 0.1, 0.018)[1]),
    "shortfall": (lambda: turn(slowed, 0.8, 0.3)[0], lambda: turn(slowed, 0.8, 0.3)[1]),
    "a handful": (
        lambda: with_gaps(np.linspace(3, 2, 8)),
        lambda: with_gaps(np.full(8, 3.333)),
    ),
    "range of a handful at chance": (
        lambda: turn(handful_at_chance, 0.015, 0.001)[0],
        lambda: turn(handful_at_chance, 0.015, 0.001)[1],
    ),
    "shortfall under a spent rate": (  # a note with another rate, a warning with this one
        lambda: make_trace(loss=turn(slowed_by_the_rate, 0.9, 0.25)[1].series["loss"].values),
        lambda: turn(slowed_by_the_rate, 0.9, 0.25)[1],
    ),
    "range of a handful": (
        lambda: turn(handful, 0.1, 0.005)[0],
        lambda: turn(handful, 0.1, 0.005)[1],
    ),
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


def test_a_loss_that_falls_slowly_to_a_guessed_number_is_not_at_chance() -> None:
    falling = math.log(3) * (1 + 0.08 * np.maximum(1 - 2 * T, 0)) * flat(1.0, 0.003)
    assert is_calm(make_trace(loss=falling))
    assert not is_calm(make_trace(loss=falling, num_classes=3))


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


def test_a_net_that_dies_in_its_first_rows_is_a_warning_from_a_hundred_rows() -> None:
    for rows, severity in ((500, Severity.WARN), (100, Severity.WARN), (90, Severity.NOTE)):
        dead = flat(math.log(10), 1e-5, rows)
        dead[:5] = [9, 7, 5, 4, 3]
        finding = only_finding(make_trace(loss=dead))
        assert (finding.severity, finding.steps) == (severity, (6, rows))
        assert finding.summary == (
            "Plateau: the loss fell from 9 to 2.303 within the first 5 rows and has learned nothing"
            " since: that is chance among 10 classes, if that is their number, ln 10 = 2.303 (limit"
            " 0.1 %)."
        )


def test_a_loss_that_rises_in_the_end_did_not_converge_or_stall() -> None:
    """A drift tells of it, whether or not it comes near the course that it had left."""
    loss = course(0.0, 0.15) * flat(1.0, 0.001)
    assert "left its course" in only_finding(make_trace(loss=loss)).summary
    assert is_clear(make_trace(loss=loss * np.exp(0.08 * np.maximum(T - 0.5, 0) / 0.5)))


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
    assert " it did not fall from step 41" in only_finding(make_trace(loss=3 + 0.1 * T)).summary


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


def test_a_rate_that_was_spent_on_a_solved_task_is_a_note() -> None:
    trace = late_fall(0.0)
    assert only_finding(trace).severity is Severity.WARN
    loss, rate = (np.asarray(trace.series[name].values) for name in ("loss", "lr"))
    solved = make_trace(loss=loss - 3.99, lr=rate)
    assert only_finding(solved).severity is Severity.NOTE


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


def rounded(level: float, spread: float, rows: int, digits: int = 4, seed: int = 0) -> Floats:
    noise = np.random.default_rng(seed).uniform(-spread, spread, rows)
    return np.round(level * (1 + noise), digits)


def test_ten_epochs_at_chance_are_a_warning_wherever_the_log_begins() -> None:
    for first in (1, 40):
        finding = only_finding(epochs(rounded(math.log(10), 1e-4, 10), first))
        assert finding.severity is Severity.WARN
        assert "at chance among 10 classes, if that is their number, ln 10 = 2.3026" in (
            finding.summary
        )
        assert finding.steps == (first, first + 9)


def test_ten_single_steps_at_chance_are_a_note() -> None:
    assert only_finding(make_trace(loss=rounded(math.log(10), 1e-4, 10))).severity is Severity.NOTE


def test_a_vocabulary_is_named_by_its_size() -> None:
    finding = only_finding(make_trace(loss=np.full(12, 10.8249)))
    assert "among 50,257 classes" in finding.summary
    long = only_finding(make_trace(loss=flat(math.log(32000), 0.001)))
    assert long.severity is Severity.WARN
    assert "among 32,000 classes" in long.summary


def test_a_guessed_number_of_classes_is_met_closely_in_a_log_that_begins_in_mid_run() -> None:
    near = rounded(1.003 * math.log(10), 1e-4, 10)
    assert "chance" in only_finding(epochs(near)).summary
    assert "chance" not in only_finding(epochs(near, first=40)).summary
    steps = {"loss": 50_000 + np.arange(N)}
    for off, is_chance in ((1.003, False), (1.0003, True)):
        trace = make_trace(loss=flat(off * math.log(10), 0.002), steps=steps)
        assert ("chance" in only_finding(trace).summary) is is_chance
        assert is_calm(trace) is not is_chance


@pytest.mark.parametrize("rows", [8, 12, 19])
def test_a_handful_of_epochs_that_did_not_move_is_flat_from_the_start(rows: int) -> None:
    finding = only_finding(epochs(rounded(1.7, 0.004, rows)))
    assert finding.severity is Severity.WARN
    assert f"flat from the start: all {rows} losses from step 1 to step {rows} lie between" in (
        finding.summary
    )
    assert only_finding(epochs(rounded(1.7, 0.004, rows), first=30)).severity is Severity.NOTE


def test_a_handful_that_falls_is_silent_or_if_it_hardly_falls_a_note() -> None:
    assert is_clear(epochs(np.linspace(1.7, 1.6, 10)))
    assert only_finding(epochs(np.linspace(1.7, 1.68, 10))).severity is Severity.NOTE


def test_a_handful_of_rounded_losses_shows_no_flatness_below_its_step() -> None:
    assert is_clear(epochs(np.full(10, 2.3)))
    assert is_clear(epochs(np.full(10, 0.02)))
    assert not is_calm(epochs(np.full(10, 0.693)))


def test_fewer_than_eight_losses_are_not_judged() -> None:
    outcome = examine(RULE, epochs(np.full(7, 2.3026)))
    assert outcome.status is Status.ABSTAINED


def test_a_loss_that_leaves_its_own_course_is_a_note_with_what_did_not_come() -> None:
    for seed in SEEDS:
        finding = only_finding(make_trace(loss=course(0.0) * flat(1.0, 0.01, seed=seed)))
        assert finding.severity is Severity.NOTE
        assert "left its course at step" in finding.summary
        assert "converged or stalled" in finding.summary
        assert 60 <= finding.steps[0] <= 160
        assert is_clear(make_trace(loss=course(1.0) * flat(1.0, 0.01, seed=seed)))


def test_a_stop_long_after_the_rate_was_cut_is_not_the_schedules() -> None:
    lr = np.where(T < 0.1, 1.0, 1e-3)
    finding = only_finding(make_trace(loss=course(0.0, 0.35) * flat(1.0, 0.005), lr=lr))
    assert finding.severity is Severity.NOTE
    assert "with the learning rate at 0.1 % of its peak" in finding.summary


def test_a_stop_with_the_rate_is_the_schedules_however_its_fall_is_measured() -> None:
    lr = np.where(T < 0.3, 1.0, 1e-3)
    finding = only_finding(make_trace(loss=course(0.2) * flat(1.0, 0.005), lr=lr))
    assert finding.severity is Severity.WARN
    assert "progress stopped with the learning rate: since step 121" in finding.summary
    assert is_clear(make_trace(loss=course(1.0) * flat(1.0, 0.005), lr=lr))


def healed(loss: Floats, rows: int = 20) -> Floats:
    """The loss drops to half in its last rows."""
    dropped = loss.copy()
    dropped[-rows:] *= np.linspace(0.9, 0.5, rows)
    return dropped


def test_a_plateau_that_heals_before_the_end_is_silent() -> None:
    for loss in (flat(noise=0.005), flat(math.log(10), 0.002), TAIL * flat(1.0, 0.005)):
        assert not is_clear(make_trace(loss=loss))
        assert is_clear(make_trace(loss=healed(loss)))
    assert is_clear(beside(healed(SLOW), update_unchanged=sampled(0.9)))


def test_a_stop_that_begins_to_heal_is_silent() -> None:
    stopped = 0.5 + 2 * np.exp(-5 * np.minimum(T, 0.3))
    assert "left its course" in only_finding(make_trace(loss=stopped)).summary
    stopped[-20:] *= np.linspace(0.99, 0.93, 20)
    assert is_clear(make_trace(loss=stopped))


def test_few_rows_have_to_be_flatter() -> None:
    def within(low: float, high: float, rows: int) -> Trace:
        """A flat run whose upper bound lies between two limits, and which does not decline."""
        for seed in range(200):
            trace = make_trace(loss=flat(noise=0.03, rows=rows, seed=seed))
            line = loss_curve(trace)
            assert line is not None
            found = flatness.from_the_start(line)
            if low < found.upper < high and flatness.hardly_falls(line, found, high):
                return trace
        raise AssertionError("no such run")

    assert not is_clear(within(0.03, 0.047, 36))
    assert is_clear(within(0.049, 0.079, 36))
    assert not is_clear(within(0.049, 0.079, 40))


def test_what_still_improves_beside_a_flat_loss_makes_it_a_note() -> None:
    loss, at = flat(noise=0.005), {"metric:accuracy": 1 + 10 * np.arange(40)}
    rising = {"metric:accuracy": np.linspace(0.2, 0.6, 40)}
    finding = only_finding(make_trace({"loss": loss, **rising}, steps=at))
    assert finding.severity is Severity.NOTE
    assert "yet the metric accuracy still rises from 0.2" in finding.summary
    still = {"metric:accuracy": 0.2 + 0.001 * (-1.0) ** np.arange(40)}
    finding = only_finding(make_trace({"loss": loss, **still}, steps=at))
    assert finding.severity is Severity.WARN
    assert finding.evidence[1].channel == "metric:accuracy"
    barely = {"metric:accuracy": np.linspace(0.2, 0.202, 40)}
    assert not is_calm(make_trace({"loss": loss, **barely}, steps=at))
    noisy = {"metric:accuracy": 0.2 + 0.2 * np.random.default_rng(1).uniform(-1, 1, 40)}
    noisy["metric:accuracy"][-20:] += 0.03
    assert not is_calm(make_trace({"loss": loss, **noisy}, steps=at))
    steps = {"eval_loss": at["metric:accuracy"]}
    falling = make_trace(loss=loss, eval_loss=np.linspace(3, 1, 40), steps=steps)
    assert "yet the evaluation loss still falls from 2.5" in only_finding(falling).summary


def test_it_says_what_to_record_next_time() -> None:
    bare = " ".join(t.title for t in only_finding(make_trace(loss=flat(noise=0.005))).treatments)
    for name in ("learning rate", "number of classes", "updates", "evaluation loss"):
        assert name in bare
    whole = beside(flat(noise=0.005), update_ratio=sampled(1e-3))
    rate = make_trace(loss=np.ones(N), lr=np.ones(N), eval_loss=np.ones(N))
    whole = replace(whole, facts={"num_classes": 5}, series={**rate.series, **whole.series})
    assert "Record" not in " ".join(t.title for t in only_finding(whole).treatments)


def test_thirty_epochs_without_progress_are_a_warning() -> None:
    assert not is_calm(epochs(flat(noise=0.003, rows=30)))
    assert is_calm(make_trace(loss=flat(noise=0.003, rows=30)))
    for epochs_, is_short in ((30, False), (5, True)):
        epoch = np.linspace(0, epochs_, 30)
        told = make_trace(loss=flat(noise=0.003, rows=30), epoch=epoch)
        assert is_calm(told) is is_short


@pytest.mark.parametrize("family", DEVELOPMENT)
def test_development_families_raise_no_alarm_in_any_view(family: str) -> None:
    for seed in range(2):
        run = DEVELOPMENT[family](400 if seed else 1000, np.random.default_rng(seed))
        for view in ALL_VIEWS:
            for logged in ((), ("lr", "grad_norm", "eval_loss", "epoch")):
                assert is_calm(trace_of(run, view, logged)), (seed, view, logged)


@pytest.mark.parametrize(
    ("fault", "view", "least"),
    [
        ("flat from start", "raw", 0.75),
        ("flat from start", "epochs", 0.7),
        ("stop", "raw", 0.4),
        ("stop with the rate", "raw", 0.55),
    ],
)
def test_most_injected_plateaus_are_named(fault: str, view: str, least: float) -> None:
    named = []
    for family in DEVELOPMENT.values():
        for seed in range(2):
            run = family(1000, np.random.default_rng(seed))
            sick = FAULTS[fault](run, np.random.default_rng(seed))
            if sick is not None:
                named.append(examine(RULE, trace_of(sick.run, view)).status is Status.FOUND)
    assert len(named) > 20
    assert np.mean(named) >= least


def test_no_treatment_names_beta2() -> None:
    for trace in (RULE.sick(), make_trace(loss=flat(noise=0.01), beta2=0.9999)):
        said = " ".join(t.title + t.source for t in only_finding(trace).treatments)
        assert "beta" not in said
