"""What the contract cannot know of `upward-drift`."""

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

from optdoctor.curves.rise import rise_of_few
from optdoctor.curves.trend import trend
from optdoctor.engine import examine
from optdoctor.findings import Finding, Severity, Status
from optdoctor.rules.upward_drift import RULE
from optdoctor.synthetic import falling_loss, make_trace, small_gpt
from optdoctor.trace import Event, Trace

Floats = NDArray[np.float64]


def few(calm: float) -> Trace:
    """Twelve rows, the last six of which climb, and ever less noise in the others."""
    levels = np.log(1.05) - np.array([0, 0.4, 0.7, 0.9, 0.9, 0.9, 0.9, 0.7, 0.5, 0.3, 0.1, 0.1])
    noise = 0.1 / max(calm, 1e-3) * np.array([1, -1, 1, -1, 1, -1, *[0] * 6])
    return make_trace(loss=np.exp(levels + noise) - 0.05)


def creep(rise: float, share: float = 0.6) -> Trace:
    return blocks(climb(rise, share))


def sinking(end: float) -> Trace:
    """Creeps up by 1 over half the run, and comes back to `end` above the best."""
    levels = climb(1.0, 0.5)
    levels[36:] = -1 + end
    return blocks(levels)


AT_LIMIT = {
    "rise": pair("height", 0.04, lambda up: blocks(course(up, low=-0.5)), 0.5),
    "errors": pair("errors", 4.5, noisy(0.0, 12, 0.12), 50.0, 0.01),
    "steady_errors": pair("errors", 3.5, noisy(1.0, 3, 0.2), 50.0, 0.01),
    "slope_errors": pair(
        "slope_errors",
        4.6,
        lambda ramp: blocks(course(0.2, ramp=ramp, at=3), swing=0.0195),
        1.0,
        0.01,
    ),
    "lost": pair("lost", 0.03, lambda up: blocks(course(up)), 2.0),
    "kept": (
        lambda: with_gradient(where("kept", 0.49, sinking, 0.9)),
        lambda: with_gradient(where("kept", 0.50, sinking, 0.9)),
    ),
    "share left": pair("kept", 0.35, lambda end: blocks(coming_back(0.2, end)), 0.2, 0.01),
    "most": pair(
        "lost",
        0.5,
        lambda up: with_evaluation(blocks(course(up, ramp=1.0, low=-0.3)), 1.3),
        2.0,
    ),
    "errors above the start": pair(
        "errors",
        10.0,
        lambda calm: with_gradient(
            blocks(course(0.2, ramp=1.0, low=np.log(1.05) - 0.1), swing=0.05 / max(calm, 1e-3))
        ),
        50.0,
        0.01,
    ),
    "large_errors": pair(
        "errors", 10.0, lambda calm: with_gradient(noisy(1.0, 12, 0.6)(calm)), 50.0, 0.01
    ),
    "few_errors": pair("errors", 6.0, few, 50.0, 0.01, rise_of_few),
    "height of a critical rise": pair("height", 0.3, lambda up: with_gradient(creep(up)), 1.0),
    "speed": (
        lambda: where("speed", 0.36, lambda fast: blocks(course(0.6, ramp=1 - fast)), 1.0),
        lambda: where("speed", 0.35, lambda fast: blocks(course(0.6, ramp=1 - fast)), 1.0),
    ),
    "rise above the start": pair(
        "over", 0.04, lambda up: blocks(course(0.1 + up, low=np.log(1.05) - 0.1)), 0.5
    ),
}


def found(trace: Trace) -> Finding:
    return only_finding(RULE, trace)


def is_clear(trace: Trace) -> bool:
    return clear(RULE, trace)


def test_a_creep_names_both_levels_with_their_steps() -> None:
    finding = found(make_trace(loss=rising()))
    assert finding.severity is Severity.WARN
    assert finding.summary.startswith("Drift: the training loss rises from a level of 2.")
    assert 150 <= finding.steps[0] <= 260
    assert finding.steps[1] == 400
    assert f"at step {finding.steps[0]} to 2." in finding.summary
    assert f"over {400 - finding.steps[0]} steps, " in finding.summary
    assert finding.summary.endswith(" % of the run.")
    assert any("no single jump" in e.what for e in finding.evidence)


