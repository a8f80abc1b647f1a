"""What the contract cannot know of `bimodal-gap`."""

import math
import re
from collections.abc import Callable
from itertools import permutations

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

from optdoctor.curves.level import curve
from optdoctor.engine import examine
from optdoctor.findings import Finding, Severity, Status
from optdoctor.rules.bimodal_gap import RULE, Evaluations, _chance, check, evaluations
from optdoctor.synthetic import falling_loss, make_trace
from optdoctor.trace import Trace

Floats = NDArray[np.float64]


def run(evaluation: ArrayLike, loss: ArrayLike | None = None, **more: object) -> Trace:
    """Evaluations at equal distances in a run of 400 losses."""
    values = np.asarray(evaluation, np.float64)
    losses = falling_loss(400) if loss is None else np.asarray(loss)
    at = (np.arange(1, len(values) + 1) * len(losses)) // len(values)
    steps = {"eval_loss": at} | {name: at for name in more if name.startswith("metric:")}
    return make_trace({"loss": losses, "eval_loss": values, **more}, steps=steps)


def figure(trace: Trace) -> Evaluations:
    line = curve(trace.series["loss"])
    assert line is not None
    found = evaluations(trace, line)
    assert found is not None
    return found


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


def few(rise: float) -> Trace:
    return run(levels_of([TOP, TOP, TOP, -0.5, -0.5 + rise / 3, -0.5 + rise / 2, -0.5 + rise]))


