"""The exam itself: its faults are what they say, its views too, and its figures add up."""

import numpy as np
import pytest

from curves import exam, figures
from curves.baseline import SILENT, margins
from curves.exam import Result
from curves.families import FAMILIES
from curves.faults import FAULTS, frozen, level, lost, spike
from curves.figures import Share
from curves.held import GENERATED
from curves.opened import OPENED
from curves.recorded import OPENED as OPENED_FILE
from curves.records import load
from curves.runs import Run
from curves.views import ALL_VIEWS, VIEWS, View, every, seen, trace_of
from optdoctor.synthetic import falling_loss, make_trace

EVERY = {**FAMILIES, **OPENED, **GENERATED}
"""All that is made up. What any rule says of those held apart is not asked here."""


def a_run(family: str = "power law", n: int = 400, seed: int = 0) -> Run:
    return EVERY[family](n, np.random.default_rng(seed))


def result(truth: str = "healthy", found: dict[str, str] | None = None, **margins: float) -> Result:
    said = {name.replace("_", "-"): margin for name, margin in margins.items()}
    return Result("a", "made up", 400, 0, "raw", truth, truth, 0.0, True, found or {}, "", said)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("n", [400, 1000])
def test_a_family_gives_as_many_finite_rows_as_asked_for(name: str, n: int) -> None:
    run = EVERY[name](n, np.random.default_rng(1))

    assert run.lr is not None
    assert run.grad_norm is not None
    for rows in (run.loss, run.clean, run.lr, run.grad_norm):
        assert len(rows) == n
        made = rows if run.step_skipped is None else rows[run.step_skipped == 0]
        assert np.isfinite(made).all()
    assert len(run.eval_steps) == len(run.eval_loss) >= 8
    assert run.eval_steps[-1] <= n


@pytest.mark.parametrize("name", EVERY)
def test_a_family_draws_another_run_for_each_seed_and_the_same_for_one(name: str) -> None:
    first, again, other = (a_run(name, seed=seed).loss for seed in (3, 3, 4))

    assert np.array_equal(first, again)
    assert not np.allclose(first, other)


def test_development_holds_what_was_opened_and_nothing_that_is_held_apart() -> None:
    assert set(exam.families(False)) == {*FAMILIES, *OPENED}
    assert len(EVERY) == len(FAMILIES) + len(OPENED) + len(GENERATED)
    recorded, held = ({r.family for r in exam.records(h)} for h in (False, True))
    assert recorded >= {record.family for record in load(OPENED_FILE)}
    assert held
    assert not recorded & held


def test_the_exam_is_large_enough_and_a_third_of_it_are_real_trainings() -> None:
    tasks = list(exam.tasks(True, (400, 1000, 3000), 5))
    healthy = [t for t in tasks if not t.is_recorded or exam.records(True)[t.n].healthy]
    real = [t for t in healthy if t.is_recorded]

    assert len(healthy) >= 300
    assert len({t.family for t in healthy}) >= 24
    assert len(real) >= len(healthy) / 3


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_changes_nothing_before_its_onset(kind: str) -> None:
    sick = FAULTS[kind](a_run(n=1000), np.random.default_rng(2))

    assert sick is not None
    before = slice(0, sick.onset - 1)
    assert np.array_equal(sick.run.loss[before], sick.without.loss[before])
    early = sick.without.eval_steps < sick.onset
    assert np.array_equal(sick.run.eval_loss[early], sick.without.eval_loss[early])
    series = [getattr(sick.run, n) for n in ("loss", "eval_loss", "grad_norm", "loss_scale")]
    healthy = [getattr(sick.without, n) for n in ("loss", "eval_loss", "grad_norm", "loss_scale")]
    pairs = zip(series, healthy, strict=True)
    assert any(
        (a is None) != (b is None) or (a is not None and not np.array_equal(a, b)) for a, b in pairs
    )


@pytest.mark.parametrize("family", ["power law", "near zero", "negative"])
@pytest.mark.parametrize("kind", ["divergence", "drift"])
def test_a_rise_ends_its_dose_above_where_it_began(family: str, kind: str) -> None:
    sick = FAULTS[kind](a_run(family), np.random.default_rng(5))

    assert sick is not None
    levels = level(sick.without, sick.run.clean)
    assert levels[-1] - levels[sick.onset - 1] == pytest.approx(sick.dose, rel=0.02)


def test_a_spike_is_as_high_and_as_wide_as_its_dose() -> None:
    sick = spike(a_run(), np.random.default_rng(0), 0.5, 5)

    difference = level(sick.without, sick.run.loss) - level(sick.without, sick.without.loss)
    assert np.flatnonzero(difference).tolist() == list(range(sick.onset - 1, sick.onset + 4))
    assert difference.max() == pytest.approx(0.5)


def test_a_frozen_run_has_lost_what_it_still_had_to_fall() -> None:
    run = a_run("linear")

    stopped = frozen(run, 100)

    assert np.ptp(stopped.clean[100:]) < 1e-9
    assert lost(run, 100) > 0.1
    assert abs(lost(stopped, 100)) < 1e-9