def test_a_small_rise_is_critical_only_above_its_start_or_if_the_evaluation_is_worse() -> None:
    def severity(rise: float, evaluation: float | None = None) -> Severity:
        trace = make_trace(loss=rising(rise))
        return found(with_evaluation(trace, evaluation) if evaluation else trace).severity

    assert severity(0.15) is Severity.WARN
    assert severity(0.3) is Severity.WARN, "most is lost, and the data may have changed"
    assert severity(0.3, 1.0) is Severity.WARN
    assert severity(0.3, 1.3) is Severity.CRITICAL
    creeping = blocks(course(0.2, ramp=1.0, low=np.log(1.05) - 0.1))
    assert found(creeping).severity is Severity.WARN, "nothing says that the model makes it"
    above = found(with_gradient(creeping))
    assert above.severity is Severity.CRITICAL, "the whole progress is lost"
    assert told(above, "above that of the start") == pytest.approx(0.1, abs=0.01)


def test_a_small_rise_above_the_start_is_critical_only_if_it_is_certain() -> None:
    noise = np.random.default_rng(0).standard_normal(50)
    assert found(make_trace(loss=0.88 + 0.07 * noise)).severity is Severity.WARN, "chance"
    swings = ((0.01, Severity.WARN), (0.001, Severity.CRITICAL))
    for swing, severity in swings:
        trace = blocks(course(0.2, ramp=1.0, low=np.log(1.05) - 0.1), swing=swing)
        finding = found(with_gradient(trace))
        assert (told(finding, "the rise over its standard error") > 10) is (swing == 0.001)
        assert finding.severity is severity


def test_a_slow_rise_by_more_than_a_third_with_the_gradient_is_a_drift_and_critical() -> None:
    assert found(creep(0.6)).severity is Severity.WARN
    finding = found(with_gradient(creep(0.6)))
    assert finding.severity is Severity.CRITICAL
    assert finding.summary.startswith("Drift: the training loss rises from a level of 0.31")
    (row,) = (e for e in finding.evidence if "its best level" in e.what)
    assert (row.observed, row.limit) == (pytest.approx(0.6, abs=0.03), 0.3)
    assert "Go back" in finding.treatments[0].title
    loud, calm = (found(with_gradient(noisy(1.0, 12, 0.6)(times))) for times in (1.5, 3.0))
    assert told(loud, "the rise over its standard error") <= 10
    assert (loud.severity, calm.severity) == (Severity.WARN, Severity.CRITICAL)


def test_a_large_rise_that_is_coming_back_is_a_warning() -> None:
    finding = found(sinking(0.45))
    assert finding.severity is Severity.WARN
    assert told(finding, "still stands: it is coming back") < 0.5


def test_a_bump_that_leaves_more_than_a_third_of_it_is_a_warning_with_its_peak() -> None:
    finding = found(blocks(coming_back(0.3, 0.12)))
    assert finding.severity is Severity.WARN
    assert ", peaks at 0.4" in finding.summary
    assert finding.evidence[1].observed > finding.evidence[1].limit == RULE.limits.errors
    assert is_clear(blocks(coming_back(0.3, 0.09))), "a spike, to which a third may be left"


def test_only_a_rise_over_more_than_a_fifth_of_the_run_is_a_drift() -> None:
    for share in (0.22, 0.25, 0.6):
        assert not is_clear(creep(0.6, share))
        assert is_clear(creep(1.4, share)), "a divergence, however slow"
    for share in (0.03, 0.1, 0.2):
        assert is_clear(creep(0.6, share))


@pytest.mark.parametrize("rise", [0.4, 1.0, 3.0])
def test_a_large_jump_is_left_to_divergence(rise: float) -> None:
    assert is_clear(make_trace(loss=jumping(np.exp(rise))))


def test_six_rows_in_unbroken_rise_are_a_drift_unless_they_triple_the_loss() -> None:
    rows = np.array((3.0, 2.0, 1.5, 1.2, 1.0, 1.0, 0.9))

    def climbing(rise: float, count: int) -> Trace:
        return make_trace(loss=np.append(rows, 0.9 * np.exp(np.linspace(0, rise, count)[1:])))

    finding = found(with_gradient(climbing(0.6, 6)))
    assert finding.severity is Severity.CRITICAL
    assert told(finding, "rows in unbroken rise to the end") == 6
    assert finding.steps == (7, 12)
    assert is_clear(climbing(1.8, 6))
    assert is_clear(climbing(0.25, 6)), "so few rows show nothing less than 0.3"


