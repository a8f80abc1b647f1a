"""What the contract cannot know of `divergence`."""

import math

import numpy as np
import pytest
from curve_families import FAMILIES, VIEWS
from numpy.typing import NDArray
from rising import (
    blocks,
    clear,
    climb,
    coming_back,
    course,
    ending,
    exploded,
    filling,
    jumping,
    noisy,
    only_finding,
    pair,
    rising,
    silent,
    told,
    where,
    with_evaluation,
    with_gradient,
)

from optdoctor.curves.rise import explosion, rise_from_start, rise_of_few
from optdoctor.engine import examine
from optdoctor.findings import Finding, Severity, Status
from optdoctor.rules import upward_drift
from optdoctor.rules.divergence import RULE
from optdoctor.synthetic import falling_loss, gradient_norms, make_trace
from optdoctor.trace import Event, Trace

Floats = NDArray[np.float64]
STAYING = (1.9, 1.5, 1.3, 1.2, 1.25, 1.22, 8.0, 7.6, 8.2, 8.0)
CLIMBING = (5.0, 3.0, 1.5, 1.2, 1.4, 1.8, 2.4, 3.1, 3.9, 4.8)


def few(calm: float) -> Trace:
    """Ten rows, the last four of which stand higher, with ever less noise."""
    levels = np.log(1.05) - np.array([0, 0.3, 0.6, 0.8, 0.9, 0.9, 0.2, 0.2, 0.2, 0.2])
    noise = 0.05 / max(calm, 1e-3) * np.array([0, 1, -1, 2, -1, 1, -2, 1, 2, -1])
    return make_trace(loss=np.exp(levels + noise) - 0.05)


def burst(up: float) -> Trace:
    """Eight rows, all but the first of which lie above it by 2 and more, and far apart."""
    levels = np.log(1.05) + up + np.array([0, 2, 5, 2.5, 7, 4, 9, 5])
    levels[0] = np.log(1.05)
    return make_trace(loss=np.exp(levels) - 0.05)


AT_LIMIT = {
    "errors": pair("errors", 4.5, noisy(0.0, 12, 0.25), 50.0, 0.01),
    "steady_errors": pair("errors", 3.5, noisy(1.0, 3, 1.4), 50.0, 0.01),
    "slope_errors": pair(
        "slope_errors",
        4.6,
        lambda ramp: blocks(course(1.2, ramp=ramp, at=3), swing=0.13),
        1.0,
        0.01,
    ),
    "lost": pair("lost", 0.03, lambda up: blocks(course(up, low=-2.9)), 2.0),
    "kept": (
        lambda: where("kept", 0.49, lambda end: blocks(coming_back(0.9, end)), 0.9),
        lambda: where("kept", 0.50, lambda end: blocks(coming_back(0.9, end)), 0.9),
    ),
    "large_errors": pair(
        "errors",
        10.0,
        lambda calm: blocks(coming_back(1.1, 0.35), swing=0.05 / max(calm, 1e-3)),
        50.0,
        0.01,
    ),
    "few_errors": pair("errors", 6.0, few, 50.0, 0.01, rise_of_few),
    "most": pair("lost", 0.5, lambda up: with_evaluation(blocks(course(up, low=-0.3)), 1.3), 2.0),
    "height of a creep": pair("height", 1.0, lambda up: blocks(course(up, ramp=1.0, at=3)), 2.0),
    "height of a fast rise": pair("height", 0.3, lambda up: blocks(course(up, ramp=0.6)), 1.0),
    "speed": pair("speed", 0.35, lambda fast: blocks(course(0.6, ramp=1 - fast)), 1.0, 0.01),
    "height of a jump": pair("height", 0.15, lambda up: blocks(course(up)), 1.0),
    "height while it comes back": pair(
        "height", 0.3, lambda up: blocks(coming_back(3 * up, up)), 0.5
    ),
    "share left": pair("kept", 0.35, lambda end: blocks(coming_back(0.6, end)), 0.6, 0.01),
    "height above the first value": pair("height", 0.7, exploded, 1.0, of=rise_from_start),
    "gap": pair("errors", 4.6, burst, 5.0, 0.01, explosion),
}


def found(trace: Trace) -> Finding:
    return only_finding(RULE, trace)


def is_clear(trace: Trace) -> bool:
    return clear(RULE, trace)


