"""What the contract cannot know of `upward-drift`."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from curve_families import FAMILIES, VIEWS
from numpy.typing import ArrayLike, NDArray

from optdoctor.curves import curve, trend
from optdoctor.engine import examine
from optdoctor.findings import Finding, Severity, Status
from optdoctor.rules.upward_drift import RULE, Rise, rise_of
from optdoctor.synthetic import falling_loss, make_trace, small_gpt
from optdoctor.trace import Event, Trace

Floats = NDArray[np.float64]


def blocks(levels: ArrayLike, swing: float = 1e-3, rows: int = 10) -> Trace:
    """40 blocks of these levels (a first loss of 1 has log 1.05), each up or down by `swing`."""
    up_and_down = swing * (-1.0) ** np.arange(len(np.asarray(levels)))
    up_and_down[:3] = 0
    loss = np.exp(np.asarray(levels) + up_and_down) - 0.05
    return make_trace(loss=np.repeat(loss, rows))


def figure(trace: Trace) -> Rise:
    line = curve(trace.series["loss"])
    assert line is not None
    rise = rise_of(line)
    assert rise is not None
    return rise


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


def where(name: str, value: float, make: Callable[[float], Trace], high: float) -> Trace:
    """The trace of a rising family of them whose figure is exactly `value`."""
    low = 0.0
    for _ in range(60):
        middle = (low + high) / 2
        found = getattr(figure(make(middle)), name)
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
    "most": pair("lost", 0.5, lambda up: blocks(course(up)), 2.0),
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
    worst = np.median(np.exp(shown[-3:]) - 0.05)
    best = np.median(np.exp(shown[rise.best - 1 : rise.best + 2]) - 0.05)
    first = 1.0
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
    assert finding.summary.startswith("Drift: the training loss rises from 2.")
    assert 150 <= finding.steps[0] <= 260
    assert finding.steps[1] == 400
    assert any("a creep" in e.what for e in finding.evidence)


def test_a_small_drift_is_a_warning_and_most_of_the_progress_lost_is_critical() -> None:
    assert only_finding(make_trace(loss=rising(0.15))).severity is Severity.WARN
    assert only_finding(make_trace(loss=rising(0.6))).severity is Severity.CRITICAL


def test_a_jump_that_stays_is_named_abrupt() -> None:
    loss = falling_loss(400)
    loss[250:] *= 1.6
    finding = only_finding(make_trace(loss=loss))
    assert told(finding, "abrupt divergence") > 0.6
    assert not any("halve" in t.title for t in finding.treatments), "an explosion is not halved"


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
    at = np.arange(20, 401, 20)
    evaluation = np.where(at <= 200, 2.4, 2.4 * factor ** ((at - 200) / 200))
    return make_trace(loss=rising(), eval_loss=evaluation, steps={"eval_loss": at})


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
def test_weight_decay_is_named_only_where_the_weights_changed(end: float, word: str) -> None:
    tensors = small_gpt("float16")
    rms = np.full((400, len(tensors)), 0.1)
    rms[200:] *= np.linspace(1, end, 200)[:, None]
    trace = make_trace(loss=rising(), param_rms=rms, param_dtype="float16", tensors=tensors)
    finding = only_finding(trace)
    titles = [t.title for t in finding.treatments if "weight decay" in t.title]
    assert [word in title for title in titles] == ([True] if word else [])
    assert all(("master weights in float32" in title) is (end > 1) for title in titles)
    assert told(finding, "norm of all weights") == pytest.approx(end, rel=0.1)


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
        if not clear(make_trace(loss=VIEWS[view](make(rows, np.random.default_rng(seed)))))
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
