"""What the contract cannot know of `bimodal-gap`."""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

from optdoctor.curves.evaluations import evaluations
from optdoctor.curves.level import curve
from optdoctor.engine import examine
from optdoctor.findings import Finding, Severity, Status
from optdoctor.rules.bimodal_gap import RULE, check, harm
from optdoctor.synthetic import falling_loss, make_trace
from optdoctor.trace import Event, Trace

Floats = NDArray[np.float64]


def run(evaluation: ArrayLike, loss: ArrayLike | None = None, **more: object) -> Trace:
    """Evaluations at equal distances in a run of 400 losses."""
    values = np.asarray(evaluation, np.float64)
    losses = falling_loss(400) if loss is None else np.asarray(loss)
    at = (np.arange(1, len(values) + 1) * len(losses)) // len(values)
    steps = {"eval_loss": at} | {name: at for name in more if name.startswith("metric:")}
    return make_trace({"loss": losses, "eval_loss": values, **more}, steps=steps)


def figure(trace: Trace) -> SimpleNamespace:
    """The figures that the rule judges, by name."""
    loss = trace.series["loss"]
    found = evaluations(trace.series["eval_loss"], loss, curve(loss))
    assert found is not None
    return SimpleNamespace(**found._asdict(), **found.turn._asdict(), harm=harm(found))


def stairs(levels: ArrayLike, rows: int = 10) -> Floats:
    """Training losses of these levels (a first loss of 1 has log 1.05), a block each."""
    return np.repeat(np.exp(np.asarray(levels)) - 0.05, rows)


TOP = math.log(1.05)


def levels_of(values: ArrayLike) -> Floats:
    """Evaluation losses of these levels, the first of them at `TOP`."""
    return np.exp(np.asarray(values)) - 0.05