def test_a_jump_tells_both_levels_its_step_and_how_long_it_stays() -> None:
    finding = found(make_trace(loss=jumping(3.0)))
    assert finding.severity is Severity.CRITICAL
    assert finding.steps == (251, 400)
    assert finding.summary.startswith("Divergence: the training loss jumps from a level of 2.2")
    assert " times) at step 251 and stays there for 150 steps, 38 % of the run." in finding.summary
    assert told(finding, "one jump") > 0.6
    assert "Go back" in finding.treatments[0].title
    assert not any("halve" in t.title for t in finding.treatments), "an explosion is not halved"


@pytest.mark.parametrize("noise", [0.02, 0.3])
@pytest.mark.parametrize("interval", [1, 7, 50])
def test_the_step_of_a_jump_is_known_to_a_row(noise: float, interval: int) -> None:
    loss = falling_loss(1000, noise=noise)
    loss[613:] *= 4
    trace = make_trace(loss=loss, steps={"loss": interval * np.arange(1, 1001)})
    assert found(trace).steps[0] == 614 * interval


def test_a_large_rise_that_its_noise_nearly_explains_is_a_warning() -> None:
    loud, calm = (found(noisy(0.0, 12, 0.5)(times)) for times in (2.0, 4.0))
    assert 4.5 < told(loud, "over its standard error") <= 10
    assert loud.severity is Severity.WARN
    assert calm.severity is Severity.CRITICAL


def test_a_rise_that_triples_the_loss_diverges_however_many_steps_it_takes() -> None:
    slow = found(with_gradient(blocks(climb(1.4, 0.6))))
    assert slow.severity is Severity.CRITICAL
    (row,) = (e for e in slow.evidence if "its best level" in e.what)
    assert (row.observed, row.limit) == (pytest.approx(1.35, abs=0.01), 1.0)
    for height in (1.2, 30.0):
        finding = found(with_gradient(make_trace(loss=rising(height))))
        assert finding.severity is Severity.CRITICAL
        assert " rises from a level of 2." in finding.summary
        assert told(finding, "no single jump") <= 0.6
        assert 150 <= finding.steps[0] <= 260


@pytest.mark.parametrize("share", [0.025, 0.1, 0.2])
def test_a_smaller_rise_diverges_if_it_comes_in_a_fifth_of_the_run(share: float) -> None:
    finding = found(with_gradient(blocks(climb(0.6, share))))
    assert finding.severity is Severity.CRITICAL
    assert told(finding, "its best level") == pytest.approx(0.6, abs=0.01)
    assert clear(upward_drift.RULE, blocks(climb(0.6, share)))


def test_a_curve_is_a_divergence_or_a_drift_and_never_both() -> None:
    seen = set()
    for ramp in np.linspace(0, 1, 40):
        for height in (0.1, 0.2, 0.29, 0.32, 0.5, 1.2):
            trace = blocks(course(height, ramp=float(ramp)))
            diverges, drifts = (not clear(rule, trace) for rule in (RULE, upward_drift.RULE))
            assert diverges is not drifts
            seen.add((height, diverges))
    assert seen == {
        *((height, True) for height in (0.2, 0.29, 0.32, 0.5, 1.2)),
        *((height, False) for height in (0.1, 0.2, 0.29, 0.32, 0.5)),
    }


def test_what_is_printed_as_judged_lies_beyond_its_limit() -> None:
    for ramp in np.linspace(0, 1, 30):
        finding = found(blocks(course(1.2, ramp=float(ramp))))
        (row,) = (e for e in finding.evidence if "share of the rise" in e.what)
        abrupt = "one jump" in row.what
        assert abrupt is (row.observed > 0.6) is ("jumps from" in finding.summary)
        assert row.limit == (0.35 if 0.35 < row.observed <= 0.6 else 0.6)
        assert ("fast, but no" in row.what) is (row.limit == 0.35)
        assert told(finding, "its best level") > 0.3


def too_high(first: float = 5.3, seed: int = 0) -> Floats:
    """[400]: far above its first value from the second row on: a rate far too high."""
    loss = 45 * np.exp(0.15 * np.random.default_rng(seed).standard_normal(400))
    loss[:3] = first, 2 * first, 4 * first
    return loss