def test_a_large_rise_is_told_while_the_rate_still_warms_up() -> None:
    line = np.linspace(1e-5, 1e-3, 400)
    loss = np.repeat(np.exp(climb(0.6, 0.6)) - 0.05, 10)
    assert found(make_trace(loss=loss, lr=line)).severity is Severity.WARN
    small = np.repeat(np.exp(climb(0.25, 0.6)) - 0.05, 10)
    assert is_clear(make_trace(loss=small, lr=line))


def test_seven_rows_are_too_few() -> None:
    outcome = examine(RULE, make_trace(loss=np.arange(1.0, 8.0)))
    assert outcome.status is Status.ABSTAINED
    assert outcome.reason == "7 rows of loss, needs 8"


def test_a_warning_begins_with_the_check_that_tells_data_from_damage() -> None:
    titles = [treatment.title for treatment in found(evaluated(1.0)).treatments]
    assert "--ignore upward-drift" in titles[0]
    assert "Replay an early checkpoint" in titles[1]
    assert "Go back" in found(evaluated(1.3)).treatments[0].title


def test_a_run_that_made_progress_is_sent_back_and_told_half_the_peak_rate() -> None:
    finding = found(make_trace(loss=rising(), lr=np.linspace(3e-4, 1e-5, 400)))
    assert any("Go back" in t.title for t in finding.treatments)
    assert [t.changes for t in finding.treatments if t.changes] == [{"lr": (3e-4, 1.5e-4)}]


def test_a_search_for_a_rate_is_not_judged() -> None:
    outcome = examine(RULE, make_trace(loss=rising(), lr=np.geomspace(1e-7, 10, 400)))
    assert outcome.status is Status.ABSTAINED
    assert "a search for one" in str(outcome.reason)
    assert not is_clear(make_trace(loss=rising(), lr=np.geomspace(1e-4, 1e-1, 400))), "a warm-up"
    assert not is_clear(make_trace(loss=rising(), lr=np.full(400, 0.1)))


@pytest.mark.parametrize("least", [-5.0, -0.01])
def test_losses_below_zero_are_not_judged(least: float) -> None:
    loss = rising() - rising().min() + least
    outcome = examine(RULE, make_trace(loss=loss))
    assert outcome.status is Status.ABSTAINED
    assert outcome.reason == "losses below 0: whether a rise is good or bad is not known"


@pytest.mark.parametrize("width", [1, 5, 20])
def test_a_spike_that_comes_back_is_nothing(width: int) -> None:
    loss = falling_loss(400)
    loss[250 : 250 + width] *= 3
    assert is_clear(make_trace(loss=loss))


def test_a_rise_that_is_mostly_undone_is_nothing() -> None:
    loss = falling_loss(400)
    loss[200:300] *= np.exp(np.linspace(0, 0.25, 100))
    loss[300:] *= np.exp(np.linspace(0.25, 0.06, 100))
    assert is_clear(make_trace(loss=loss))