def turning(
    rise: float = 0.3, count: int = 25, best: int = 12, swing: float = 1e-3, back: float = 1.0
) -> Floats:
    """[count] evaluation losses: a start, a fall, a minimum of three, a rise by steps."""
    down = np.concatenate((np.full(3, TOP), np.linspace(TOP, -1, best - 4)))
    later = count - best - 2
    up = np.minimum(np.arange(1, later + 1) / max(later // 3, 1), 1.0)
    up[-max(3, count // 8) :] *= back
    values = np.concatenate((down, np.full(3, -1.0), -1 + rise * up))
    values[3:] += swing * (-1.0) ** np.arange(count - 3)
    return levels_of(values)


def turning_late(count: int) -> Floats:
    """[count] evaluation losses whose minimum is the fourth from the end."""
    down = np.linspace(TOP, -0.9, count - 9)
    return levels_of([TOP, TOP, TOP, *down, -1, -1, -1.01, -0.7, -0.7, -0.7])


def training(fall: float = 0.5, swing: float = 0.0, since: int = 14) -> Floats:
    """400 training losses: down by 1, flat until block `since`, then down by `fall`."""
    values = np.concatenate((np.linspace(TOP, -1, since), -1 - np.linspace(0, fall, 40 - since)))
    values[3:] += swing * (-1.0) ** np.arange(37)
    return stairs(values)


def stopping(fall: float, share: float = 0.0) -> Trace:
    """24 evaluations that fall by the share of what training falls over their later half."""
    levels = np.concatenate((np.linspace(TOP, -0.5, 20), -0.5 - fall * np.arange(20) / 19))
    at = np.concatenate((np.full(3, TOP), np.linspace(TOP, -0.5, 9)))
    at = np.concatenate((at, -0.5 - share * fall * np.linspace(0, 1, 12)))
    return run(levels_of(at), stairs(levels))


def hinting(fall: float, calm: float = 20.0) -> Trace:
    """A stop whose evaluations end a little higher, the clearer the more calm."""
    levels = np.concatenate((np.linspace(TOP, -0.5, 20), -0.5 - fall * np.arange(20) / 19))
    up = np.concatenate((np.full(3, TOP), np.linspace(TOP, -0.5, 9), np.linspace(-0.5, -0.4, 12)))
    up[3:] += 0.25 / max(calm, 1e-3) * (-1.0) ** np.arange(21)
    return run(levels_of(up), stairs(levels))


def restless(calm: float) -> Trace:
    """A stop beside a training loss whose blocks swing, less with more calm."""
    levels = np.concatenate((np.linspace(TOP, -0.5, 20), np.linspace(-0.5, -1, 20)))
    levels[3:] += 0.5 / max(calm, 1e-3) * (-1.0) ** np.arange(37)
    return run(np.ones(24), stairs(levels))


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
    """Traces at the limit and one printed digit above; a negative step: below and at it."""
    first = limit if step > 0 else round(limit + step, 3)
    second = round(limit + step, 3) if step > 0 else limit
    return lambda: where(name, first, make, high), lambda: where(name, second, make, high)


def few(rise: float, order: tuple[float, ...] = (0.3, 0.5, 0.9, 1.0)) -> Trace:
    """Seven evaluations that rise by `rise` after the third, by these shares of it."""
    swing = 0.004 * np.array([1, -1, 0, 0, 0, 0, 0])
    return run(levels_of(swing + np.array([TOP, -0.2, -0.5, *(-0.5 + rise * np.array(order))])))


def loud(calm: float) -> Trace:
    """Seven evaluations with a rise of 0.3 after a swing, smaller with more calm."""
    swing = 1 / max(calm, 1e-3)
    return run(levels_of([TOP, TOP - swing, TOP, -0.3, -0.2, -0.1, 0.0]))


def returned(size: float) -> Trace:
    """A rise of 0.3 after one that came back, the smaller the larger `size`."""
    values = turning(0.3, count=80, best=48, swing=1e-3)
    values[8:12] = np.exp(np.log(values[8] + 0.05) + 0.3 / max(size, 0.05)) - 0.05
    return run(values, training(since=22))


def jumping(share: float) -> Trace:
    """A rise of 0.5 of which that share comes at once, after a minimum of four."""
    later = np.r_[share, np.linspace(share, 1.0, 11)]
    return run(levels_of([*np.linspace(TOP, -1, 9), -1, -1, -1, *(-1 + 0.5 * later)]), training())


def alone(rise: float) -> Trace:
    """Evaluations without a training loss."""
    return make_trace(eval_loss=turning(rise, swing=1e-5), loss_kind="falling")


AT_LIMIT = {
    "rise": pair("height", 0.02, lambda up: run(turning(up, swing=1e-5), training(0.2)), 0.5),
    "harm": pair("harm", 0.05, lambda up: run(turning(up, swing=1e-5), training()), 0.5),
    "errors": pair(
        "errors",
        3.5,
        lambda calm: run(turning(0.2, swing=0.05 / max(calm, 1e-3)), training()),
        50.0,
        0.01,
    ),
    "since": (
        lambda: run(turning_late(26), training(since=30)),
        lambda: run(turning_late(25), training(since=30)),
    ),
    "kept": pair("kept", 0.5, lambda end: run(turning(0.5, back=end), training()), 1.0, -0.01),
    "rebound": pair("rebound", 1.5, returned, 10.0, -0.01),
    "fall": pair("fall", 0.01, lambda down: run(turning(), training(down)), 0.5, -0.001),
    "fall_errors": pair(
        "fall_errors",
        1.0,
        lambda calm: run(turning(), training(0.1, 0.05 / max(calm, 1e-3))),
        50.0,
        -0.01,
    ),
    "short_rise": pair("height", 0.05, few, 1.0),
    "gross_rise": pair("height", 0.15, lambda up: few(up, (0.7, 0.69, 1.0, 1.2)), 1.0),
    "short_errors": pair("errors", 2.2, loud, 50.0, 0.01),
    "chance": (
        lambda: few(0.1, (0.7, 0.69, 1.0, 1.2)),
        lambda: few(0.1, (0.69, 0.7, 1.0, 1.2)),
    ),
    "gross_chance": (
        lambda: run([1.0, 0.6, 0.9, 0.8, 0.95]),
        lambda: run([1.0, 0.6, 0.8, 0.9, 0.95]),
    ),
    "stopped_fall": pair("later_fall", 0.3, stopping, 2.0),
    "halved": pair("later_fall", 0.69, hinting, 2.0),
    "hint": pair("errors", 2.5, lambda calm: hinting(1.0, calm), 50.0, 0.01),
    "stopped_share": (
        lambda: where("later_share", 0.101, lambda share: stopping(0.5, share), 1.0),
        lambda: where("later_share", 0.1, lambda share: stopping(0.5, share), 1.0),
    ),
    "stopped_errors": pair("later_errors", 3.0, restless, 50.0, -0.01),
    "grave": pair("height", 0.3, lambda up: run(turning(up), training()), 1.0),
    "grave_errors": pair(
        "errors",
        8.0,
        lambda calm: run(turning(0.5, swing=0.05 / max(calm, 1e-3)), training()),
        50.0,
        -0.01,
    ),
    "abrupt": tuple(reversed(pair("jump", 0.7, jumping, 1.0, -0.01))),
}


def only_finding(trace: Trace) -> Finding:
    outcome = examine(RULE, trace)
    assert outcome.status is Status.FOUND, outcome.reason
    (finding,) = outcome.findings
    return finding


def clear(trace: Trace) -> bool:
    outcome = examine(RULE, trace)
    assert outcome.status in (Status.CLEAR, Status.FOUND), outcome.reason
    return outcome.status is Status.CLEAR


def overfit(rise: float = 0.2, count: int = 40, seed: int = 1, noise: float = 0.004) -> Floats:
    """[count] evaluations that turn half way."""
    late = np.maximum(np.arange(count) / count - 0.5, 0) * 2
    clean = falling_loss(400, noise=0, seed=seed)[:: 400 // count][:count]
    return clean * np.exp(rise * late + noise * np.random.default_rng(seed).standard_normal(count))


def test_the_minimum_is_the_onset_and_is_named() -> None:
    finding = only_finding(run(overfit()))
    assert finding.summary.startswith("Overfitting: the evaluation loss rises from 2.")
    assert re.search(r"while the training loss falls from 2\.\d+ to 2\.\d+\.$", finding.summary)
    assert 180 <= finding.steps[0] <= 260
    assert finding.steps[1] == 400
    assert f"of step {finding.steps[0]}, the evaluation minimum" in finding.treatments[0].title


@pytest.mark.parametrize("factor", [0.05, 0.5, 3.0, 250.0])
def test_a_constant_distance_is_no_gap_and_hides_none(factor: float) -> None:
    healthy = falling_loss(400, noise=0.004, seed=3)[9::10]
    assert clear(run(healthy * factor))
    assert not clear(run(overfit() * factor))


def test_a_rise_by_less_than_what_is_called_harm_is_a_note() -> None:
    for rise, severity in ((0.035, Severity.NOTE), (0.06, Severity.WARN)):
        finding = only_finding(run(turning(rise, swing=1e-5), training()))
        assert finding.severity is severity
    assert finding.summary.startswith("Overfitting: the evaluation loss rises")
    near_zero = np.r_[1.0, 1.0, 1.0, np.linspace(0.9, 0.02, 9), np.linspace(0.02, 0.028, 14)]
    small = only_finding(run(near_zero, training()))
    assert small.severity is Severity.NOTE, "a third of nothing"
    assert small.summary.startswith("Overfitting, as it begins: the evaluation loss rises from 0.0")


def test_an_evaluation_loss_below_the_training_loss_is_nothing() -> None:
    rng = np.random.default_rng(0)
    mixed = falling_loss(400) * (1.6 + 0.4 * rng.uniform(-1, 1, 400))
    assert clear(run(falling_loss(400, noise=0.01, seed=2)[9::10], mixed))


@pytest.mark.parametrize("count", [5, 8, 12, 20, 60])
@pytest.mark.parametrize("noise", [0.002, 0.01, 0.03])
def test_a_noisy_evaluation_set_is_nothing(count: int, noise: float) -> None:
    found = [
        seed
        for seed in range(20)
        if not clear(
            run(falling_loss(400, noise=noise, seed=seed)[400 // count - 1 :: 400 // count][:count])
        )
    ]
    assert found == []


def test_an_evaluation_loss_that_rises_with_training_is_a_drift_and_not_this() -> None:
    loss = falling_loss(400)
    loss[200:] *= np.exp(np.linspace(0, 0.3, 200))
    assert clear(run(overfit(0.3), loss))


def test_a_rise_that_goes_back_is_nothing() -> None:
    values = falling_loss(400, noise=0.002, seed=1)[9::10]
    values[20:30] *= 1.3
    assert clear(run(values))


@pytest.mark.parametrize(
    ("values", "sick"),
    [
        ([0.60, 0.45, 0.50, 0.55, 0.62], True),
        ([0.60, 0.45, 0.50, 0.55], False),
        ([0.60, 0.45, 0.455, 0.46, 0.465], False),
        ([0.60, 0.45, 0.62, 0.55, 0.50], False),
        ([0.60, 0.50, 0.45, 0.47, 0.52], False),
        ([0.60, 0.45, 0.50, 0.49, 0.55, 0.58, 0.60], True),
        ([0.60, 0.55, 0.50, 0.48, 0.46], False),
    ],
)
def test_few_evaluations_are_judged_by_their_order(values: list[float], sick: bool) -> None:
    outcome = examine(RULE, run(values))
    assert (outcome.status is Status.FOUND) is sick


def test_an_evaluation_loss_that_stops_is_a_note_however_far_training_falls() -> None:
    for fall in (0.5, 1.0):
        finding = only_finding(stopping(fall))
        assert finding.severity is Severity.NOTE
        assert "the evaluation loss has stopped" in finding.summary
    assert clear(stopping(1.0, share=0.5)), "it still falls"


def test_a_stop_that_hints_at_a_rise_is_a_warning_while_training_halves() -> None:
    stopped = hinting(1.0)
    assert 2.5 < figure(stopped).errors < RULE.limits.errors
    assert only_finding(stopped).severity is Severity.WARN
    assert only_finding(hinting(0.5)).severity is Severity.NOTE
    assert only_finding(hinting(1.0, calm=10.0)).severity is Severity.NOTE
    loss, evaluated = (stopped.series[name].values for name in ("loss", "eval_loss"))
    better = run(evaluated, loss, **{"metric:accuracy": np.linspace(0.5, 0.9, len(evaluated))})
    assert only_finding(better).severity is Severity.NOTE


def test_a_training_loss_near_zero_need_not_fall_far() -> None:
    solved = 2.3 * np.exp(-np.arange(400) / 10) + 0.002 * np.exp(-np.arange(400) / 200)
    values = overfit(0.2, noise=0.0005)
    values[:10] *= np.linspace(1.5, 1, 10)
    assert figure(run(values, solved)).fall < RULE.limits.fall
    assert not clear(run(values, solved))
    assert clear(run(values, [*solved[:200], *[solved[199] * 1.5] * 200])), "it rises"


def test_a_noisy_training_loss_has_not_fallen_far() -> None:
    loud = np.random.default_rng(3).lognormal(0, 0.9, 40)
    flat = np.ones(12)
    quiet = stopping(0.5)
    assert figure(run(flat, loud)).later_fall > RULE.limits.stopped_fall
    assert clear(run(flat, loud))
    assert not clear(quiet)


def test_a_metric_that_still_improves_makes_the_largest_rise_a_note() -> None:
    values = overfit(0.8)
    alone_ = check(run(values), RULE.limits)
    assert [f.severity for f in alone_] == [Severity.CRITICAL]
    for name, metric in (("eval_wer", [20.0, 9.0]), ("val_accuracy", [0.5, 0.9])):
        track = np.linspace(*metric, len(values))
        (better,) = check(run(values, **{f"metric:{name}": track}), RULE.limits)
        assert better.severity is Severity.NOTE
        assert f"and {name} still improves from" in better.summary
        (told,) = (e for e in better.evidence if e.channel == f"metric:{name}")
        assert told.observed > 0
        (worse,) = check(run(values, **{f"metric:{name}": track[::-1]}), RULE.limits)
        assert worse.severity is Severity.CRITICAL
        both = {f"metric:{name}": track, "metric:val_f1": np.linspace(0.9, 0.5, len(values))}
        (mixed,) = check(run(values, **both), RULE.limits)
        assert mixed.severity is Severity.CRITICAL, "one gains and one loses"


def test_a_metric_of_unknown_sense_or_of_the_training_data_says_nothing() -> None:
    values = overfit(0.8)
    up = np.linspace(0.5, 0.9, len(values))
    for name in (
        "eval_runtime",
        "accumulated_eval_time",
        "best_val_accuracy",
        "eval_b_loss",
    ):
        (finding,) = check(run(values, **{f"metric:{name}": up}), RULE.limits)
        assert finding.severity is Severity.CRITICAL
    (told,) = check(
        run(values, **{"metric:eval_runtime": up, "metric_direction:eval_runtime": "rise"}),
        RULE.limits,
    )
    assert told.severity is Severity.NOTE
    (other,) = check(run(values, **{"metric:eval_b_loss": up[::-1]}), RULE.limits)
    assert other.severity is Severity.CRITICAL, "a loss is no task metric"
    (seldom,) = check(run(values, **{"metric:accuracy": up}), RULE.limits)
    assert seldom.severity is Severity.NOTE, "logged with the evaluations"
    often = make_trace(
        {"loss": falling_loss(400), "eval_loss": values, "metric:accuracy": np.linspace(0, 1, 400)},
        steps={"eval_loss": np.arange(10, 401, 10)},
    )
    (finding,) = check(often, RULE.limits)
    assert finding.severity is Severity.CRITICAL, "accuracy is that of the training data"
    both = {"metric:accuracy": up, "metric:val_accuracy": up[::-1]}
    (finding,) = check(run(values, **both), RULE.limits)
    assert finding.severity is Severity.CRITICAL, "accuracy is that of the training data"


def test_a_metric_that_worsens_while_the_loss_still_falls_is_a_note() -> None:
    steps = np.arange(40) / 40
    accuracy = 0.6 + 0.3 * np.minimum(steps, 0.5) - 0.2 * np.maximum(steps - 0.5, 0)
    falling = falling_loss(400, noise=0.002, seed=1)[9::10]
    finding = only_finding(run(falling, **{"metric:val_accuracy": accuracy}))
    assert finding.severity is Severity.NOTE
    pattern = r"Overfitting in val_accuracy alone: it worsens from 0\.7\d+ at step 2\d\d to 0\.6\d+"
    assert re.match(pattern, finding.summary), finding.summary
    assert "while the evaluation loss goes from 2." in finding.summary
    assert clear(run(np.full(40, 2.0), training(0.0), **{"metric:val_accuracy": accuracy}))
    error = only_finding(run(falling, **{"metric:val_error": 1 - accuracy}))
    assert "in val_error alone" in error.summary
    for other in ("metric:val_accuracy", "metric:train_accuracy", "metric:val_speed"):
        track = accuracy[::-1] * 0 + np.sort(accuracy) if other.endswith("_accuracy") else accuracy
        assert clear(run(falling, **{other: track})), other


def test_one_of_several_evaluation_sets_that_turns_is_a_note_with_its_name() -> None:
    falling = falling_loss(400, noise=0.002, seed=1)[9::10]
    finding = only_finding(run(falling, **{"metric:eval_rare_loss": overfit(0.3, noise=0.002)}))
    assert finding.severity is Severity.NOTE
    assert finding.summary.startswith("Overfitting in eval_rare_loss alone: it worsens from 2.")
    assert clear(run(falling, **{"metric:eval_rare_loss": falling * 1.3}))


def test_without_a_training_loss_a_clear_rise_is_a_note_that_says_so() -> None:
    finding = only_finding(alone(0.3))
    assert finding.severity is Severity.NOTE
    assert finding.summary.startswith("Overfitting or a divergence: the evaluation loss rises from")
    assert finding.summary.endswith("no training loss is logged to tell which.")
    assert not clear(alone(0.06))
    assert clear(alone(0.04))
    assert not clear(run(turning(0.04, swing=1e-5), training())), "with one it is told"


SIX = ([0.44, 0.21, 0.12, 0.08, 0.055, 0.037], [0.34, 0.32, 0.38, 0.47, 0.6, 0.75])


def test_six_epochs_are_enough_with_a_training_loss_an_epoch() -> None:
    train, evaluated = SIX
    finding = only_finding(make_trace(loss=train, eval_loss=evaluated))
    assert finding.severity is Severity.WARN, "few are never certain"
    assert finding.steps == (2, 6)
    assert "from 0.32 at step 2 to 0.6, the median of the last 3 evaluations, by 87.5 %" in (
        finding.summary
    )
    assert "the training loss falls from 0.21 to 0.037" in finding.summary
    assert clear(make_trace(loss=train[::-1], eval_loss=evaluated)), "it rises with training"
    assert clear(make_trace(loss=[0.44, 0.3, 0.44, 0.3, 0.44, 0.3], eval_loss=evaluated))
    assert clear(make_trace(loss=train, eval_loss=sorted(evaluated, reverse=True)))


def test_an_evaluation_before_training_is_not_the_minimum() -> None:
    values = np.array([0.2, *np.linspace(0.5, 0.4, 13)])
    steps = {"eval_loss": np.arange(0, 420, 30), "loss": np.arange(10, 410)}
    assert clear(make_trace(loss=falling_loss(400), eval_loss=values, steps=steps))
    beside = {**steps, "eval_loss": steps["eval_loss"] + 10}
    assert not clear(make_trace(loss=falling_loss(400), eval_loss=values, steps=beside))


def test_a_jump_at_a_resume_is_no_rise() -> None:
    falling = falling_loss(400, noise=0.002, seed=1)[9::10]
    jumped = np.concatenate((falling[:20], falling[20:] * 1.3))
    trace = run(jumped)
    assert not clear(trace)
    joint = [Event(200, "resume", "")]
    assert clear(replace(trace, events=tuple(joint)))
    rising = jumped * np.exp(np.concatenate((np.zeros(28), np.linspace(0, 0.2, 12))))
    steep = falling_loss(400, end=1.0)
    finding = only_finding(replace(run(rising, steep), events=tuple(joint)))
    assert finding.steps[0] > 200
    smooth = replace(run(overfit(0.3)), events=tuple(joint))
    assert only_finding(smooth).steps[0] <= 230, "no jump: the course is one"


@pytest.mark.parametrize("digits", [2, 1])
def test_a_rounded_evaluation_loss_that_moves_by_one_digit_is_nothing(digits: int) -> None:
    unit = 10.0**-digits
    values = np.round(unit * np.r_[np.linspace(9, 4, 8), np.full(16, 4), np.full(16, 5)], digits)
    assert clear(run(values, training(0.2)))
    assert clear(run(np.full(40, 0.4), training(0.0)))
    assert not clear(run(values + unit * (np.arange(40) > 30), training(0.2))), "two digits"


@pytest.mark.parametrize("kind", ["reward", "adversarial", "diffusion", "unknown"])
def test_a_loss_that_need_not_fall_is_not_judged(kind: str) -> None:
    assert examine(RULE, run(overfit(), loss_kind=kind)).status is Status.ABSTAINED


def test_generic_remedies_come_first_and_no_distance_is_called_healthy() -> None:
    finding = only_finding(run(overfit()))
    titles = [t.title for t in finding.treatments]
    following = [t.title for t in finding.treatments if t.when == "next"]
    assert "more data" in following[0]
    assert {t.when for t in finding.treatments} == {"now", "next", "check"}
    said = " ".join([*titles, *(t.source for t in finding.treatments), RULE.doc])
    assert "0.5" not in said
    assert "freez" not in said.lower()
    assert "Lion" not in said


def test_evaluations_that_are_not_finite_are_left_out() -> None:
    values = overfit()
    values[::7] = np.nan
    values[3] = np.inf
    assert not clear(run(values))


def test_evaluation_losses_are_found_by_their_dose() -> None:
    hits = {
        rise: sum(not clear(run(overfit(rise, seed=seed, noise=0.01))) for seed in range(20))
        for rise in (0.05, 0.1, 0.2)
    }
    assert hits[0.1] >= 12, hits
    assert hits[0.2] == 20, hits


@pytest.mark.parametrize("rise", [0.1, 0.35, 0.6])
def test_the_losses_the_percentage_and_the_limit_in_the_sentence_agree(rise: float) -> None:
    finding = only_finding(run(overfit(rise)))
    number = r"(\d[\d.]*)"
    pattern = rf"rises from {number} around step \d+ \(mean of three\) to {number}, the median of"
    pattern += rf" the last 5 evaluations, by {number} % \(limit {number} %\)"
    found = re.search(pattern, finding.summary)
    soft = re.search(rf"\+ {number}\)", finding.evidence[0].what)
    assert found is not None, finding.summary
    assert soft is not None, finding.evidence[0].what
    low, end, percent, limit = map(float, found.groups())
    added, height = float(soft[1]), finding.evidence[0].observed
    assert 100 * (end / low - 1) == pytest.approx(percent, rel=0.05)
    assert math.log((end + added) / (low + added)) == pytest.approx(height, abs=1e-3)
    share = finding.evidence[2]  # the same number over a fifth of the start, if that is more
    assert share.limit == 0.05
    if share.observed > share.limit:
        assert limit / percent == pytest.approx(share.limit / share.observed, rel=0.05)
    else:
        least = (low * (1 + limit / 100) + added) / (low + added)
        assert least == pytest.approx(math.exp(0.02), abs=1e-3)
    assert (finding.severity is Severity.CRITICAL) is (height > 0.3)
    assert finding.evidence[0].limit == 0.02
    assert "log scale" not in finding.summary


def test_a_minimum_among_the_last_evaluations_is_no_turn() -> None:
    values = levels_of([*np.linspace(TOP, -1, 6), -1, -1.01, -0.5, -0.5])
    assert "rises" not in only_finding(run(values, training())).summary
    assert "rises" in only_finding(run([*values, values[-1]], training())).summary


def test_noise_of_the_evaluation_alone_is_never_critical() -> None:
    """Evaluations that converge, in noise of 16 %, beside a training loss that falls."""
    for seed in range(60):
        rng, t = np.random.default_rng(seed), np.arange(15)
        loss = 0.2 + np.exp(-t / 7.5) + 0.02 * rng.standard_normal(15)
        evaluated = 0.5 + 0.6 * np.exp(-t / 3.75) + 0.08 * rng.standard_normal(15)
        told = examine(RULE, make_trace(loss=loss, eval_loss=evaluated)).findings
        assert all(finding.severity is not Severity.CRITICAL for finding in told), seed


def test_a_rise_in_one_jump_that_stays_may_be_another_evaluation() -> None:
    finding = only_finding(jumping(0.95))
    assert finding.severity is Severity.WARN
    assert f"in one jump at step {13 * 400 // 24}, while" in finding.summary
    assert finding.summary.endswith("the evaluation set, or the code, may have changed there.")
    titles = [treatment.title for treatment in finding.treatments]
    assert titles[0].startswith("Evaluate the checkpoints of steps 200 and 216 once more")
    assert not any("more data" in title for title in titles)
    assert "jump" not in only_finding(jumping(0.3)).summary


def test_a_metric_near_its_floor_has_the_noise_of_a_count() -> None:
    falling = falling_loss(400, noise=0.002, seed=1)[9::10]
    for seed in range(60):
        rng = np.random.default_rng(seed)
        lucky = rng.binomial(2000, 0.0012, 40) / 2000
        assert clear(run(falling, **{"metric:val_accuracy": lucky})), seed
    few = np.array([9, 12, 15, 13, 12, 10, 9]) / 10_000
    assert clear(run(falling[::6], **{"metric:val_accuracy": few}))
    more = 100 * few + [1e-4, 0, 0, 0, 0, 0, 0]
    assert not clear(run(falling[::6], **{"metric:val_accuracy": more})), "of many cases"
    two_digits = np.round(np.r_[np.linspace(0.5, 0.75, 20), np.linspace(0.75, 0.67, 20)], 2)
    assert not clear(run(falling, **{"metric:val_accuracy": two_digits}))
    many = np.repeat([0.2, 0.3, 0.2], [10, 14, 16]) + 0.0005 * (np.arange(40) % 3)
    assert not clear(run(falling, **{"metric:val_accuracy": many}))
    assert clear(run(falling, **{"metric:val_accuracy": 0.8 + many / 3})), "less than a twentieth"


@pytest.mark.parametrize("which", ["loss", "eval_loss", "both"])
def test_losses_below_zero_are_not_judged(which: str) -> None:
    loss, evaluation = falling_loss(400), overfit()
    outcome = examine(
        RULE,
        run(
            evaluation - (evaluation.max() if which != "loss" else 0),
            loss - (loss.max() if which != "eval_loss" else 0),
        ),
    )
    assert outcome.status is Status.ABSTAINED
    assert outcome.reason == "losses below 0: whether a rise is good or bad is not known"


@pytest.mark.parametrize("largest", [1e300, 1e308, np.finfo(float).max])
def test_huge_evaluations_and_metrics_neither_crash_nor_overflow(largest: float) -> None:
    values = overfit()
    values[25:] = largest
    metric = np.where(np.arange(40) < 20, 0.0, largest)
    trace = run(values, **{"metric:val_accuracy": metric, "metric:val_error": -metric})
    finding = only_finding(trace)
    assert all(math.isfinite(e.observed) for e in finding.evidence)
    whole = run(overfit() / overfit().max() * largest)
    assert examine(RULE, whole).status is not Status.CRASHED


def test_the_gain_of_a_metric_reads_as_a_sentence() -> None:
    values = overfit(0.8)
    track = np.linspace(0.5, 0.9, len(values))
    finding = only_finding(run(values, **{"metric:val_accuracy": track}))
    (row,) = (e for e in finding.evidence if e.channel == "metric:val_accuracy")
    assert row.what == "val_accuracy still improves from 0.7051 to 0.8897 since that minimum"
    assert row.unit == "share"
    assert row.observed == pytest.approx(0.8897 / 0.7051 - 1, abs=1e-3)


def test_zeros_that_a_log_prints_for_nan_are_no_fall_of_training() -> None:
    """The Trainer's log of a run that broke: its losses are 0 from there on, the norms NaN."""
    rows = 400
    loss, norm = falling_loss(rows), np.ones(rows)
    loss[200:], norm[200:] = 0.0, np.nan
    evaluated = np.arange(20, rows + 1, 20)
    level = np.where(evaluated <= 200, 3 - evaluated / 200, 2 + (evaluated - 200) / 400)
    trace = make_trace(
        loss=loss,
        grad_norm=norm,
        eval_loss=level,
        framework="huggingface",
        nan_filter="on",
        steps={"eval_loss": evaluated},
    )
    assert examine(RULE, trace).findings == ()
