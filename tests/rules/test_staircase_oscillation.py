"""What the contract cannot know of `staircase-oscillation`."""

import re
import time
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from curve_families import FAMILIES, VIEWS, Floats
from judging import gravity

from optdoctor.curves.folded import rises_once
from optdoctor.curves.trend import trend
from optdoctor.engine import examine
from optdoctor.findings import Abstain, Finding, Severity, Status
from optdoctor.rules.staircase_oscillation import RULE
from optdoctor.synthetic import falling_loss, gradient_norms, make_trace
from optdoctor.trace import Event, Trace

N = 600
SEEDS = range(3)


def sine(size: float, period: float = 50, rows: int = N) -> Floats:
    return np.asarray(size / 2 * np.sin(2 * np.pi * np.arange(rows) / period))


def spikes(size: float, period: int = 50, rows: int = N) -> Floats:
    return np.where(np.arange(rows) % period == 0, size, 0.0)


def saw(size: float, period: int = 50, rows: int = N) -> Floats:
    """Jumps up, then falls back over the period."""
    return np.asarray(size * (1 - np.arange(rows) % period / period) - size / 2)


def run(wave: Floats, noise: float = 0.03, seed: int = 0, **more: object) -> Trace:
    return make_trace(loss=falling_loss(len(wave), noise=noise, seed=seed) * np.exp(wave), **more)


def peaks(*apart: int) -> Trace:
    at = 100 + np.cumsum([0, *apart])
    loss = falling_loss(at[-1] + 60)
    loss[at] *= 2
    return make_trace(loss=loss)


def spiked_rate(size: float) -> Trace:
    rate = np.where(np.arange(N) % 60 == 59, 0.1, 0.001)
    return run(sine(size, 60), noise=0.2, lr=rate)