def test_views_keep_the_rows_that_they_name() -> None:
    values = np.arange(1.0, 101.0)

    assert seen(values, VIEWS["every 10"]).tolist() == list(range(10, 101, 10))
    assert seen(values, VIEWS["mean of 10"]).tolist() == [5.5 + 10 * i for i in range(10)]
    assert seen(values, VIEWS["epochs"]).tolist() == [3 + 5 * i for i in range(20)]
    assert seen(values, VIEWS["EMA 0.9"])[1] == pytest.approx(0.9 * 1 + 0.1 * 2)
    assert seen(values / 3, View(every(50), digits=2)).tolist() == [16.67, 33.33]


@pytest.mark.parametrize("view", ALL_VIEWS)
def test_every_view_is_a_trace_with_all_that_was_logged(view: str) -> None:
    trace = trace_of(a_run(), view)

    assert {"loss", "lr", "grad_norm", "eval_loss"} <= set(trace.series)
    assert trace.series["eval_loss"].steps[-1] <= trace.series["loss"].steps[-1]
    assert set(trace_of(a_run(), view, ()).series) == {"loss"}


def test_a_mean_of_norms_takes_in_no_update_that_was_left_out() -> None:
    run = a_run("loss scaler", n=1000)

    assert run.grad_norm is not None
    assert not np.isfinite(run.grad_norm).all()
    assert not np.isfinite(trace_of(run).series["grad_norm"].values).all()
    assert np.isfinite(trace_of(run, "mean of 10").series["grad_norm"].values).all()


def test_the_baseline_says_what_it_was_described_to_say() -> None:
    loss = falling_loss(noise=0.01)
    risen, spiked, wavy = loss.copy(), loss.copy(), loss.copy()
    risen[300:] *= 1.6
    spiked[200] *= 1.5
    wavy *= np.exp(0.1 * np.sin(np.arange(400) / 2))
    flat = np.append(loss[:200], np.random.default_rng(0).normal(2.4, 0.01, 200))
    spent = np.append(np.ones(200), np.zeros(200))

    def said(loss: np.ndarray, **more: np.ndarray) -> set[str]:
        return {
            name for name, margin in margins(make_trace(loss=loss, **more)).items() if margin >= 1
        }

    assert said(loss) == set()
    assert {"divergence", "upward-drift"} <= said(risen)
    assert said(spiked) == {"loss-spike"}
    assert "staircase-oscillation" in said(wavy)
    assert said(flat) == {"early-plateau"}
    assert said(flat, lr=spent) == {SILENT}
    assert "nan-pulse" in said(np.append(loss, np.nan))


def test_the_factor_allows_just_so_many_false_alarms() -> None:
    alarms = [0.5, 3.0, 2.0, 1.0]

    for allowed, expected in ((0.0, 3.0), (0.25, 2.0), (0.5, 1.0)):
        factor = figures.factor_at(alarms, allowed)
        assert factor == pytest.approx(expected)
        assert np.mean(np.array(alarms) >= factor) == allowed


def test_tuned_factors_spend_alarms_where_they_name_most() -> None:
    false = np.array([[2.0, 0.0], [0.0, 3.0], [0.0, 0.0]])
    reach = np.array([[1.5, 0.0], [0.0, 2.5], [0.0, 2.6]])
    weight = np.full(3, 1 / 3)

    none = figures.tuned(false, reach, weight, 0)
    one = figures.tuned(false, reach, weight, 1)

    assert not (false >= none).any()
    assert (false >= one).any(axis=1).sum() == 1
    assert (reach >= one).any(axis=1).tolist() == [False, True, True]


def test_each_shape_counts_the_same_and_within_it_each_kind() -> None:
    kinds = np.array([[0, 1], [0, 1], [0, 2], [4, 9]])

    assert figures.weights(kinds).tolist() == pytest.approx([1 / 8, 1 / 8, 1 / 4, 1 / 2])


def test_errors_stand_beside_those_of_the_baseline_at_equal_alarms() -> None:
    well = [result(loss_spike=2.0), *[result(loss_spike=0.5) for _ in range(9)]]
    found = [result("loss-spike", {"loss-spike": "note"}, loss_spike=3.0) for _ in range(6)]
    missed = [result("loss-spike", loss_spike=1.5) for _ in range(2)]
    better = [result("loss-spike", {"loss-spike": "warn"}, loss_spike=1.5) for _ in range(2)]

    errors = figures.errors([*well, *found, *missed, *better], np.random.default_rng(0), 20)

    assert (errors.ours, errors.alarms_only) == pytest.approx((0.2, 0.8))
    assert (errors.native, errors.native_false) == (0.0, 0.1)
    assert errors.baseline == errors.tuned == pytest.approx(0.4)
    assert errors.ratio == pytest.approx(0.5)


def test_a_rise_is_right_by_either_name_and_exact_by_one() -> None:
    drift = result("upward-drift", {"divergence": "critical"})

    assert figures.is_hit(drift)
    assert not figures.is_hit(drift, exact=True)
    assert not figures.is_hit(result("loss-spike", {"divergence": "critical"}))


def test_notes_are_hits_and_no_alarms() -> None:
    noted = result(found={"early-plateau": "note"})

    assert not figures.false_alarms([noted]).count
    assert figures.false_alarms([result(found={"early-plateau": "warn"})]).count == 1
    assert figures.is_hit(result("early-plateau", {"early-plateau": "note"}))
    assert not figures.is_hit(result("early-plateau", {"early-plateau": "note"}), alarms_only=True)


def test_an_interval_after_wilson() -> None:
    low, high = Share(0, 300).interval

    assert low == 0
    assert high == pytest.approx(0.01264, abs=1e-4)