def test_a_loss_that_explodes_within_its_first_rows_is_told_against_its_first_value() -> None:
    for seed in range(10):
        finding = found(make_trace(loss=too_high(seed=seed), lr=np.ones(400)))
        assert "from its first value, 5.3 at step 1, to 4" in finding.summary
        assert finding.severity is Severity.CRITICAL
        assert finding.treatments[0].title == "Restart with a tenth of the rate"
        assert finding.treatments[0].changes == {"lr": (1.0, 0.1)}
        assert not any("Go back" in t.title for t in finding.treatments)
    assert is_clear(make_trace(loss=too_high(first=45.0)))


@pytest.mark.parametrize("length", [30, 57, 200, 10_000])
@pytest.mark.parametrize("rows", [3, 5])
def test_a_run_that_explodes_in_its_last_rows_is_told_from_the_first_of_them_on(
    rows: int, length: int
) -> None:
    for factor, severity in ((3.0, Severity.WARN), (100.0, Severity.CRITICAL)):
        finding = found(make_trace(loss=ending(factor, rows, length)))
        assert finding.steps == (length - rows + 1, length)
        if length >= 200:  # blocks of single rows tell the same
            assert finding.severity is severity
            assert told(finding, "gap between all rows before and the last ones") > 10
        assert f" and stays there for {rows} steps, " in finding.summary
    if length < 200:
        return
    assert is_clear(make_trace(loss=ending(1e4, 2, length))), "two may be a spike"
    assert is_clear(make_trace(loss=ending(1.5, 3, length))), "not twice"
    assert is_clear(make_trace(loss=np.append(ending(100, rows, length), 2.0))), "it came back"


def test_ten_last_rows_are_enough_for_a_critical_finding() -> None:
    nine, ten = (found(make_trace(loss=ending(4.0, rows, 2000))) for rows in (9, 10))
    assert (nine.severity, ten.severity) == (Severity.WARN, Severity.CRITICAL)


def test_last_rows_within_the_noise_are_no_explosion_unless_a_hundred_times_as_high() -> None:
    assert is_clear(make_trace(loss=ending(4.0, 5, 400, noise=0.2)))
    loud = falling_loss(400) * np.exp(0.6 * np.random.default_rng(0).standard_normal(400))
    loud[-5:] = 1e4
    assert found(make_trace(loss=loud)).severity is Severity.CRITICAL


def test_a_loss_that_still_rises_is_told_with_its_true_last_level() -> None:
    loss = falling_loss(200)
    loss[180:] = 10.0 ** np.arange(20)
    finding = found(make_trace(loss=loss))
    assert " and still rises, to 1e+19 (more than 1,000,000 times) after " in finding.summary
    assert "stays there" not in finding.summary


@pytest.mark.parametrize("first", [0.0, 0.4])
def test_one_low_first_loss_is_no_level(first: float) -> None:
    loss = 2 + 6 * np.arange(1, 501) ** -0.4
    loss[0] = first
    assert is_clear(make_trace(loss=loss))
    few = examine(RULE, make_trace(loss=loss[:20])).findings
    assert all(finding.severity is Severity.NOTE for finding in few)


def test_a_low_start_of_a_loss_that_falls_from_its_peak_is_a_note() -> None:
    t = np.arange(2000)
    noise = 0.03 * np.random.default_rng(0).standard_normal(2000)
    queue = (8.5 * (1 - np.exp(-t / 30)) + 0.1) * np.exp(-t / 4000) + noise
    for loss in (queue, filling()):
        finding = found(make_trace(loss=loss))
        assert finding.severity is Severity.NOTE
        assert ", peaks at " in finding.summary
        assert " and falls to " in finding.summary
        assert [t.when for t in finding.treatments] == ["check"]
    queue[1200:] *= 3
    later = examine(RULE, make_trace(loss=queue)).findings
    assert later[-1].severity is Severity.CRITICAL


def test_a_low_level_that_lasts_is_no_low_start() -> None:
    loss = 2 + np.linspace(0, 0.4, 400) + 0.02 * np.random.default_rng(0).standard_normal(400)
    loss[100:] += 8 * np.exp(-np.arange(300) / 150)
    finding = found(make_trace(loss=loss))
    assert finding.severity is not Severity.NOTE
    assert finding.steps[0] == 101


def test_a_slip_below_zero_hides_nothing() -> None:
    loss = jumping(3.0)
    loss[300] = -1e-6
    assert found(make_trace(loss=loss)).severity is Severity.CRITICAL