def of_epochs(size: float) -> Trace:
    """A wave as long as the epoch."""
    return run(saw(size, 60), epoch=np.arange(N) // 60)


@cache
def turn(make: Callable[[float], Trace], low: float, high: float) -> tuple[Trace, Trace]:
    """Neighbours between which the judgement changes: two sizes that differ by almost nothing."""
    before = gravity(RULE, make(low))
    assert before < gravity(RULE, make(high))
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if gravity(RULE, make(middle)) > before else (middle, high)
    return make(low), make(high)


def noisy(size: float) -> Trace:
    return run(sine(size), noise=0.2)


def quiet(size: float) -> Trace:
    return run(sine(size), noise=0.002)


def uneven_rate(near: int, far: int) -> Trace:
    """A weak wave beside a rate that leaps at these distances in turn."""
    at = 80 + np.cumsum([0, near, far, near, far])
    return run(sine(0.25, 100), noise=0.2, lr=np.where(np.isin(np.arange(N), at), 0.1, 0.001))


def low_peaks(size: float) -> Trace:
    """Jumps at distances that no period fits."""
    at = 100 + np.cumsum([0, *[86, 114] * 3])
    return run(np.where(np.isin(np.arange(800), at), size, 0.0), noise=0.001)


def with_gaps(wave: Floats) -> Trace:
    """40 finite losses among 80 rows, which is just enough."""
    loss = np.full(80, np.nan)
    loss[::2] = falling_loss(40, noise=0.001) * np.exp(wave)
    return make_trace(loss=loss)


def mixed(period: int = 50, size: float = 0.2, rows: int = N, seed: int = 0) -> Floats:
    """Batches in one mixed order, each with its own level."""
    levels = size * np.random.default_rng(seed).standard_normal(period)
    return np.resize(levels, rows)


def half_sorted(share: float) -> Trace:
    """Levels in a mixed order, and so much of a smooth wave."""
    return run((1 - share) * mixed() + share * sine(0.4), noise=0.002)


AT_LIMIT = {
    "smoothness": (
        lambda: turn(half_sorted, 0.0, 1.0)[0],
        lambda: turn(half_sorted, 0.0, 1.0)[1],
    ),
    "clearness": (lambda: turn(noisy, 0.05, 0.4)[0], lambda: turn(noisy, 0.05, 0.4)[1]),
    "known_clearness": (
        lambda: turn(spiked_rate, 0.0, 0.4)[0],
        lambda: turn(spiked_rate, 0.0, 0.4)[1],
    ),
    "amplitude": (lambda: turn(quiet, 0.02, 0.06)[0], lambda: turn(quiet, 0.02, 0.06)[1]),
    "spacing": (lambda: peaks(*[115, 85] * 3), lambda: peaks(*[114, 86] * 3)),
    "spacing of the rate": (lambda: uneven_rate(85, 115), lambda: uneven_rate(86, 114)),
    "amplitude of jumps": (
        lambda: turn(low_peaks, 0.02, 0.06)[0],
        lambda: turn(low_peaks, 0.02, 0.06)[1],
    ),
    "finite rows": (lambda: with_gaps(np.zeros(40)), lambda: with_gaps(spikes(0.5, 5, 40))),
}


def only_finding(trace: Trace) -> Finding:
    outcome = examine(RULE, trace)
    assert outcome.status is Status.FOUND, outcome.reason
    (finding,) = outcome.findings
    return finding


def is_clear(trace: Trace) -> bool:
    return examine(RULE, trace).status is Status.CLEAR


def told(finding: Finding, channel: str) -> list[str]:
    return [e.what for e in finding.evidence if e.channel == channel]


def titles(finding: Finding, when: str) -> str:
    return "; ".join(t.title for t in finding.treatments if t.when == when)


def test_a_trend_is_the_median_of_the_rows_around() -> None:
    values = np.random.default_rng(0).standard_normal(20)
    reach = [min(4, row, 19 - row) for row in range(20)]
    around = [np.median(values[i - r : i + r + 1]) for i, r in enumerate(reach)]
    assert trend(values, 4).tolist() == around


@pytest.mark.parametrize("wave", [sine, spikes, saw])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_wave_is_found_with_its_period(wave: Callable[..., Floats], seed: int) -> None:
    finding = only_finding(run(wave(0.4), seed=seed))
    assert finding.severity is Severity.WARN
    period = finding.summary.partition("every ")[2].partition(" ")[0]
    assert float(period) == pytest.approx(50, rel=0.01)
    assert finding.summary.startswith("Oscillation" if wave is sine else "Staircase")


def test_jumps_every_150_steps_are_found_and_white_noise_is_not() -> None:
    rows = 1500
    finding = only_finding(run(spikes(0.5, 150, rows)))
    assert " about every 150 steps" in finding.summary
    assert is_clear(run(np.zeros(rows)))


def test_the_whole_period_is_told_not_a_half_that_is_high_too() -> None:
    half = mixed(25)
    other = mixed(50, seed=1)
    assert " about every 50 steps" in only_finding(run(half + other)).summary
    both = (half + other)[:180]  # three and a half periods
    assert is_clear(make_trace(loss=falling_loss(180) * np.exp(both)))


@pytest.mark.parametrize("period", [7, 20, 50, 100])
@pytest.mark.parametrize("seed", SEEDS)
def test_batches_that_repeat_in_a_mixed_order_are_a_note(period: int, seed: int) -> None:
    finding = only_finding(run(mixed(period, seed=seed)))
    assert finding.severity is Severity.NOTE
    assert "the same levels come back" in finding.summary
    assert {t.when for t in finding.treatments} == {"next", "check"}


def test_sorted_data_and_a_broken_batch_in_a_mixed_order_are_alarms() -> None:
    by_class = np.repeat(mixed(10, rows=10), 5)
    assert only_finding(run(np.resize(by_class, N))).severity is Severity.WARN
    by_class = np.concatenate([[1.0, 0.6, 0.5, 0.3, 0.2, 0.1, 0.0]] * 10)  # of 7 batches a class
    assert only_finding(run(np.resize(by_class, N))).severity is Severity.WARN
    broken = mixed()
    broken[20::50] += 2.5
    assert only_finding(run(broken)).severity is Severity.WARN


@pytest.mark.parametrize("seed", SEEDS)
def test_a_real_loop_over_fixed_batches_is_a_note(seed: int) -> None:
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = torch.randn(50, 16, 8)
    losses = []
    for step in range(600):
        inputs = batches[step % 50]
        loss = torch.nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True).sin())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    finding = only_finding(make_trace(loss=np.array(losses)))
    assert finding.severity is Severity.NOTE
    assert " about every 50 steps" in finding.summary


def test_its_steps_go_from_the_first_jump_to_a_period_after_the_last() -> None:
    wave = spikes(0.6)
    wave[:200], wave[451:] = 0, 0
    assert only_finding(run(wave)).steps == (201, 501)


def test_periods_are_told_in_steps_not_in_rows() -> None:
    steps = 10 * np.arange(1, N + 1)
    loss = falling_loss(N) * np.exp(spikes(0.6))
    finding = only_finding(make_trace(loss=loss, steps={"loss": steps}))
    assert " about every 500 steps" in finding.summary


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("view", VIEWS)
def test_healthy_curves_are_silent(family: str, view: str) -> None:
    for seed in SEEDS:
        for rows in (400, 1000):
            loss = VIEWS[view](FAMILIES[family](rows, np.random.default_rng(seed)))
            outcome = examine(RULE, make_trace(loss=loss))
            assert outcome.findings == (), (rows, seed)