def restarts(rows: int = 400) -> tuple[Floats, Floats]:
    """Loss and rate of four cosine cycles: the loss follows the rate."""
    cycle = np.arange(rows) % (rows // 4) / (rows // 4)
    rate = 1e-3 * (1 + np.cos(np.pi * cycle)) / 2
    return falling_loss(rows) * np.exp(150 * rate), rate


def test_a_warm_restart_is_compared_with_the_level_at_an_equal_rate() -> None:
    loss, rate = restarts()
    for end in (320, 340):  # early in the fourth cycle, far above the best of the third
        assert not is_clear(make_trace(loss=loss[:end])), "without the rate it looks like a drift"
        assert is_clear(make_trace(loss=loss[:end], lr=rate[:end]))


def test_a_rate_that_warms_up_in_a_line_or_by_plan_is_waited_for() -> None:
    line, bent = np.linspace(1e-5, 1e-3, 400), np.geomspace(1e-5, 1e-3, 400)
    assert is_clear(make_trace(loss=rising(0.2), lr=line))
    assert is_clear(make_trace(loss=rising(0.2), lr=bent, warmup_steps=500))
    outgrown = found(make_trace(loss=rising(0.2), lr=bent))
    assert told(outgrown, "over that of the best step") > 2


def test_a_small_jump_at_a_resume_is_a_note_and_the_stretch_after_it_is_judged_by_itself() -> None:
    resume = [Event(250, "resume")]
    loss = jumping(1.12, at=249)
    finding = found(make_trace(loss=loss, events=resume))
    assert finding.severity is Severity.NOTE
    assert " to 2.525 at the resume at step 250 and ends at 2.476 (1.1 times)" in finding.summary
    assert told(finding, "rows between the resume at step 250 and the jump") == 0
    assert "position before and after step 250" in finding.treatments[0].title
    assert found(make_trace(loss=loss)).severity is Severity.WARN
    assert found(make_trace(loss=loss, events=[Event(150, "resume")])).severity is Severity.WARN
    loss = jumping(1.5, at=99)
    loss[250:] *= np.exp(np.linspace(0, 0.2, 150))
    after = found(make_trace(loss=loss, events=[Event(100, "resume")]))
    assert after.severity is Severity.WARN
    assert 200 <= after.steps[0] <= 290


@pytest.mark.parametrize("logged", [True, False])
def test_a_jump_at_the_end_of_an_epoch_is_placed_there(logged: bool) -> None:
    loss = falling_loss(400)
    loss[249:] *= 1.14
    epoch = np.arange(400) / 249
    if logged:
        finding = found(make_trace(loss=loss, epoch=epoch))
    else:
        finding = found(make_trace(loss=loss, events=[Event(250, "epoch")]))
    assert told(finding, "an epoch ends") == 250


def test_a_creep_over_many_epochs_blames_none() -> None:
    finding = found(make_trace(loss=rising(), epoch=np.arange(400) / 80))
    assert not any(e.channel == "epoch" for e in finding.evidence)


def test_a_nearly_solved_problem_may_flutter_near_zero() -> None:
    rng = np.random.default_rng(0)
    loss = 2.3 * np.exp(-np.arange(400) / 15) + 0.001 * np.exp(0.3 * rng.standard_normal(400))
    loss[200:] += np.linspace(0, 0.02, 200)  # 20 times its best, a hundredth of the progress
    assert is_clear(make_trace(loss=loss))


def evaluated(factor: float) -> Trace:
    return with_evaluation(make_trace(loss=rising()), factor)


def test_the_evaluation_loss_is_told_beside_the_training_loss() -> None:
    with_it = found(evaluated(1.3))
    assert told(with_it, "it rises too") > 1.2
    assert with_it.severity is not Severity.NOTE
    against = found(evaluated(0.8))
    assert told(against, "became harder") < 0.9
    assert against.severity is Severity.NOTE


def test_an_evaluation_loss_that_rises_alone_is_not_this_illness() -> None:
    at = np.arange(20, 401, 20)
    alone = make_trace(
        loss=falling_loss(), eval_loss=np.linspace(2, 4, 20), steps={"eval_loss": at}
    )
    assert is_clear(alone)


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
    finding = found(trace)
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
    assert is_clear(make_trace(loss=loss, grad_norm=norm))


def test_nothing_is_an_order_and_every_treatment_says_when() -> None:
    finding = found(make_trace(loss=rising()))
    assert {t.when for t in finding.treatments} == {"now", "next", "check"}
    assert all(t.basis == "heuristic" for t in finding.treatments)


@pytest.mark.parametrize("view", VIEWS)
def test_healthy_families_stay_silent_in_every_view(view: str) -> None:
    found = [
        (family, rows, seed)
        for family, make in FAMILIES.items()
        for rows in (400, 1000)
        for seed in range(3)
        if not silent(RULE, make_trace(loss=VIEWS[view](make(rows, np.random.default_rng(seed)))))
    ]
    assert len(found) <= 1, found


def test_a_drift_in_the_families_is_found_by_its_dose() -> None:
    hits = dict.fromkeys((0.1, 0.2), 0)
    families = [name for name in FAMILIES if name not in ("negative", "near zero")]
    for dose in hits:
        for name in families:
            loss = FAMILIES[name](400, np.random.default_rng(7))
            level = np.median(loss[160:200])  # its fall ends there
            noise = (loss / trend(loss, 10))[200:]
            loss[200:] = level * noise * np.exp(np.linspace(0, dose, 200))
            hits[dose] += not is_clear(make_trace(loss=loss))
    print(hits, len(families))
    assert hits[0.1] >= 0.6 * len(families)
    assert hits[0.2] >= 0.8 * len(families)
