"""What the contract cannot know of `loss-spike`."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from curves.families import FAMILIES
from curves.faults import spike
from curves.views import VIEWS, trace_of
from numpy.typing import ArrayLike, NDArray

from optdoctor.curves.deviations import median_of_five
from optdoctor.curves.spikes import LOSSES, NORMS, Reach, spikes_of
from optdoctor.engine import diagnose, examine
from optdoctor.findings import Finding, Severity, Status
from optdoctor.rules import gradient_outlier, loss_spike
from optdoctor.rules.loss_spike import RULE, Limits
from optdoctor.synthetic import falling_loss, gradient_norms, make_trace
from optdoctor.trace import Event, Recorder, Trace

Floats = NDArray[np.float64]
ANY = Limits(height=0.0, clearness=0.0)


def level(rows: int = 400, noise: float = 0.002) -> Floats:
    """Losses that begin at 20, so that 1 is added before the logarithm, and stand at 3."""
    loss = 3 * np.exp(noise * np.random.default_rng(3).standard_normal(rows))
    loss[:3] = 20
    return loss


def jumping(by: float, width: int = 5, noise: float = 0.002, **facts: object) -> Trace:
    """A level loss that jumps at row 200 by so much in log(loss + 1)."""
    loss = level(noise=noise)
    loss[200 : 200 + width] = (loss[200 : 200 + width] + 1) * np.exp(by) - 1
    return make_trace({"loss": loss, **facts})


def figure(trace: Trace, name: str) -> float:
    """Height or clearness of the highest jump, as it is judged."""
    line = loss_spike._line(trace, "loss", ANY)
    assert line is not None
    spike = next((spike for spike in line.spikes if 198 <= spike.top <= 206), None)
    if spike is None:
        return 0.0
    return round(spike.height, 3) if name == "height" else round(spike.clearness, 2)


def where(name: str, value: float, make: Callable[[float], Trace]) -> Trace:
    """The trace of a rising family of them whose figure is exactly `value`."""
    low, high = 0.0, 3.0
    for _ in range(60):
        middle = (low + high) / 2
        found = figure(make(middle), name)
        if found == value:
            return make(middle)
        low, high = (middle, high) if found < value else (low, middle)
    raise AssertionError(f"no trace with {name} {value}")


def pair(
    name: str, limit: float, step: float, make: Callable[[float], Trace]
) -> tuple[Callable[[], Trace], Callable[[], Trace]]:
    """Traces at the limit and one printed digit above it."""
    return lambda: where(name, limit, make), lambda: where(name, round(limit + step, 3), make)


AT_LIMIT = {
    "height": pair("height", 0.095, 0.001, jumping),
    "clearness": pair("clearness", 1.0, 0.01, lambda by: jumping(by, noise=0.1)),
    "blip": pair("height", 0.69, 0.001, lambda by: jumping(by, width=1)),
    "mean_blip": pair("height", 0.182, 0.001, lambda by: jumping(by, width=1, loss_window=10)),
}


def findings(trace: Trace) -> tuple[Finding, ...]:
    outcome = examine(RULE, trace)
    assert outcome.status in (Status.FOUND, Status.CLEAR), outcome.reason
    return outcome.findings


def only(trace: Trace) -> Finding:
    (finding,) = findings(trace)
    return finding


def spiked(at: ArrayLike, factor: float, rows: int = 400, width: int = 5, **more: object) -> Trace:
    loss = falling_loss(rows)
    for start in np.atleast_1d(at):
        loss[start : start + width] *= factor
    return make_trace({"loss": loss, **more})


def said(finding: Finding) -> str:
    return " ".join(evidence.what for evidence in finding.evidence)


def test_a_jump_of_half_over_five_rows_is_an_alarm_with_its_numbers() -> None:
    finding = only(spiked(240, 1.5))
    assert finding.severity is Severity.WARN
    assert finding.steps == (241, 250)
    assert finding.summary == (
        "Spike: the loss jumps at step 241 from 2.211 and peaks at step 245 at 3.511, 1.59-fold;"
        " it is high for 5 rows and back by step 246 (limit 10 %)."
    )


def test_a_loss_that_jumps_and_takes_long_to_come_back_is_found_at_its_first_row() -> None:
    loss = falling_loss()
    loss[200:] *= np.exp(0.8 * np.exp(-np.arange(200) / 30))
    finding = only(make_trace(loss=loss))
    assert finding.severity is Severity.WARN
    assert finding.steps[0] == 201
    assert 225 <= finding.steps[1] <= 300


@pytest.mark.parametrize("height", [0.3, 1.0])
def test_what_stays_up_is_no_spike(height: float) -> None:
    loss = falling_loss()
    loss[200:] *= np.exp(height)
    assert findings(make_trace(loss=loss)) == ()


def test_a_jump_that_loses_less_than_half_of_its_height_is_no_spike() -> None:
    loss = falling_loss(noise=0.005)
    loss[200:210] *= 3
    loss[210:] *= 3**0.7
    assert findings(make_trace(loss=loss)) == ()
    loss[210:] /= 3**0.7
    assert only(make_trace(loss=loss))


def test_spikes_of_a_run_that_is_lost_already_are_not_counted() -> None:
    loss = level(noise=0.01)
    loss[100:] *= 4
    early, late = loss.copy(), loss.copy()
    early[50:55] *= 2
    late[250:255] *= 2
    assert only(make_trace(loss=early)).steps[0] == 51
    assert findings(make_trace(loss=late)) == ()


def test_a_single_row_below_a_doubling_is_a_note_at_most() -> None:
    assert only(spiked(240, 1.7, width=1)).severity is Severity.NOTE
    assert only(spiked(240, 3.0, width=1)).severity is Severity.WARN


def test_several_rows_are_an_alarm_from_a_doubling_together_on() -> None:
    few, many = only(jumping(0.15, width=4)), only(jumping(0.15, width=12))
    assert (few.severity, many.severity) == (Severity.NOTE, Severity.WARN)
    cost = [e for e in few.evidence if e.what.startswith("the same height times its 4 rows")]
    assert cost[0].observed == pytest.approx(0.6, abs=0.03)
    assert cost[0].limit == RULE.limits.blip


def test_a_gradient_norm_that_jumps_with_it_confirms_a_small_one() -> None:
    norm = gradient_norms()
    norm[240] *= 10
    assert findings(spiked(240, 1.2, width=1)) == ()
    finding = only(spiked(240, 1.2, width=1, grad_norm=norm))
    assert finding.severity is Severity.NOTE
    assert "highest gradient norm at most 2 rows from the spike" in said(finding)


def test_several_equal_peaks_are_one_finding_with_their_number_and_the_worst() -> None:
    loss = falling_loss()
    for at, factor in ((80, 2.0), (140, 2.0), (230, 2.2), (370, 2.0)):
        loss[at : at + 3] *= factor
    finding = only(make_trace(loss=loss))
    assert "jumps 4 times since step 81, most at step 231 from" in finding.summary
    assert finding.steps == (81, 376)
    assert "spikes, from steps 81, 141, 231, 371" in said(finding)


def test_jumps_at_even_distances_are_left_to_the_staircase() -> None:
    even = spiked([119, 159, 199, 239, 279, 319, 359], 1.5, rows=395, width=3)
    diagnosis = diagnose(even)
    assert [f.rule for f in diagnosis.findings] == ["staircase-oscillation"]
    assert only(spiked([119, 150, 199, 252, 279, 330, 359], 1.5, rows=395, width=3))


def test_one_far_above_a_wave_is_a_spike() -> None:
    loss = falling_loss(395)
    loss[119::40] *= 1.2
    assert findings(make_trace(loss=loss)) == ()
    loss[319:322] *= 4
    assert only(make_trace(loss=loss)).steps[0] == 320


def test_spikes_of_the_evaluation_are_found() -> None:
    evaluation = np.full(40, 2.0) * np.exp(0.01 * np.random.default_rng(0).standard_normal(40))
    evaluation[25] *= 1.5
    steps = {"eval_loss": np.arange(10, 401, 10)}
    trace = make_trace(loss=falling_loss(), eval_loss=evaluation, steps=steps)
    finding = only(trace)
    assert finding.severity is Severity.WARN
    assert finding.summary.startswith("Spike: the evaluation loss jumps at step 260 from 2")
    assert finding.steps[0] == 260
    alone = make_trace(eval_loss=evaluation, steps=steps)
    assert only(alone).summary == finding.summary


def test_an_evaluation_that_jumps_with_training_is_the_same_spike() -> None:
    loss = falling_loss()
    loss[255:265] *= 2
    evaluation = np.full(40, 2.0) * np.exp(0.01 * np.random.default_rng(0).standard_normal(40))
    evaluation[25] *= 1.5
    steps = {"eval_loss": np.arange(10, 401, 10)}
    trace = make_trace(loss=loss, eval_loss=evaluation, steps=steps)
    assert only(trace).summary.startswith("Spike: the loss")


def test_beside_losses_that_are_not_finite_nothing_is_said() -> None:
    loss = falling_loss()
    loss[240:245] *= 2
    assert only(make_trace(loss=loss))
    loss[247] = np.nan
    assert findings(make_trace(loss=loss)) == ()


def test_where_the_rate_restarts_the_loss_may_jump() -> None:
    part = np.arange(400) % 130 / 130
    rate = 1e-3 * (1.05 + np.cos(np.pi * part))
    loss = falling_loss()
    loss[260:270] *= 1.5
    assert findings(make_trace(loss=loss, lr=rate)) == ()
    assert only(make_trace(loss=loss, lr=np.full(400, 1e-3)))


def test_the_initial_fall_is_no_spike_and_one_beside_it_is() -> None:
    loss = falling_loss()
    assert findings(make_trace(loss=loss)) == ()
    loss[15:18] *= 3
    assert only(make_trace(loss=loss)).steps[0] == 16


def test_an_explosion_in_the_second_update_is_the_optimizers() -> None:
    loss = falling_loss()
    loss[2] *= 5
    assert findings(make_trace(loss=loss)) == ()


def test_in_a_short_log_only_a_row_that_towers_counts() -> None:
    losses = [2.6, 2.2, 2.0, 1.9, 1.85, 1.8, 4.5, 1.75, 1.7, 1.68, 1.66, 1.65]
    finding = only(make_trace(loss=losses))
    assert finding.severity is Severity.WARN
    assert finding.steps == (7, 10)
    losses[6] = 2.6
    assert findings(make_trace(loss=losses)) == ()


@pytest.mark.parametrize(("rows", "at"), [(8, 4), (12, 5), (20, 10), (23, 15)])
def test_a_doubling_in_noise_as_large_is_no_tower(rows: int, at: int) -> None:
    rng = np.random.default_rng(1)
    calm = 2 * np.exp(0.01 * rng.standard_normal(rows))
    calm[at] *= 3
    assert only(make_trace(loss=calm))
    noisy = 2 * np.exp(0.6 * rng.standard_normal(rows))
    noisy[at] = 3 * noisy[max(at - 3, 0) : at + 4].max()
    assert findings(make_trace(loss=noisy)) == ()


def test_near_zero_a_few_hard_examples_are_a_note() -> None:
    rng = np.random.default_rng(0)
    loss = 2.3 * np.exp(-np.arange(400) / 20) + 0.005 * np.exp(0.3 * rng.standard_normal(400))
    loss[300:306] = 0.06
    assert only(make_trace(loss=loss)).severity is Severity.NOTE
    loss[300:306] = 0.6
    assert only(make_trace(loss=loss)).severity is Severity.WARN


@pytest.mark.parametrize("kind", ["reward", "adversarial", "diffusion"])
def test_a_loss_that_jumps_in_a_good_run_is_not_judged(kind: str) -> None:
    outcome = examine(RULE, spiked(240, 3, loss_kind=kind))
    assert outcome.status is Status.ABSTAINED
    assert f"{kind} loss jumps" in str(outcome.reason)


@pytest.mark.parametrize("form", ["running mean", "sum"])
def test_a_loss_that_jumps_by_its_form_is_not_judged(form: str) -> None:
    outcome = examine(RULE, spiked(240, 3, loss_form=form))
    assert (outcome.status, form in str(outcome.reason)) == (Status.ABSTAINED, True)


def test_a_peak_is_found_in_a_thinned_series() -> None:
    rng = np.random.default_rng(0)
    loss = 2 * np.exp(0.02 * rng.standard_normal(4000))
    loss[3001] *= 5
    recorder = Recorder(step_capacity=512)
    recorder.extend("loss", np.arange(1, 4001), loss)
    trace = recorder.trace({})
    assert len(trace.series["loss"].steps) < 4000
    finding = only(trace)
    assert finding.steps[0] == 3002
    assert "at step 3002" in finding.summary


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_the_scale_of_the_loss_does_not_matter(scale: float) -> None:
    trace = spiked(240, 1.5)
    scaled = make_trace(loss=scale * trace.series["loss"].values)
    first, other = only(trace), only(scaled)
    assert (first.steps, first.severity) == (other.steps, other.severity)
    assert first.evidence[0].observed == pytest.approx(other.evidence[0].observed, rel=1e-6)


@pytest.mark.parametrize("loss", [[1e300] * 30, [0.0] * 30, [1e-300] * 30, [-1.0] * 30])
def test_constant_and_extreme_losses_are_clear(loss: list[float]) -> None:
    assert findings(make_trace(loss=loss)) == ()
    assert findings(make_trace(loss=loss[:9])) == ()


def test_printed_digits_are_no_spikes() -> None:
    rng = np.random.default_rng(0)
    loss = np.round(0.004 * np.exp(0.6 * rng.standard_normal(600)), 2)
    loss[:30] = np.round(np.linspace(2.3, 0.1, 30), 2)
    assert [f for f in findings(make_trace(loss=loss)) if f.severity is not Severity.NOTE] == []


def test_a_resume_beside_a_spike_is_told() -> None:
    trace = replace(spiked(240, 1.5), events=(Event(241, "resume"),))
    assert "the resume at step" in said(only(trace))
    assert "the resume at step" not in said(only(spiked(240, 1.5)))


def test_what_is_missing_to_tell_the_cause_is_to_be_recorded() -> None:
    titles = [t.title for t in only(spiked(240, 1.5)).treatments]
    assert "Record the gradient norm, the batch index and the rate at every step" in titles
    known = spiked(240, 1.5, grad_norm=gradient_norms(), lr=np.full(400, 1e-3))
    assert "Record the batch index at every step" in [t.title for t in only(known).treatments]


def test_a_slow_second_moment_is_to_follow_faster() -> None:
    changes = [t.changes for t in only(spiked(240, 1.5, beta2=0.999)).treatments]
    assert {"beta2": (0.999, 0.95)} in changes
    assert not any(t.changes for t in only(spiked(240, 1.5, beta2=0.95)).treatments)


def clear(deviations: ArrayLike, reach: Reach = LOSSES) -> list[bool]:
    """Of single rows that stand so many deviations above noise of 0.2, which are clear."""
    rows = np.random.default_rng(4).standard_normal(2000)
    at = 300 + 100 * np.arange(len(np.atleast_1d(deviations)))
    rows[at] = deviations
    found = spikes_of(0.2 * np.clip(rows, -3, None), reach, least_height=0.2)
    return [any(s.top == place and s.clearness >= 1 for s in found) for place in at.tolist()]


def test_a_peak_among_others_nearly_as_high_is_the_noise_of_the_run() -> None:
    assert clear([17]) == [True]
    assert clear([17, 12, 9, 7, 6, 5]) == [False] * 6


def test_beside_heavy_tails_more_is_asked_of_the_highest_peak() -> None:
    assert clear([9, 4.5, 4.5], NORMS)[0]
    assert clear([9, 6, 5, 4.4], NORMS) == [False] * 4


def test_peaks_that_are_alike_stand_apart_together() -> None:
    assert clear([45, 50, 55]) == [True] * 3


def test_far_beyond_the_noise_other_peaks_do_not_matter() -> None:
    assert clear([75, 50, 36, 26, 19, 14, 10, 7])[0]
    assert not clear([50, 36, 26, 19, 14, 10, 7])[0]


def test_a_norm_of_fifty_times_the_usual_counts_whatever_the_others_are() -> None:
    others = [15, 11, 8.5, 6.8, 5.6, 4.8, 4.2]
    assert clear([19, *others], NORMS) == [False] * 8
    assert clear([20, *others], NORMS) == [True] + [False] * 7


def test_noise_of_few_rows_is_no_lasting_spike() -> None:
    found = []
    for seed in range(400):
        level = 0.4 * np.random.default_rng([seed, 9]).standard_normal(36)
        spikes = spikes_of(level, LOSSES, least_height=0.1)
        found += [seed for spike in spikes if spike.lasting and spike.clearness > 1]
    assert found == []


def test_the_median_of_five_is_that_of_each_window() -> None:
    values = np.random.default_rng(0).standard_normal(40)
    slow = [np.median(values[max(i - 2, 0) : i + 3]) for i in range(40)]
    assert median_of_five(values) == pytest.approx(slow)
    assert median_of_five(values[:4]) == pytest.approx(values[:4])


def of_two_kinds(rows: int, seed: int, share: float = 0.3, apart: float = 0.4) -> Floats:
    """Losses of batches of which a share is of a harder kind, in any order."""
    rng = np.random.default_rng([seed, 14])
    kind = rng.random(rows) < share
    return 2 * np.exp(apart * kind + 0.02 * rng.standard_normal(rows))


@pytest.mark.parametrize("share", [0.2, 0.3, 0.5, 0.7])
def test_batches_of_two_kinds_make_no_spikes(share: float) -> None:
    found = []
    for seed in range(20):
        for rows in (80, 400, 1000):
            found += findings(make_trace(loss=of_two_kinds(rows, seed, share)))
    assert [finding.summary for finding in found] == []


def test_a_jump_beyond_both_kinds_of_batches_is_a_spike() -> None:
    for seed in range(10):
        loss = of_two_kinds(400, seed)
        loss[200:208] *= 3
        assert 201 <= only(make_trace(loss=loss)).steps[0] <= 204


def test_spikes_that_come_far_more_often_than_by_chance_are_found() -> None:
    loss = level(noise=0.02)
    at = np.sort(np.random.default_rng(5).choice(np.arange(5, 38), 12, replace=False)) * 10
    for start in at.tolist():
        loss[start : start + 3] *= 1.5
    assert f"jumps 12 times since step {at[0] + 1}" in only(make_trace(loss=loss)).summary


def rising(height: float, fades_over: float, noise: float = 0.02) -> Trace:
    """A level loss of 1,000 rows that jumps at row 400 and fades exponentially."""
    since = np.arange(1000) - 400
    by = np.where(since >= 0, height * np.exp(-np.maximum(since, 0) / fades_over), 0.0)
    return make_trace(loss=(level(1000, noise) + 1) * np.exp(by) - 1)


def test_a_slight_rise_that_fades_over_a_part_of_the_run_is_a_note() -> None:
    finding = only(rising(0.2, 60))
    assert finding.severity is Severity.NOTE
    assert "so slowly that the data may have become harder" in finding.summary
    assert "over the share of the run that the return takes" in said(finding)


@pytest.mark.parametrize(("height", "fades_over"), [(0.2, 8), (0.4, 90)])
def test_one_that_fades_soon_or_is_high_is_an_alarm(height: float, fades_over: float) -> None:
    finding = only(rising(height, fades_over))
    assert finding.severity is Severity.WARN
    assert "harder" not in finding.summary + said(finding)


def test_one_that_ends_at_once_is_an_alarm() -> None:
    loss = level(noise=0.02)
    loss[200:215] *= 1.2
    assert only(make_trace(loss=loss)).severity is Severity.WARN


@pytest.mark.parametrize(("middle", "width"), [(0.03, 0.5), (0.05, 0.4), (0.06, 0.6)])
def test_a_loss_that_rises_over_its_first_rows_has_no_spike(middle: float, width: float) -> None:
    part = np.arange(1000) / 1000
    hump = np.exp(0.5 * np.exp(-(((part - middle) / (middle * width)) ** 2)))
    assert findings(make_trace(loss=falling_loss(1000) * hump)) == ()
    loss = falling_loss(1000)
    loss[int(1000 * middle) :][:5] *= 2
    assert only(make_trace(loss=loss)).steps[0] == int(1000 * middle) + 1


def test_single_rows_that_are_a_kind_of_data_are_a_note() -> None:
    at = np.random.default_rng(3).choice(np.arange(15, 80), 13, replace=False) * 5
    few, many = level(noise=0.02), level(noise=0.02)
    few[at[:12]] *= 3
    many[at] *= 3
    assert only(make_trace(loss=few)).severity is Severity.WARN
    finding = only(make_trace(loss=many))
    assert finding.severity is Severity.NOTE
    assert "so often it is the nature of the data" in finding.summary
    assert "single rows that stand out" in said(finding)


@pytest.mark.parametrize(
    ("places", "severity"), [([6, 13, 20], Severity.WARN), ([6, 11, 17, 24], Severity.NOTE)]
)
def test_evaluations_that_jump_again_and_again_are_a_note(
    places: list[int], severity: Severity
) -> None:
    evaluation = np.full(30, 2.0) * np.exp(0.01 * np.random.default_rng(0).standard_normal(30))
    evaluation[places] *= 1.6
    assert only(make_trace(eval_loss=evaluation)).severity is severity


def test_loss_and_norm_name_the_same_step() -> None:
    norm = gradient_norms()
    norm[240] *= 15
    norm[241] *= 30
    trace = spiked(240, 1.5, grad_norm=norm)
    (outlier,) = examine(gradient_outlier.RULE, trace).findings
    assert "the loss jumps at step 241 from" in only(trace).summary
    assert "at step 242, high since step 241," in outlier.summary


@pytest.mark.parametrize("family", FAMILIES)
def test_healthy_families_call_for_no_alarm(family: str) -> None:
    alarms = []
    for seed, rows in enumerate((300, 600, 1500)):
        run = FAMILIES[family](rows, np.random.default_rng([seed, 11]))
        for view in VIEWS:
            told = findings(trace_of(run, view))
            alarms += [(view, seed, f.summary) for f in told if f.severity is not Severity.NOTE]
    assert alarms == []


FALLS = ("power law", "cosine", "warm-up, stable, decay", "linear")


@pytest.mark.parametrize("family", FALLS)
@pytest.mark.parametrize(("view", "least"), [("raw", 6), ("EMA 0.9", 5)])
def test_a_jump_of_half_over_five_rows_is_found_in_them(family: str, view: str, least: int) -> None:
    hits = 0
    for seed in range(6):
        rng = np.random.default_rng([seed, 12])
        sick = spike(FAMILIES[family](500, rng), rng, float(np.log(1.5)), 5)
        told = findings(trace_of(sick.run, view))
        alarms = [finding for finding in told if finding.severity is Severity.WARN]
        hits += any(abs(finding.steps[0] - sick.onset) <= 2 for finding in alarms)
    assert hits >= least


def returning(slowness: float, rows: int = 400, left: float = 0.0) -> Trace:
    """A loss that jumps at row 200 and falls back: by half in 6 rows, to a third later."""
    after = np.arange(rows - 200)
    way = np.where(after < 6, 1 - 0.4 * after / 6, 0.45 - 0.2 * (after - 6) / (6 * slowness))
    loss = level(rows)
    loss[200:] = (loss[200:] + 1) * np.exp(2.5 * np.maximum(way, left)) - 1
    return make_trace(loss=loss, beta2=0.999)


def test_what_falls_back_slowly_is_being_learnt_anew_and_no_batch_is_left_out() -> None:
    slow, fast = only(returning(12)), only(returning(1.5))
    assert "and falls back slowly, by step" in slow.summary
    assert slow.treatments[0].title.startswith(
        "If data, objective or model were changed at step 201 on purpose"
    )
    assert not any(t.changes or "leave out" in t.title for t in slow.treatments)
    assert "slowly" not in fast.summary
    assert any(t.changes for t in fast.treatments)


def test_a_jump_after_which_the_loss_ends_far_above_its_best_is_a_divergence_alone() -> None:
    for left in (0.0, 0.2):
        found = {f.rule for f in diagnose(returning(12, left=left)).findings}
        assert len(found & {"divergence", "loss-spike"}) == 1
    assert "divergence" in found


def test_a_norm_that_the_optimizer_saw_confirms_as_one_before_clipping_does() -> None:
    norm = gradient_norms()
    norm[240] *= 30
    finding = only(spiked(240, 1.2, width=1, grad_norm_used=norm))
    assert finding.evidence[-1].channel == "grad_norm_used"
    titles = [treatment.title for treatment in finding.treatments]
    assert "Record the batch index and the rate at every step" in titles