def test_noise_that_hides_a_wave_is_silent() -> None:
    assert is_clear(run(sine(0.05), noise=0.3))


@pytest.mark.parametrize("cycle", [2, 3])
def test_cycles_of_two_or_three_steps_are_silent(cycle: int) -> None:
    assert is_clear(run(0.1 * (np.arange(N) % cycle == 0)))


def test_three_periods_are_too_few() -> None:
    assert is_clear(run(sine(0.5, 200)))
    assert not is_clear(run(sine(0.5, 100)))


@pytest.mark.parametrize("cycles", [4.4, 5, 6, 8])
def test_a_slow_saw_of_few_cycles_is_found(cycles: float) -> None:
    rows = 1000
    period = rows / cycles
    part = np.arange(rows) % period / period
    finding = only_finding(_slow(part, rows))
    assert finding.severity is Severity.WARN
    assert finding.period == pytest.approx(period, rel=0.05)


def _slow(part: Floats, rows: int) -> Trace:
    return make_trace(loss=falling_loss(rows, noise=0.03) * np.exp(0.4 * (1 - part)))


def test_three_rises_or_uneven_ones_are_no_wave() -> None:
    rows = 1000
    assert is_clear(_slow(np.arange(rows) % 333 / 333, rows))
    starts = np.array([0, 150, 420, 560, 900])
    since = np.arange(rows) - starts[np.searchsorted(starts, np.arange(rows), "right") - 1]
    assert is_clear(_slow(np.minimum(since / 200, 1), rows))