def test_two_huge_first_losses_do_not_hide_a_later_rise() -> None:
    loss = jumping(3.0)
    loss[:2] = 5000
    assert found(make_trace(loss=loss)).severity is Severity.CRITICAL


def test_a_fall_by_thousands_does_not_hide_a_jump_to_ten_times_the_loss() -> None:
    rng = np.random.default_rng(0)
    loss = (1e4 * np.exp(-np.arange(500) / 5) + 1) * np.exp(0.05 * rng.standard_normal(500))
    assert is_clear(make_trace(loss=loss))
    loss[300:] *= 20
    finding = found(make_trace(loss=loss))
    assert finding.severity is Severity.CRITICAL
    assert finding.steps == (301, 500)


def test_what_other_channels_did_stands_before_the_statistics() -> None:
    norm = gradient_norms(400)
    norm[250:] *= 20
    finding = found(make_trace(loss=jumping(3.0), grad_norm=norm))
    place = [e.channel for e in finding.evidence].index("grad_norm")
    errors = [e.what for e in finding.evidence].index("the rise over its standard error")
    assert place < errors
    assert "log(" not in " ".join(e.what for e in finding.evidence)


def test_the_batches_are_replayed_on_a_copy() -> None:
    titles = [t.title for t in found(make_trace(loss=jumping(3.0))).treatments]
    assert "On a copy, replay the batches since step 251 with half the rate" in titles


def test_a_run_that_rises_from_its_start_has_lost_no_share_of_any_progress() -> None:
    loss = 2 * np.exp(np.linspace(0, 1.4, 400) + 0.01 * np.random.default_rng(0).normal(size=400))
    finding = found(make_trace(loss=loss))
    assert told(finding, "it never fell clearly below its start") > 0.8
    assert not any("progress" in e.what for e in finding.evidence)
    assert found(with_gradient(make_trace(loss=loss))).treatments[0].title.startswith("Restart")


@pytest.mark.parametrize("width", [1, 5, 20, 60])
@pytest.mark.parametrize("left", [1.0, 1.5])
def test_only_a_bump_that_comes_back_is_left_to_the_spike(width: int, left: float) -> None:
    loss = jumping(left)
    loss[250 : 250 + width] *= 5
    assert silent(RULE, make_trace(loss=loss)) is (left == 1.0)


def test_a_large_rise_that_comes_back_part_of_the_way_is_a_warning_with_its_peak() -> None:
    loss = jumping(1.7, at=200)
    loss[200:260] *= 10
    finding = found(make_trace(loss=loss))
    assert finding.severity is Severity.WARN
    assert ", peaks at 3" in finding.summary
    assert " and ends at 3." in finding.summary
    assert told(finding, "still stands") < 0.5


def test_a_jump_in_the_last_rows_could_still_be_a_spike() -> None:
    assert is_clear(make_trace(loss=jumping(1.5, at=387)))
    assert not is_clear(make_trace(loss=jumping(1.5, at=350)))


@pytest.mark.parametrize("rows", [STAYING, CLIMBING])
@pytest.mark.parametrize("unit", [1.0, 1e-6, 1e9])
def test_ten_rows_are_enough_for_a_gross_divergence(rows: tuple[float, ...], unit: float) -> None:
    finding = found(with_gradient(make_trace(loss=unit * np.array(rows))))
    assert finding.severity is Severity.CRITICAL
    assert finding.steps[1] == 10
    assert finding.steps[0] == (7 if rows is STAYING else 4)


def test_few_rows_that_explode_at_once_are_told_against_the_first_one_or_two() -> None:
    finding = found(make_trace(loss=(1.6, 1.4, 6.4, 6.1, 5.5, 4.9, 4.9, 4.6)))
    assert " jumps from the 1.497 of its first two rows to 6.1 at step 3" in finding.summary
    assert " and ends at 4.798 (3.21 times) after 6 steps, 75 % of the run." in finding.summary
    assert finding.steps == (3, 8)
    assert finding.treatments[0].title == "Restart with a tenth of the rate"
    assert is_clear(make_trace(loss=(2.6, 2.4, 4.4, 4.1, 4.5, 4.2, 4.4, 4.1))), "not twice"


