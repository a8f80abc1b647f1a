"""What the contract cannot know of `upward-drift`."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from curve_families import FAMILIES, VIEWS
from numpy.typing import ArrayLike, NDArray

from optdoctor.curves.level import Curve, curve
from optdoctor.curves.trend import trend
from optdoctor.engine import examine
from optdoctor.findings import Finding, Severity, Status
from optdoctor.rules.upward_drift import RULE, Rise, rise_from_start, rise_of
from optdoctor.synthetic import falling_loss, make_trace, small_gpt
from optdoctor.trace import Event, Trace

Floats = NDArray[np.float64]


def blocks(levels: ArrayLike, swing: float = 1e-3, rows: int = 10) -> Trace:
    """40 blocks of these levels (a first loss of 1 has log 1.05), each up or down by `swing`."""
    up_and_down = swing * (-1.0) ** np.arange(len(np.asarray(levels)))
    up_and_down[:3] = 0
    loss = np.exp(np.asarray(levels) + up_and_down) - 0.05
    return make_trace(loss=np.repeat(loss, rows))


def figure(trace: Trace, of: Callable[[Curve], Rise | None] = rise_of) -> Rise:
    line = curve(trace.series["loss"])
    assert line is not None
    rise = of(line)
    assert rise is not None
    return rise


def exploded(up: float) -> Trace:
    """A first loss of 1, and all later ones at one level above it."""
    levels = np.log(1.05) + up + 1e-3 * (-1.0) ** np.arange(40)
    loss = np.repeat(np.exp(levels) - 0.05, 10)
    loss[0] = 1.0
    return make_trace(loss=loss)


def course(rise: float, *, ramp: float = 0.0, low: float = -1.0, at: int = 12) -> Floats:
    """[40]: down to `low` in `at` blocks, then up by `rise`, the share `ramp` of it slowly."""
    later = 40 - at - 3
    up = (1 - ramp) + ramp * np.linspace(0, 1, later)
    return np.concatenate(
        (np.linspace(np.log(1.05), low, at), np.full(3, low), low + rise * np.asarray(up))
    )


def coming_back(rise: float, end: float) -> Floats:
    """[40]: up by `rise` for ten blocks, then back to `end` above the best."""
    levels = course(rise)
    levels[25:] = -1.0 + end
    return levels


def where(
    name: str,
    value: float,
    make: Callable[[float], Trace],
    high: float,
    of: Callable[[Curve], Rise | None] = rise_of,
) -> Trace:
    """The trace of a rising family of them whose figure is exactly `value`."""
    low = 0.0
    for _ in range(60):
        middle = (low + high) / 2
        found = getattr(figure(make(middle), of), name)
        if found == value:
            return make(middle)
        low, high = (middle, high) if found < value else (low, middle)
    raise AssertionError(f"no trace with {name} {value}")


def pair(
    name: str, limit: float, make: Callable[[float], Trace], high: float, step: float = 0.001
) -> tuple[Callable[[], Trace], Callable[[], Trace]]:
    within = lambda: where(name, limit, make, high)  # noqa: E731 (two of a kind)
    return within, lambda: where(name, round(limit + step, 3), make, high)


def noisy(ramp: float, at: int) -> Callable[[float], Trace]:
    """Traces of a rise of 0.2 with ever less noise."""
    return lambda calm: blocks(course(0.2, ramp=ramp, at=at), swing=0.05 / max(calm, 1e-3))


def with_evaluation(trace: Trace, factor: float) -> Trace:
    """Twenty evaluations, which change by the factor over the later half of the 400 steps."""
    at = np.arange(20, 401, 20)
    evaluation = np.where(at <= 200, 2.4, 2.4 * factor ** ((at - 200) / 200))
    loss = trace.series["loss"].values
    return make_trace(loss=loss, eval_loss=evaluation, steps={"eval_loss": at})


AT_LIMIT = {
    "rise": pair("height", 0.04, lambda up: blocks(course(up, low=-0.5)), 0.5),
    "errors": pair("errors", 4.5, noisy(0.0, 12), 50.0, 0.01),
    "steady_errors": pair("errors", 3.5, noisy(1.0, 3), 50.0, 0.01),
    "slope_errors": pair(
        "slope_errors",
        4.6,
        lambda ramp: blocks(course(0.2, ramp=ramp, at=3), swing=0.0195),
        1.0,
        0.01,
    ),
    "lost": pair("lost", 0.03, lambda up: blocks(course(up, low=-2.9)), 2.0),
    "kept": (
        lambda: where("kept", 0.49, lambda end: blocks(coming_back(0.2, end)), 0.2),
        lambda: where("kept", 0.50, lambda end: blocks(coming_back(0.2, end)), 0.2),
    ),
    "large": pair("height", 0.3, lambda up: blocks(coming_back(2 * up + 0.1, up)), 0.5),
    "large_errors": pair(
        "errors",
        10.0,
        lambda calm: blocks(coming_back(0.9, 0.35), swing=0.05 / max(calm, 1e-3)),
        50.0,
        0.01,
    ),
    "large above the first value": (
        lambda: where("height", 0.300, exploded, 1.0, rise_from_start),
        lambda: where("height", 0.301, exploded, 1.0, rise_from_start),
    ),
    "rise above the start": pair("over", 0.04, lambda up: blocks(course(1.0 + up)), 0.5),
    "most": pair("lost", 0.5, lambda up: with_evaluation(blocks(course(up)), 1.3), 2.0),
}


def only_finding(trace: Trace) -> Finding:
    outcome = examine(RULE, trace)
    assert outcome.status is Status.FOUND, outcome.reason
    (finding,) = outcome.findings
    return finding


def told(finding: Finding, part: str) -> float:
    """The number of the only evidence whose text holds `part`."""
    (evidence,) = (e for e in finding.evidence if part in e.what)
    return evidence.observed


def clear(trace: Trace) -> bool:
    outcome = examine(RULE, trace)
    assert outcome.status in (Status.CLEAR, Status.FOUND), outcome.reason
    return outcome.status is Status.CLEAR


def silent(trace: Trace) -> bool:
    return examine(RULE, trace).status in (Status.CLEAR, Status.ABSTAINED)


def rising(rise: float = 0.25, rows: int = 400, seed: int = 0) -> Floats:
    """[rows]: falls for half the run, then creeps up by `rise` on a log scale."""
    loss = falling_loss(rows, seed=seed)
    loss[rows // 2 :] *= np.exp(np.linspace(0, rise, rows - rows // 2))
    return loss


def test_the_figures_of_a_rise_are_those_of_the_obvious_calculation() -> None:
    swing = 0.02
    levels = np.concatenate(
        (np.linspace(np.log(1.05), -1, 12), np.full(3, -1), np.linspace(-0.96, -0.6, 25))
    )
    rise = figure(blocks(levels, swing))
    shown = levels + np.where(np.arange(40) < 3, 0, swing * (-1.0) ** np.arange(40))
    means = [np.mean(shown[i - 1 : i + 2]) for i in range(1, 39)]
    bends = [abs(shown[i] - (shown[i - 1] + shown[i + 1]) / 2) for i in range(8, 39)]
    error = 1.4826 * np.median(bends) / math.sqrt(1.5)
    height = np.median(shown[-3:]) - min(means)
    assert rise.best == 1 + int(np.argmin(means))
    assert rise.height == pytest.approx(height, abs=1e-3)
    assert rise.errors == pytest.approx(height / (0.82 * error * 1.15), abs=0.02)
    later = shown[rise.best + 1 :]
    slope = np.polyfit(range(len(later)), later, 1)[0]
    spread = error * math.sqrt(12 / len(later) ** 3)
    assert rise.slope_errors == pytest.approx(slope / spread / 1.15, rel=2e-3)
    worst = math.exp(np.median(shown[-3:])) - 0.05
    best = math.exp(min(means)) - 0.05
    first = 1.0
    assert (rise.low, rise.end) == pytest.approx((best, worst))
    assert math.log((rise.end + 0.05) / (rise.low + 0.05)) == pytest.approx(rise.height, abs=6e-4)
    assert rise.over == pytest.approx(np.median(shown[-3:]) - math.log(1.05), abs=6e-4)
    assert rise.lost == pytest.approx((worst - best) / (first - best), abs=2e-3)


def test_a_jump_in_the_last_rows_could_still_be_a_spike() -> None:
    loss = falling_loss(400)
    loss[387:] *= 1.5
    assert clear(make_trace(loss=loss))
    loss[350:] = 1.5 * falling_loss(400)[350:]
    assert not clear(make_trace(loss=loss))


def test_a_creep_names_both_levels_with_their_steps() -> None:
    finding = only_finding(make_trace(loss=rising()))
    assert finding.severity is Severity.CRITICAL or finding.severity is Severity.WARN
    assert finding.summary.startswith("Drift: the training loss rises from a level of 2.")
    assert 150 <= finding.steps[0] <= 260
    assert finding.steps[1] == 400
    assert any("a creep" in e.what for e in finding.evidence)


def test_only_a_loss_above_its_start_or_a_worse_evaluation_is_critical() -> None:
    def severity(rise: float, evaluation: float | None = None) -> Severity:
        trace = make_trace(loss=rising(rise))
        return only_finding(with_evaluation(trace, evaluation) if evaluation else trace).severity

    assert severity(0.15) is Severity.WARN
    assert severity(0.3) is Severity.WARN, "most is lost, and the data may have changed"
    assert severity(0.3, 1.0) is Severity.WARN
    assert severity(0.3, 1.3) is Severity.CRITICAL
    assert severity(1.0) is Severity.CRITICAL, "it ends above its start"


def test_a_warning_begins_with_the_check_that_tells_data_from_damage() -> None:
    assert "Replay an early checkpoint" in only_finding(evaluated(1.0)).treatments[0].title
    assert "Go back" in only_finding(evaluated(1.3)).treatments[0].title


def test_a_jump_that_stays_is_named_a_divergence() -> None:
    loss = falling_loss(400)
    loss[250:] *= 1.2
    finding = only_finding(make_trace(loss=loss))
    assert finding.summary.startswith("Drift, a divergence: ")
    assert told(finding, "one jump") > 0.6
    loss[250:] *= 1.4
    finding = only_finding(make_trace(loss=loss))
    assert not any("halve" in t.title for t in finding.treatments), "an explosion is not halved"


def test_a_large_rise_is_a_divergence_however_many_steps_it_takes() -> None:
    loss = falling_loss(400)
    loss[200:] *= np.geomspace(1, 1e14, 200)
    finding = only_finding(make_trace(loss=loss))
    assert finding.summary.startswith("Drift, a divergence: ")
    assert not any("creep" in e.what for e in finding.evidence)


def too_high(first: float = 5.3, seed: int = 0) -> Floats:
    """[400]: far above its first value from the second row on: a rate far too high."""
    loss = 45 * np.exp(0.15 * np.random.default_rng(seed).standard_normal(400))
    loss[:3] = first, 2 * first, 4 * first
    return loss


def test_a_loss_that_explodes_within_its_first_rows_is_told_against_its_first_value() -> None:
    for seed in range(10):
        trace = make_trace(loss=too_high(seed=seed), lr=np.ones(400))
        finding = only_finding(trace)
        assert finding.summary.startswith(
            "Drift, a divergence: the training loss rises from its first value, 5.3 at step 1,"
        )
        assert finding.severity is Severity.CRITICAL
        assert finding.treatments[0].title == "Restart with a tenth of the rate"
        assert finding.treatments[0].changes == {"lr": (1.0, 0.1)}
        assert not any("Go back" in t.title for t in finding.treatments)
    assert clear(make_trace(loss=too_high(first=45.0)))


def test_a_run_that_made_progress_is_sent_back_and_told_half_the_peak_rate() -> None:
    finding = only_finding(make_trace(loss=rising(), lr=np.linspace(3e-4, 1e-5, 400)))
    assert any("Go back" in t.title for t in finding.treatments)
    assert [t.changes for t in finding.treatments if t.changes] == [{"lr": (3e-4, 1.5e-4)}]


def test_a_run_that_rises_from_its_start_has_lost_no_share_of_any_progress() -> None:
    loss = 2 * np.exp(np.linspace(0, 1, 400) + 0.01 * np.random.default_rng(0).normal(size=400))
    finding = only_finding(make_trace(loss=loss))
    assert told(finding, "it never fell clearly below its start") > 0.8
    assert not any("progress" in e.what for e in finding.evidence)
    assert finding.treatments[0].title.startswith("Restart")


def test_a_search_for_a_rate_is_not_judged() -> None:
    loss = falling_loss(400)
    loss[300:] *= np.geomspace(1, 100, 100)
    search = make_trace(loss=loss, lr=np.geomspace(1e-7, 10, 400))
    outcome = examine(RULE, search)
    assert outcome.status is Status.ABSTAINED
    assert "a search for one" in str(outcome.reason)
    assert not clear(make_trace(loss=loss, lr=np.geomspace(1e-4, 1e-1, 400))), "a warm-up"
    assert not clear(make_trace(loss=loss, lr=np.full(400, 0.1)))


@pytest.mark.parametrize("least", [-5.0, -0.01])
def test_losses_below_zero_are_not_judged(least: float) -> None:
    loss = rising() - rising().min() + least
    outcome = examine(RULE, make_trace(loss=loss))
    assert outcome.status is Status.ABSTAINED
    assert outcome.reason == "losses below 0: whether a rise is good or bad is not known"


@pytest.mark.parametrize("largest", [1e200, 1e308, np.finfo(float).max])
def test_huge_losses_neither_crash_nor_overflow(largest: float) -> None:
    at = np.arange(20, 401, 20)
    loss, evaluation = rising(), np.where(at <= 200, 1e-300, largest)
    loss[250:] = largest
    finding = only_finding(make_trace(loss=loss, eval_loss=evaluation, steps={"eval_loss": at}))
    assert all(math.isfinite(e.observed) for e in finding.evidence)
    assert "inf" not in finding.summary
    falling = loss[::-1].copy()
    assert clear(make_trace(loss=falling))


def test_what_is_printed_as_judged_lies_beyond_its_limit() -> None:
    seen = set()
    for ramp in np.linspace(0, 1, 60):
        finding = only_finding(blocks(course(0.2, ramp=float(ramp))))
        (row,) = (e for e in finding.evidence if "share of the rise" in e.what)
        abrupt = "one jump" in row.what
        assert abrupt is (row.observed > row.limit)
        assert abrupt is finding.summary.startswith("Drift, a divergence")
        seen.add(row.observed)
    assert 0.6 in seen, "the jump at its limit was tried"


@pytest.mark.parametrize("width", [1, 5, 20])
def test_a_spike_that_comes_back_is_nothing(width: int) -> None:
    loss = falling_loss(400)
    loss[250 : 250 + width] *= 3
    assert clear(make_trace(loss=loss))


def test_a_rise_that_is_mostly_undone_is_nothing() -> None:
    loss = falling_loss(400)
    loss[200:300] *= np.exp(np.linspace(0, 0.25, 100))
    loss[300:] *= np.exp(np.linspace(0.25, 0.06, 100))
    assert clear(make_trace(loss=loss))


def restarts(rows: int = 400) -> tuple[Floats, Floats]:
    """Loss and rate of four cosine cycles: the loss follows the rate."""
    cycle = np.arange(rows) % (rows // 4) / (rows // 4)
    rate = 1e-3 * (1 + np.cos(np.pi * cycle)) / 2
    return falling_loss(rows) * np.exp(150 * rate), rate


def test_a_warm_restart_is_compared_with_the_level_at_an_equal_rate() -> None:
    loss, rate = restarts()
    for end in (320, 340):  # early in the fourth cycle, far above the best of the third
        assert not clear(make_trace(loss=loss[:end])), "without the rate it looks like a drift"
        assert clear(make_trace(loss=loss[:end], lr=rate[:end]))


def test_a_drift_within_restarts_is_found_above_the_level_at_an_equal_rate() -> None:
    loss, rate = restarts()
    loss[200:] *= np.exp(np.linspace(0, 1.2, 200))
    finding = only_finding(make_trace(loss=loss[:340], lr=rate[:340]))
    assert told(finding, "level at an equal rate") > 0.06


def test_a_rate_that_warms_up_in_a_line_or_by_plan_is_waited_for() -> None:
    line, bent = np.linspace(1e-5, 1e-3, 400), np.geomspace(1e-5, 1e-3, 400)
    assert clear(make_trace(loss=rising(0.2), lr=line))
    assert clear(make_trace(loss=rising(0.2), lr=bent, warmup_steps=500))
    outgrown = only_finding(make_trace(loss=rising(0.2), lr=bent))
    assert told(outgrown, "over that of the best step") > 2
    assert not clear(make_trace(loss=rising(0.9), lr=line)), "a large rise is told meanwhile"


def test_a_small_jump_at_a_resume_is_a_note_and_a_large_one_is_not() -> None:
    loss = falling_loss(400)
    loss[249:] *= 1.15
    resume = [Event(250, "resume")]
    finding = only_finding(make_trace(loss=loss, events=resume))
    assert finding.severity is Severity.NOTE
    assert told(finding, "was resumed") == 250
    assert "position before and after step 250" in finding.treatments[0].title
    assert only_finding(make_trace(loss=loss)).severity is not Severity.NOTE
    loss[249:] *= 1.6
    large = only_finding(make_trace(loss=loss, events=resume))
    assert large.severity is not Severity.NOTE


@pytest.mark.parametrize("logged", [True, False])
def test_a_jump_at_the_end_of_an_epoch_is_placed_there(logged: bool) -> None:
    loss = falling_loss(400)
    loss[249:] *= 1.25
    epoch = np.arange(400) / 249
    if logged:
        finding = only_finding(make_trace(loss=loss, epoch=epoch))
    else:
        finding = only_finding(make_trace(loss=loss, events=[Event(250, "epoch")]))
    assert told(finding, "an epoch ends") == 250


def test_a_creep_over_many_epochs_blames_none() -> None:
    finding = only_finding(make_trace(loss=rising(), epoch=np.arange(400) / 80))
    assert not any(e.channel == "epoch" for e in finding.evidence)


def test_a_nearly_solved_problem_may_flutter_near_zero() -> None:
    rng = np.random.default_rng(0)
    loss = 2.3 * np.exp(-np.arange(400) / 15) + 0.001 * np.exp(0.3 * rng.standard_normal(400))
    loss[200:] += np.linspace(0, 0.02, 200)  # 20 times its best, a hundredth of the progress
    assert clear(make_trace(loss=loss))
    loss[200:] += np.linspace(0, 0.5, 200)
    assert not clear(make_trace(loss=loss))


def evaluated(factor: float) -> Trace:
    return with_evaluation(make_trace(loss=rising()), factor)


def test_the_evaluation_loss_is_told_beside_the_training_loss() -> None:
    with_it = only_finding(evaluated(1.3))
    assert told(with_it, "it rises too") > 1.2
    assert with_it.severity is not Severity.NOTE
    against = only_finding(evaluated(0.8))
    assert told(against, "became harder") < 0.9
    assert against.severity is Severity.NOTE


def test_an_evaluation_loss_that_rises_alone_is_not_this_illness() -> None:
    at = np.arange(20, 401, 20)
    alone = make_trace(
        loss=falling_loss(), eval_loss=np.linspace(2, 4, 20), steps={"eval_loss": at}
    )
    assert clear(alone)


@pytest.mark.parametrize(("end", "word"), [(1.5, "grew to 1.5"), (0.6, "shrank to 0.6"), (1.0, "")])
@pytest.mark.parametrize("decay", [0.1, 0.0, None])
def test_weight_decay_is_named_only_where_there_is_one_and_the_weights_changed(
    decay: float | None, end: float, word: str
) -> None:
    tensors = small_gpt("float16")
    rms = np.full((400, len(tensors)), 0.1)
    rms[200:] *= np.linspace(1, end, 200)[:, None]
    facts = {} if decay is None else {"weight_decay": decay}
    trace = make_trace(
        loss=rising(), param_rms=rms, param_dtype="float16", tensors=tensors, **facts
    )
    finding = only_finding(trace)
    titles = [t.title for t in finding.treatments if "weight decay" in t.title]
    assert [word in title for title in titles] == ([True] if word and decay else [])
    assert all(("master weights in float32" in title) is (end > 1) for title in titles)
    if word:
        assert told(finding, "norm of all weights") == pytest.approx(end, rel=0.1)
    else:
        assert not any("norm of all weights" in e.what for e in finding.evidence)


@pytest.mark.parametrize("kind", ["reward", "adversarial", "diffusion", "unknown"])
def test_a_loss_that_need_not_fall_is_not_judged(kind: str) -> None:
    assert examine(RULE, make_trace(loss=rising(), loss_kind=kind)).status is Status.ABSTAINED


def test_losses_of_zero_in_place_of_nan_are_no_best_level() -> None:
    loss, norm = falling_loss(400), np.ones(400)
    loss[200:230], norm[200:230] = 0.0, np.nan
    assert clear(make_trace(loss=loss, grad_norm=norm))


def test_nothing_is_an_order_and_every_treatment_says_when() -> None:
    finding = only_finding(make_trace(loss=rising()))
    assert {t.when for t in finding.treatments} == {"now", "next", "check"}
    assert all(t.basis == "heuristic" for t in finding.treatments)


@pytest.mark.parametrize("view", VIEWS)
def test_healthy_families_stay_silent_in_every_view(view: str) -> None:
    found = [
        (family, rows, seed)
        for family, make in FAMILIES.items()
        for rows in (400, 1000)
        for seed in range(3)
        if not silent(make_trace(loss=VIEWS[view](make(rows, np.random.default_rng(seed)))))
    ]
    assert len(found) <= 1, found


def test_a_drift_in_the_families_is_found_by_its_dose() -> None:
    hits = dict.fromkeys((0.1, 0.2, 0.4), 0)
    families = [name for name in FAMILIES if name not in ("negative", "near zero")]
    for dose in hits:
        for name in families:
            loss = FAMILIES[name](400, np.random.default_rng(7))
            level = np.median(loss[160:200])  # its fall ends there
            noise = (loss / trend(loss, 10))[200:]
            loss[200:] = level * noise * np.exp(np.linspace(0, dose, 200))
            hits[dose] += not clear(make_trace(loss=loss))
    print(hits, len(families))
    assert hits[0.1] >= 0.6 * len(families)
    assert hits[0.2] >= 0.8 * len(families)
    assert hits[0.4] >= 0.9 * len(families)


def test_first_losses_that_explode_do_not_hide_the_rest_of_the_curve() -> None:
    loss = falling_loss(400)
    loss[1:4] = 6000, 4000, 900
    line = curve(make_trace(loss=loss).series["loss"])
    assert line is not None
    assert line.soft == pytest.approx(0.05 * 3 * loss[0])
    assert [line.loss_at(level) for level in line.level] == pytest.approx(loss)
    usual = curve(make_trace(loss=falling_loss(400)).series["loss"])
    assert usual is not None
    assert usual.soft == pytest.approx(0.05 * np.median(falling_loss(400)[:3]))