def test_rises_that_stay_are_no_wave() -> None:
    stairs = 0.3 * (np.arange(1000) // 200)
    assert is_clear(make_trace(loss=2.0 * np.exp(0.03 * _noise(1000) + stairs)))


def _noise(rows: int) -> Floats:
    return np.random.default_rng(0).standard_normal(rows)


def test_a_few_missing_rows_do_not_hide_a_period() -> None:
    trace = run(spikes(0.6))
    kept = np.random.default_rng(0).random(N) > 0.15
    kept[::50] = True
    steps = np.arange(1, N + 1)[kept]
    loss = trace.series["loss"].values[kept]
    finding = only_finding(make_trace(loss=loss, steps={"loss": steps}))
    assert " about every 50 steps" in finding.summary
    assert finding.steps[0] % 50 == 1


def test_of_rows_at_uneven_distances_the_longest_even_part_is_judged() -> None:
    steps = np.concatenate([np.arange(1, 101), 100 + 10 * np.arange(1, 401)])
    wave = np.where(steps % 500 == 0, 0.8, 0.0)
    loss = falling_loss(500) * np.exp(wave)
    finding = only_finding(make_trace(loss=loss, steps={"loss": steps}))
    assert " about every 500 steps" in finding.summary
    uneven = np.cumsum(np.random.default_rng(0).integers(1, 200, 300))
    outcome = examine(RULE, make_trace(loss=falling_loss(300), steps={"loss": uneven}))
    assert outcome.status is Status.ABSTAINED
    assert "at one distance" in (outcome.reason or "")


@pytest.mark.parametrize("period", [53, 60])
def test_a_wave_far_above_the_noise_is_no_moving_average(period: int) -> None:
    assert only_finding(run(sine(0.15, period, 400), noise=0.01)).severity is Severity.WARN


def test_a_short_saw_in_noise_is_no_mixed_order() -> None:
    wave = saw(0.22, 16, 1000)
    wave[:260] = 0
    for seed in range(6):
        assert only_finding(run(wave, noise=0.05, seed=seed)).severity is Severity.WARN


def test_short_stairs_that_lead_down_are_silent_though_a_trend_glides_ahead_of_them() -> None:
    smoothed = VIEWS["moving average"]
    for seed in range(20_000, 20_060):
        loss = FAMILIES["epoch staircase"](400, np.random.default_rng(seed))
        assert is_clear(make_trace(loss=loss[::5])), seed
        assert is_clear(make_trace(loss=smoothed(loss))), seed


def test_a_dip_of_the_size_of_the_noise_is_no_second_top() -> None:
    places = np.array([0.0, 1.0, 2.0, 1.9, 3.0, 2.0, 1.0])
    assert rises_once(places, 0.05)
    assert not rises_once(places, 0.01)
    assert not rises_once(np.array([0.0, 2.0, 1.0, 3.0, 2.0, 1.0, 0.5]), 1.0)


def test_five_jumps_have_to_come_at_more_even_distances_than_seven() -> None:
    assert is_clear(peaks(*[113, 87] * 2))
    assert not is_clear(peaks(*[113, 87] * 3))
    assert not is_clear(peaks(*[109, 91] * 2))


def test_the_sentence_says_from_which_loss_to_which_and_how_often() -> None:
    loss = np.where(np.arange(N) % 50 == 0, 3.0, 2.0) * np.exp(0.005 * _noise(N))
    finding = only_finding(make_trace(loss=loss))
    assert "from 2 to 3" in finding.summary
    assert "about every 50 steps, 10 times since step 101 (limit 3 %)" in finding.summary
    negative = only_finding(make_trace(loss=loss - 5))
    assert "of its range" in negative.summary


@pytest.mark.parametrize("height", [1.2, 3.0, 40.0])
@pytest.mark.parametrize("shape", [saw, spikes])
def test_the_levels_are_those_of_rows_and_lie_so_far_apart_as_it_says(
    shape: Callable[..., Floats], height: float
) -> None:
    loss = falling_loss(1000) * np.exp(shape(np.log(height), 50, 1000))
    said = only_finding(make_trace(loss=loss)).summary
    low, high = (float(word) for word in re.search(r"from (\S+) to ([\d.]+)", said).groups())  # type: ignore[union-attr]
    late = loss[-300:]
    assert late.min() < low < np.quantile(late, 0.6)
    assert np.quantile(late, 0.6) < high <= late.max()
    if high / low > 2:
        assert f"by a factor of {high / low:.3g}," in said
    else:
        assert f"by {100 * (high / low - 1):.2g} %," in said
    if shape is spikes:
        assert high / low == pytest.approx(height, rel=0.15)


@pytest.mark.parametrize("size", [0.25, 0.3, 0.4])
def test_the_first_jump_told_is_none_of_the_steep_fall_before_it(size: float) -> None:
    step = np.arange(1, 501)
    wave = 1 + size * np.sin(2 * np.pi * (step - 1) / 60)
    for seed in range(4):
        noise = 0.05 * np.random.default_rng(seed).standard_normal(500)
        finding = only_finding(make_trace(loss=(2 + 6 * step**-0.4 + noise) * wave))
        assert finding.steps[0] > 50, seed  # the first cycle only falls


def test_of_an_epoch_that_is_much_longer_the_order_of_data_is_not_blamed() -> None:
    for epochs in ([300], [220, 440]):
        epoch = np.searchsorted(epochs, np.arange(N), "right")
        finding = only_finding(run(saw(0.6, 50), epoch=epoch))
        assert "not the order of the data" in finding.summary
        assert "Shuffle" not in titles(finding, "next")
        assert "length of the epoch" not in titles(finding, "check")
        assert "Look at the batches" in titles(finding, "next")


def test_many_short_periods_are_counted_in_a_blink() -> None:
    rows = 65_536
    wave = np.where(np.arange(rows) % 5 == 0, 0.5, 0.0)
    trace = run(wave, grad_norm=gradient_norms(rows), max_grad_norm=3.0)
    before = time.process_time()
    only_finding(trace)
    assert time.process_time() - before < 1.5  # ten times what it takes


@pytest.mark.parametrize("known", [True, False])
def test_a_loss_that_falls_at_each_epoch_is_silent(known: bool) -> None:
    loss = falling_loss(N, noise=0.01) * 0.85 ** (np.arange(N) // 60)
    more = {"epoch": np.arange(N) // 60} if known else {}
    assert is_clear(make_trace(loss=loss, **more))


@pytest.mark.parametrize("how", ["epoch", "batch_index", "event"])
def test_a_jump_at_each_epoch_is_the_order_of_data(how: str) -> None:
    rows = np.arange(N)
    events = [Event(int(row) + 1, "epoch") for row in rows[::60]] if how == "event" else []
    channels = {"epoch": rows // 60, "batch_index": rows % 60}
    more = {how: channels[how]} if how in channels else {}
    finding = only_finding(run(saw(0.6, 60), events=events, **more))
    assert finding.severity is Severity.NOTE
    assert any("order of data" in e.what for e in finding.evidence)
    assert "Shuffle" in titles(finding, "next")
    assert titles(finding, "now") == ""


@pytest.mark.parametrize("size", [0.15, 0.6])
def test_a_wave_of_the_epoch_is_a_note_of_any_size(size: float) -> None:
    finding = only_finding(of_epochs(size))
    assert finding.severity is Severity.NOTE
    assert "an epoch has 60 steps" in finding.summary
    assert only_finding(run(saw(size, 60))).severity is Severity.WARN
    other = only_finding(run(saw(size, 60), epoch=np.arange(N) // 85))
    assert other.severity is Severity.WARN
    assert "does not fit" in told(other, "epoch")[0]


@pytest.mark.parametrize(("level", "severity"), [(2.4, Severity.WARN), (2.0, Severity.NOTE)])
def test_an_order_of_data_in_which_nothing_is_learnt_is_an_alarm(
    level: float, severity: Severity
) -> None:
    waves = {"loss": level * np.exp(saw(0.1, 60)), "epoch": np.arange(N) // 60}
    finding = only_finding(make_trace(waves, num_classes=10))
    assert finding.severity is severity
    assert ("is no better than chance" in finding.summary) is (severity is Severity.WARN)
    assert only_finding(make_trace(waves)).severity is Severity.NOTE


@pytest.mark.parametrize("length", [30, 60, 120, 180])
def test_halves_and_multiples_of_the_epoch_are_its_order_too(length: int) -> None:
    fractional = np.arange(1, N + 1) / length
    finding = only_finding(run(saw(0.4, 60), epoch=np.round(fractional, 2)))
    expected = Severity.NOTE if length != 180 else Severity.WARN  # a third is no half
    assert finding.severity is expected


def test_rows_that_are_epochs_tell_no_length() -> None:
    trace = run(spikes(1.0, 4), noise=0.005, epoch=np.arange(1, N + 1))
    assert only_finding(trace).severity is Severity.WARN


def test_a_rate_that_restarts_with_the_period_is_silent() -> None:
    phase = np.arange(N) % 75 / 75
    loss = falling_loss(N, noise=0.01) * np.exp(0.2 * (1 - phase))
    assert not is_clear(make_trace(loss=loss))
    assert is_clear(make_trace(loss=loss, lr=1e-3 * (1 + np.cos(np.pi * phase)) / 2))
    assert not is_clear(make_trace(loss=loss, lr=np.linspace(1e-3, 1e-5, N)))


def test_a_rate_that_leaps_far_above_its_median_is_named() -> None:
    finding = only_finding(spiked_rate(0.4))
    assert any("rate over its median" in what for what in told(finding, "lr"))
    assert "schedule" in titles(finding, "next")
    leaps = spiked_rate(0.0).series["lr"].values
    assert only_finding(run(mixed(60), lr=leaps)).severity is Severity.WARN


@pytest.mark.parametrize("kind", ["evaluation", "checkpoint"])
def test_events_of_the_same_period_are_told_as_company(kind: str) -> None:
    every = [Event(step, kind) for step in range(50, N, 50)]
    others = [Event(step, kind) for step in range(40, N, 40)]
    assert any(kind in e.what for e in only_finding(run(spikes(0.6), events=every)).evidence)
    assert not any(kind in e.what for e in only_finding(run(spikes(0.6), events=others)).evidence)


def outliers(wave: Floats) -> Trace:
    norms = gradient_norms(N) * np.where(np.arange(N) % 50 == 0, 10, 1)
    return run(wave, grad_norm=norms, max_grad_norm=3.0)


def test_a_clipped_norm_at_the_jumps_is_a_coincidence_not_a_cause() -> None:
    finding = only_finding(outliers(spikes(0.6)))
    assert any("a clip does not" in what for what in told(finding, "grad_norm"))
    assert not any("max_grad_norm" in t.changes for t in finding.treatments)


def test_clipping_is_offered_for_batches_that_stand_out_only() -> None:
    assert "1.5 times the running mean" in titles(only_finding(outliers(spikes(0.6))), "now")
    assert titles(only_finding(outliers(saw(0.6))), "now") == ""
    assert titles(only_finding(run(spikes(0.6), grad_norm=gradient_norms(N))), "now") == ""


def test_it_says_what_to_do_next_and_how_to_tell_causes_apart() -> None:
    for trace in (run(spikes(0.6)), of_epochs(0.6), spiked_rate(0.4)):
        assert titles(only_finding(trace), "next")
        assert titles(only_finding(trace), "check")


@pytest.mark.parametrize("kind", ["reward", "adversarial"])
def test_losses_that_need_not_fall_are_not_judged(kind: str) -> None:
    outcome = examine(RULE, run(spikes(0.6), loss_kind=kind))
    assert outcome.status is Status.ABSTAINED
    assert kind in (outcome.reason or "")


def test_too_few_finite_losses_are_too_few() -> None:
    loss = np.full(100, np.nan)
    loss[::4] = 1.0
    assert isinstance(RULE.check(make_trace(loss=loss), RULE.limits), Abstain)