def test_few_rows_that_explode_are_told_however_far_apart_they_lie() -> None:
    rows = (0.2, 2e6, 9e5, 4e4, 5e4, 9e3, 7e3, 4e3)
    finding = found(make_trace(loss=rows))
    assert " jumps from a level of 0.2 to 9e+05 at step 2 and ends at 6316 (" in finding.summary
    assert finding.severity is Severity.CRITICAL
    assert finding.steps == (2, 8)
    assert told(finding, "gap between all rows before and all rows since") == 9.76
    assert finding.treatments[0].title == "Restart with a tenth of the rate"
    assert not any("progress" in e.what for e in finding.evidence)
    later = found(make_trace(loss=(2, 1.5, 1.1, 1, 1, 3e4, 2e3, 8e5)))
    assert later.steps == (6, 8)
    assert "Go back" in later.treatments[0].title
    assert is_clear(make_trace(loss=(*rows[:-1], 0.3))), "it came back"
    assert is_clear(make_trace(loss=(2, 1.5, 1.1, 1, 1, 1, 3e4, 2e3))), "two may be a spike"


def test_rows_in_unbroken_rise_are_counted_where_their_noise_hides_the_jump() -> None:
    rows = (3.0, 2.0, 6.0, 1.0, 5.0, 1.1, 1.2, 2.0, 2.1, 4.0, 4.1)
    assert told(found(make_trace(loss=rows)), "unbroken rise") == 6
    assert is_clear(make_trace(loss=(*rows[:-6], 1.2, 1.1, 2.0, 2.1, 4.0, 4.1)))
    assert is_clear(make_trace(loss=(*rows[:-6], 1.1, 1.12, 1.14, 1.2, 1.3, 1.4))), "a trifle"


def test_few_rows_that_come_back_or_have_as_much_noise_are_nothing() -> None:
    assert is_clear(make_trace(loss=(*STAYING, 1.2)))
    assert is_clear(make_trace(loss=STAYING[:8])), "two rows may be a spike"
    assert is_clear(make_trace(loss=(4.0, 1.0, 3.0, 0.9, 2.8, 1.2, 1.1, 1.3, 2.0, 3.1, 2.2)))


def test_few_rows_diverge_by_the_size_that_many_do() -> None:
    low = np.log(1.05) - 0.002 * np.arange(12)
    steep, even = np.repeat([0, 1], [7, 5]), np.array([*[0] * 7, 0.5, 1, 1, 1, 1])

    def is_found(rise: float, course: Floats) -> bool:
        return not is_clear(make_trace(loss=np.exp(low + rise * course) - 0.05))

    assert [is_found(rise, steep) for rise in (0.12, 0.2, 0.4)] == [False, True, True]
    assert [is_found(rise, even) for rise in (0.12, 0.2, 0.4)] == [False, False, True]


def test_an_evaluation_at_the_step_of_the_jump_comes_after_it() -> None:
    at = np.arange(20, 401, 20)
    evaluation = np.where(at < 240, 2.4, 4.8)
    trace = make_trace(loss=jumping(3.0, at=239), eval_loss=evaluation, steps={"eval_loss": at})
    finding = found(trace)
    assert finding.steps[0] == 240
    assert told(finding, "over that of step 239; it rises too") == 2.0


def test_seven_rows_are_too_few() -> None:
    outcome = examine(RULE, make_trace(loss=STAYING[-7:]))
    assert outcome.status is Status.ABSTAINED
    assert outcome.reason == "7 rows of loss, needs 8"