AT_LIMIT = {
    "rise": pair("height", 0.02, lambda up: run(turning(up, swing=1e-5), training()), 0.5),
    "errors": pair(
        "errors",
        3.3,
        lambda calm: run(turning(0.2, swing=0.05 / max(calm, 1e-3)), training()),
        50.0,
        0.01,
    ),
    "since": (
        lambda: run(turning_late(26), training(since=30)),
        lambda: run(turning_late(25), training(since=30)),
    ),
    "kept": pair("kept", 0.5, lambda end: run(turning(0.3, back=end), training()), 1.0, -0.01),
    "fall": pair("fall", 0.01, lambda down: run(turning(), training(down)), 0.5, -0.001),
    "fall_errors": pair(
        "fall_errors",
        3.0,
        lambda calm: run(turning(), training(0.1, 0.05 / max(calm, 1e-3))),
        50.0,
        -0.01,
    ),
    "short_rise": pair("height", 0.05, few, 1.0),
    "chance": (
        lambda: run([1.0, 0.6, 0.9, 0.8, 0.95]),
        lambda: run([1.0, 0.6, 0.8, 0.9, 0.95]),
    ),
    "stopped_fall": pair("later_fall", 0.3, stopping, 2.0),
    "stopped_share": (
        lambda: where("later_share", 0.101, lambda share: stopping(0.5, share), 1.0),
        lambda: where("later_share", 0.1, lambda share: stopping(0.5, share), 1.0),
    ),
    "fall_errors of a stop": pair("later_errors", 3.0, restless, 50.0, -0.01),
    "halved": pair("later_fall", 0.69, stopping, 2.0),
    "grave": pair("height", 0.3, lambda up: run(turning(up), training()), 1.0),
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
    assert finding.summary.startswith("Overfitting: the evaluation loss rises from a level of 2.")
    assert 180 <= finding.steps[0] <= 260
    assert finding.steps[1] == 400
    assert f"of step {finding.steps[0]}, the evaluation minimum" in finding.treatments[0].title


@pytest.mark.parametrize("factor", [0.05, 0.5, 3.0, 250.0])
def test_a_constant_distance_is_no_gap_and_hides_none(factor: float) -> None:
    healthy = falling_loss(400, noise=0.004, seed=3)[9::10]
    assert clear(run(healthy * factor))
    assert not clear(run(overfit() * factor))


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


@pytest.mark.parametrize("count", [2, 3, 4, 6])
def test_the_chance_of_an_order_is_the_share_of_all_orders(count: int) -> None:
    def wrong(order: tuple[int, ...]) -> int:
        return sum(a > b for i, a in enumerate(order) for b in order[i + 1 :])

    orders = list(permutations(range(count)))
    for order in orders[:: max(len(orders) // 20, 1)]:
        as_good = sum(wrong(other) <= wrong(order) for other in orders) / len(orders)
        assert _chance(np.array(order, np.float64)) == pytest.approx(as_good)


def test_an_evaluation_loss_that_stops_is_a_note_until_training_has_halved() -> None:
    assert only_finding(stopping(0.5)).severity is Severity.NOTE
    halved = only_finding(stopping(1.0))
    assert halved.severity is Severity.WARN
    assert "has stopped" in halved.summary
    assert clear(stopping(1.0, share=0.5)), "it still falls"


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


def test_a_metric_that_still_improves_makes_a_large_rise_a_warning() -> None:
    values = overfit(0.8)
    alone = check(run(values), RULE.limits)
    assert [f.severity for f in alone] == [Severity.CRITICAL]
    for name, metric in (("eval_wer", [20.0, 9.0]), ("val_accuracy", [0.5, 0.9])):
        track = np.linspace(*metric, len(values))
        (better,) = check(run(values, **{f"metric:{name}": track}), RULE.limits)
        assert better.severity is Severity.WARN
        (told,) = (e for e in better.evidence if e.channel == f"metric:{name}")
        assert told.observed > 0
        assert "still improves" in told.what
        (worse,) = check(run(values, **{f"metric:{name}": track[::-1]}), RULE.limits)
        assert worse.severity is Severity.CRITICAL


def test_a_metric_of_unknown_sense_or_of_the_training_data_says_nothing() -> None:
    values = overfit(0.8)
    up = np.linspace(0.5, 0.9, len(values))
    for name in ("eval_runtime", "accumulated_eval_time", "best_validation_accuracy"):
        (finding,) = check(run(values, **{f"metric:{name}": up}), RULE.limits)
        assert finding.severity is Severity.CRITICAL
    (told,) = check(
        run(values, **{"metric:eval_runtime": up, "metric_direction:eval_runtime": "rise"}),
        RULE.limits,
    )
    assert told.severity is Severity.WARN
    both = {"metric:accuracy": up, "metric:val_accuracy": up[::-1]}
    (finding,) = check(run(values, **both), RULE.limits)
    assert finding.severity is Severity.CRITICAL, "accuracy is that of the training data"


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


@pytest.mark.parametrize("count", [10, 20, 57])
def test_the_error_of_a_rise_is_that_of_the_obvious_calculation(count: int) -> None:
    level = np.log(overfit(0.2, count, noise=0.01) + 0.05 * np.median(overfit(0.2, count)[:3]))
    trace = run(np.exp(level))
    losses = trace.series["eval_loss"].values
    level = np.log(losses + 0.05 * np.median(losses[:3]))
    means = [np.mean(level[max(i - 1, 0) : i + 2]) for i in range(count)]
    bends = sorted(abs(level[i] - (level[i - 1] + level[i + 1]) / 2) for i in range(1, count - 1))
    noise = 1.4826 * np.median(bends) / math.sqrt(1.5)
    tail = max(3, count // 8)
    rise = np.median(level[-tail:]) - min(means)
    expected = rise / (noise * math.sqrt(1 / 3 + 1 / tail)) / (1 + 4 / count)
    assert figure(trace).errors == pytest.approx(expected, rel=1e-3, abs=0.01)
    assert figure(trace).height == pytest.approx(rise, abs=6e-4)


def test_figures_are_rounded_so_that_what_is_printed_was_judged() -> None:
    found = figure(run(overfit()))
    shown = {"soft", "low", "end"}  # levels, which nothing is judged by
    for name, value in found._asdict().items():
        if isinstance(value, float) and name not in shown:
            assert value == round(value, 4), name


@pytest.mark.parametrize("rise", [0.1, 0.31, 0.5])
def test_the_levels_the_logarithm_and_the_limit_in_the_sentence_agree(rise: float) -> None:
    finding = only_finding(run(overfit(rise)))
    number = r"(\d[\d.]*\d)"
    pattern = rf"level of {number} at .* level of {number} from .* by {number} in .* \+ {number}\)"
    found = re.search(pattern, finding.summary)
    assert found is not None, finding.summary
    low, end, height, soft = map(float, found.groups())
    assert math.log((end + soft) / (low + soft)) == pytest.approx(height, abs=1e-3)
    assert finding.evidence[0].observed == height
    assert (finding.severity is Severity.CRITICAL) is (height > 0.3)
    assert finding.evidence[0].limit == 0.02


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
    assert row.what == (
        "the metric val_accuracy still improves since the minimum of the loss: gain over its value "
        "there"
    )
    assert row.unit == "share"


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