@pytest.mark.parametrize("family", FAMILIES)
def test_short_cuts_of_healthy_families_stay_silent(family: str) -> None:
    alarms, cuts = 0, 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        loss = FAMILIES[family](400, rng)
        for rows in (8, 12, 20, 29):
            at = int(rng.integers(0, 400 - rows))
            epochs = np.array([group.mean() for group in np.array_split(loss, rows)])
            for cut in (loss[:rows], loss[at : at + rows], epochs, loss[:: 400 // rows]):
                cuts += 1
                alarms += not silent(RULE, make_trace(loss=cut))
    assert alarms <= 0.01 * cuts, alarms


@pytest.mark.parametrize("view", VIEWS)
def test_healthy_families_stay_silent_in_every_view(view: str) -> None:
    alarms = [
        (family, rows, seed)
        for family, make in FAMILIES.items()
        for rows in (400, 1000)
        for seed in range(3)
        if not silent(RULE, make_trace(loss=VIEWS[view](make(rows, np.random.default_rng(seed)))))
    ]
    assert len(alarms) <= 1, alarms


@pytest.mark.parametrize("rows", [10, 25, 400])
def test_a_constant_loss_and_one_that_moves_by_its_last_digit_are_nothing(rows: int) -> None:
    constant = np.full(rows, 2.3)
    assert is_clear(make_trace(loss=constant))
    rounded = np.where(np.arange(rows) < rows // 2, 0.01, 0.02)
    assert is_clear(make_trace(loss=rounded))
    rounded[-rows // 2 :] = 0.05
    assert not is_clear(make_trace(loss=rounded))


def test_a_search_for_a_rate_is_not_judged() -> None:
    loss = falling_loss(400)
    loss[300:] *= np.geomspace(1, 100, 100)
    outcome = examine(RULE, make_trace(loss=loss, lr=np.geomspace(1e-7, 10, 400)))
    assert outcome.status is Status.ABSTAINED
    assert "a search for one" in str(outcome.reason)
    assert not is_clear(make_trace(loss=loss, lr=np.geomspace(1e-4, 1e-1, 400))), "a warm-up"


def test_a_rate_that_still_warms_up_makes_a_large_rise_a_warning() -> None:
    line = np.linspace(1e-5, 1e-3, 400)
    assert is_clear(make_trace(loss=jumping(1.2), lr=line))
    assert found(make_trace(loss=jumping(1.6), lr=line)).severity is Severity.WARN
    assert found(make_trace(loss=jumping(1.6), lr=line[::-1])).severity is Severity.CRITICAL
    assert found(make_trace(loss=jumping(3.0), lr=line)).severity is Severity.CRITICAL, "above"


def restarts(rows: int = 400) -> tuple[Floats, Floats]:
    """Loss and rate of four cosine cycles: the loss follows the rate."""
    cycle = np.arange(rows) % (rows // 4) / (rows // 4)
    rate = 1e-3 * (1 + np.cos(np.pi * cycle)) / 2
    return falling_loss(rows) * np.exp(150 * rate), rate


def test_a_rise_within_restarts_is_found_above_the_level_at_an_equal_rate() -> None:
    loss, rate = restarts()
    loss[200:] *= np.exp(np.linspace(0, 2, 200))
    finding = found(make_trace(loss=loss[:340], lr=rate[:340]))
    assert told(finding, "level at an equal rate") > 0.06


def test_the_end_of_a_warm_up_just_before_is_told() -> None:
    rate = np.minimum(np.arange(1, 401) / 200, 1) * 1e-3
    finding = found(make_trace(loss=jumping(3.0), lr=rate))
    assert told(finding, "warm-up reached the peak") == 198
    early = np.minimum(np.arange(1, 401) / 50, 1) * 1e-3
    finding = found(make_trace(loss=jumping(3.0), lr=early))
    assert not any("warm-up reached" in e.what for e in finding.evidence)


@pytest.mark.parametrize("grew", [True, False])
def test_the_gradient_norm_and_the_loss_scale_are_told_beside_it(grew: bool) -> None:
    norm, scale = gradient_norms(400), np.full(400, 65536.0)
    if grew:
        norm[250:] *= 20
        scale[255:] /= 8
    finding = found(make_trace(loss=jumping(3.0), grad_norm=norm, loss_scale=scale))
    assert (told(finding, "it grew" if grew else "it hardly grew") > 3) is grew
    assert any("gradients overflow" in e.what for e in finding.evidence) is grew


def test_what_to_record_next_time_is_what_the_log_lacks() -> None:
    def lacking(trace: Trace) -> str:
        return next((t.title for t in found(trace).treatments if "next time" in t.title), "")

    loss = jumping(3.0)
    bare = lacking(make_trace(loss=loss))
    assert all(name in bare for name in ("learning rate", "gradient norm", "evaluation loss"))
    some = make_trace(loss=loss, lr=np.ones(400), grad_norm=gradient_norms(400))
    assert lacking(some) == "Record next time an evaluation loss (harder data)"
    everything = make_trace(
        loss=loss, lr=np.ones(400), grad_norm=gradient_norms(400), eval_loss=loss
    )
    assert lacking(everything) == ""


def test_an_evaluation_that_falls_meanwhile_makes_it_a_warning() -> None:
    trace = make_trace(loss=jumping(3.0, at=200))
    better, worse = (found(with_evaluation(trace, times)) for times in (0.8, 1.3))
    assert better.severity is Severity.WARN
    assert told(better, "became harder") < 0.9
    assert worse.severity is Severity.CRITICAL
    assert told(worse, "it rises too") > 1.2


@pytest.mark.parametrize("rise", [climb(1.4, 0.6), climb(0.6, 0.15)])
def test_a_creep_of_which_nothing_says_that_the_model_makes_it_is_a_warning(rise: Floats) -> None:
    bare = blocks(rise)
    assert found(bare).severity is Severity.WARN
    assert "loss of a game" in found(bare).treatments[0].title
    assert found(with_gradient(bare)).severity is Severity.CRITICAL
    assert found(with_evaluation(bare, 1.3)).severity is Severity.CRITICAL
    loss = bare.series["loss"].values
    calm = make_trace(loss=loss, grad_norm=gradient_norms(400))
    assert found(calm).severity is Severity.WARN
    overflown = np.repeat([65536.0, 8192.0], 200)
    assert found(make_trace(loss=loss, loss_scale=overflown)).severity is Severity.CRITICAL


def test_a_creep_to_a_hundred_times_the_start_is_critical_by_itself() -> None:
    for height, severity in ((4.0, Severity.WARN), (5.5, Severity.CRITICAL)):
        up = np.exp(np.linspace(0, height, 400))
        loss = 2 * up * (1 + 0.01 * np.random.default_rng(0).normal(size=400))
        assert found(make_trace(loss=loss)).severity is severity


def test_how_to_say_that_the_loss_had_to_rise_is_told_but_not_of_an_explosion() -> None:
    def told_how(trace: Trace) -> list[int]:
        titles = [treatment.title for treatment in found(trace).treatments]
        return [place for place, title in enumerate(titles) if "loss of a game" in title]

    assert told_how(make_trace(loss=jumping(3.0))) == [1]
    assert told_how(make_trace(loss=jumping(1.3))) == [1]
    assert told_how(blocks(climb(1.4, 0.6))) == [0]
    assert told_how(make_trace(loss=jumping(300.0))) == []


def test_the_norm_that_the_optimizer_used_is_the_gradient_where_nothing_clips() -> None:
    norm = gradient_norms(400)
    norm[250:] *= 20
    steps = {"grad_norm_used": np.arange(1, 401)}
    finding = found(make_trace(loss=jumping(3.0), grad_norm_used=norm, steps=steps))
    assert told(finding, "it grew with the loss") > 3
    assert not any("gradient norm before" in t.title for t in finding.treatments)


@pytest.mark.parametrize(
    ("name", "factor", "softens"),
    [("accuracy", 1.5, True), ("accuracy", 1.02, False), ("accuracy", 0.5, False), ("x", 9, False)],
)
def test_a_metric_that_gets_better_meanwhile_makes_it_a_warning(
    name: str, factor: float, softens: bool
) -> None:
    metric = np.where(np.arange(400) < 250, 0.4, 0.4 * factor)
    metric *= 1 + 0.01 * np.random.default_rng(0).normal(size=400)
    finding = found(make_trace(loss=jumping(3.0), **{f"metric:{name}": metric}))
    assert finding.severity is (Severity.WARN if softens else Severity.CRITICAL)
    assert any("better while the loss rises" in e.what for e in finding.evidence) is softens


def test_a_metric_that_only_recovers_from_the_jump_softens_nothing() -> None:
    metric = np.full(400, 0.8)
    metric[250:] = np.linspace(0.1, 0.7, 150)
    finding = found(make_trace(loss=jumping(3.0), **{"metric:accuracy": metric}))
    assert finding.severity is Severity.CRITICAL


def test_an_end_in_nan_is_no_end_of_the_run() -> None:
    def summary(*later: float) -> str:
        return found(make_trace(loss=np.append(falling_loss(20), later))).summary

    most = summary(1e3, 1e6, 1e9, *[np.nan] * 277)
    assert most.endswith(" for 1 step, to step 23; the 277 losses since are NaN or infinite.")
    assert " 5 steps, to step 25; the 1 loss since is NaN" in summary(*[1e9] * 5, np.inf)
    assert " 5 steps, 20 % of the run." in summary(*[1e9] * 5)


def test_a_jump_at_a_resume_is_told_as_a_joint() -> None:
    resume = [Event(250, "resume")]
    small = found(make_trace(loss=jumping(1.25, at=249), events=resume))
    assert small.severity is Severity.NOTE
    assert " to 2.818 at the resume at step 250 and ends at 2.764 (1.23 times)" in small.summary
    assert told(small, "rows between the resume at step 250 and the jump") == 0
    assert "before and after step 250" in small.treatments[0].title
    assert not any("weights had been loaded" in e.what for e in small.evidence)
    large = found(make_trace(loss=jumping(1.6, at=249), events=resume))
    assert large.severity is Severity.WARN
    assert found(make_trace(loss=jumping(1.6, at=249))).severity is Severity.CRITICAL
    elsewhere = found(make_trace(loss=jumping(1.6, at=150), events=resume))
    assert elsewhere.severity is Severity.CRITICAL


def test_a_resume_that_began_anew_says_that_no_weights_were_loaded() -> None:
    loss = falling_loss(400)
    loss[300:] = np.linspace(4.6, 4.2, 100)
    finding = found(make_trace(loss=loss, events=[Event(301, "resume")]))
    assert told(finding, "as if no weights had been loaded") == pytest.approx(1.1, abs=0.15)
    assert finding.severity is not Severity.NOTE


def test_the_stretch_after_a_joint_is_judged_by_itself() -> None:
    loss = jumping(1.5, at=99)
    loss[300:] *= 3
    outcome = examine(RULE, make_trace(loss=loss, events=[Event(100, "resume")]))
    assert [f.steps[0] for f in outcome.findings] == [301], "the larger jump is no joint"
    loss[300:] /= 2.2
    outcome = examine(RULE, make_trace(loss=loss, events=[Event(100, "resume")]))
    assert [f.steps[0] for f in outcome.findings] == [100, 301]


@pytest.mark.parametrize("kind", ["reward", "adversarial", "diffusion", "unknown"])
def test_a_loss_that_need_not_fall_is_not_judged(kind: str) -> None:
    outcome = examine(RULE, make_trace(loss=jumping(3.0), loss_kind=kind))
    assert outcome.status is Status.ABSTAINED
    assert f"{kind} loss may rise in a good run" in str(outcome.reason)


@pytest.mark.parametrize("least", [-5.0, -0.01])
def test_losses_below_zero_are_not_judged(least: float) -> None:
    loss = jumping(3.0)
    outcome = examine(RULE, make_trace(loss=loss - loss.min() + least))
    assert outcome.reason == "losses below 0: whether a rise is good or bad is not known"


@pytest.mark.parametrize("largest", [1e200, 1e308, np.finfo(float).max])
def test_huge_losses_neither_crash_nor_overflow(largest: float) -> None:
    at = np.arange(20, 401, 20)
    loss, evaluation = rising(), np.where(at <= 200, 1e-300, largest)
    loss[250:] = largest
    finding = found(make_trace(loss=loss, eval_loss=evaluation, steps={"eval_loss": at}))
    assert all(math.isfinite(e.observed) for e in finding.evidence)
    assert "inf" not in finding.summary
    assert is_clear(make_trace(loss=loss[::-1].copy()))


def test_an_evaluation_loss_that_rises_alone_is_not_this_illness() -> None:
    at = np.arange(20, 401, 20)
    rises = np.linspace(2, 8, 20)
    assert is_clear(make_trace(loss=falling_loss(), eval_loss=rises, steps={"eval_loss": at}))


def test_losses_of_zero_in_place_of_nan_are_no_best_level() -> None:
    loss, norm = falling_loss(400), np.ones(400)
    loss[200:230], norm[200:230] = 0.0, np.nan
    assert is_clear(make_trace(loss=loss, grad_norm=norm))


def test_a_dose_is_found_in_raw_logs_and_in_those_of_epochs() -> None:
    families = [name for name in FAMILIES if name not in ("negative", "near zero")]
    hits = {(rows, dose): 0 for rows in (400, 25, 12) for dose in (0.3, 0.6, 1.2)}
    for rows, dose in hits:
        for name in families:
            loss = FAMILIES[name](400, np.random.default_rng(7))
            loss[240:] = loss[120:280] * np.exp(dose + 0.1)  # its fall ends there
            log = np.array([group.mean() for group in np.array_split(loss, rows)])
            hits[rows, dose] += not is_clear(make_trace(loss=log))
    print(hits, len(families))
    for rows, dose in ((400, 0.6), (25, 0.6), (12, 1.2)):
        assert hits[rows, dose] >= 0.9 * len(families)
