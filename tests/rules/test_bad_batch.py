"""What the contract cannot know of `bad-batch`."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from optdoctor.engine import examine
from optdoctor.findings import Finding, Severity, Status
from optdoctor.rules import bad_batch
from optdoctor.rules.bad_batch import RULE
from optdoctor.synthetic import falling_loss, gradient_norms, make_trace
from optdoctor.trace import Recorder, Trace, Vitals

Floats = NDArray[np.float64]


def level(rows: int = 200) -> Floats:
    """Losses that begin at 20, so that 1 is added before the logarithm, and stand at 3: level 2."""
    loss = np.full(rows, 3.0)
    loss[:3] = 20
    return loss


def spiked(at: list[int], doublings: float, norm: float = 64.0, rows: int = 200) -> Trace:
    """A level loss that rises by so many doublings at these rows, and the norm `norm`-fold."""
    loss, norms = level(rows), np.ones(rows)
    loss[at] = 2.0 ** (2 + doublings) - 1
    norms[at] = norm
    return make_trace(loss=loss, grad_norm=norms)


def joint(deviations: float) -> Trace:
    """A rise of the loss of 2 doublings beside one of the norm of so many standard deviations."""
    return spiked([100], 2.0, norm=2 ** (0.1 * deviations))


AT_LIMIT = {
    "deviations": (lambda: joint(6.0), lambda: joint(6.01)),
    "blip": (lambda: spiked([100], 1.0), lambda: spiked([100], 1.01)),
    "few": (
        lambda: spiked([50, 80, 110], 0.8),
        lambda: spiked([50, 80, 110, 140], 0.8),
    ),
}


def only_finding(trace: Trace) -> Finding:
    outcome = examine(RULE, trace)
    assert outcome.status is Status.FOUND, outcome.reason
    (finding,) = outcome.findings
    return finding


def said(finding: Finding) -> str:
    return " ".join(evidence.what for evidence in finding.evidence)


def test_a_single_rise_below_a_doubling_is_never_an_alarm() -> None:
    finding = only_finding(spiked([100], 0.9))
    assert (finding.severity, finding.steps) == (Severity.NOTE, (101, 101))
    assert only_finding(spiked([100], 2.0)).severity is Severity.WARN


@pytest.mark.parametrize("alone", ["loss", "grad_norm"])
def test_the_loss_alone_and_the_norm_alone_never_count(alone: str) -> None:
    both = spiked([50, 90, 130, 170], 3.0)
    steady = np.asarray(both.series["loss" if alone == "grad_norm" else "grad_norm"].values).copy()
    steady[[50, 90, 130, 170]] = steady[10]
    other = "loss" if alone == "grad_norm" else "grad_norm"
    channels = {alone: both.series[alone].values, other: steady}
    assert examine(RULE, make_trace(channels)).status is Status.CLEAR


def test_a_rise_of_the_norm_one_step_later_is_not_of_the_same_batch() -> None:
    loss, norm = level(), np.ones(200)
    loss[100], norm[101] = 20, 64
    assert examine(RULE, make_trace(loss=loss, grad_norm=norm)).status is Status.CLEAR


def test_a_loss_that_stays_up_is_no_batch_and_it_says_so() -> None:
    loss, norm = level(), np.ones(200)
    loss[100:], norm[100] = 20, 64
    outcome = examine(RULE, make_trace(loss=loss, grad_norm=norm))
    assert outcome.status is Status.ABSTAINED
    assert "step 101 and the loss stayed up" in str(outcome.reason)


def test_one_low_row_after_a_rise_is_no_return() -> None:
    loss, norm = level(), np.ones(200)
    loss[100:], loss[101], norm[100] = 20, 3, 64
    assert examine(RULE, make_trace(loss=loss, grad_norm=norm)).status is Status.ABSTAINED


def test_zeros_that_stand_for_nan_are_no_return() -> None:
    loss, norm = level(), np.ones(200)
    loss[100], norm[100] = 20, 64
    loss[101:], norm[101:] = 0, np.nan
    assert examine(RULE, make_trace(loss=loss, grad_norm=norm)).status is Status.ABSTAINED


def test_how_high_a_loss_rose_that_is_not_finite_is_not_known() -> None:
    loss, norm = level(), np.ones(200)
    loss[100] = norm[100] = np.nan
    outcome = examine(RULE, make_trace(loss=loss, grad_norm=norm))
    assert (outcome.status, outcome.reason) == (
        Status.ABSTAINED,
        "losses not finite, 1 of them: how high they rose is not known",
    )


def test_a_swing_that_grows_over_rows_is_no_batchs() -> None:
    """At the edge of stability loss and gradient rise together for some rows, and fall back."""
    swing, file = level(), level()
    swing[100:105] = [4, 8, 20, 8, 4]
    file[100:105] = 20
    norm = np.ones(200)
    norm[100:105] = 64
    assert examine(RULE, make_trace(loss=file, grad_norm=norm)).status is Status.FOUND
    assert examine(RULE, make_trace(loss=swing, grad_norm=norm)).findings == ()


def test_a_norm_that_was_not_measured_at_the_step_of_the_loss_is_not_its_batchs() -> None:
    norm_steps = [step for step in range(1, 201) if step != 101]
    norm = np.ones(199)
    norm[100] = 64  # of step 102
    loss = level()
    loss[100] = 20
    trace = make_trace(loss=loss, grad_norm=norm, steps={"grad_norm": norm_steps})
    assert examine(RULE, trace).status is Status.CLEAR


def test_norms_of_zero_are_left_out() -> None:
    trace = spiked([100], 2.0)
    norm = np.asarray(trace.series["grad_norm"].values).copy()
    norm[10:20] = 0
    assert only_finding(make_trace(loss=trace.series["loss"].values, grad_norm=norm))
    gone = examine(RULE, make_trace(loss=level(), grad_norm=np.zeros(200)))
    assert (gone.status, gone.reason) == (Status.ABSTAINED, "no norm is a positive number")


def test_a_rise_that_builds_up_or_fades_over_many_rows_is_no_batch() -> None:
    for shape in (
        [2, 4, 8, 16, 32, 28, 20, 14, 10, 7, 5, 3],
        [32, 28, 24, 21, 18, 16, 14, 12, 10, 8, 6, 4],
    ):
        loss, norm = level(), np.ones(200)
        loss[100 : 100 + len(shape)] *= shape
        norm[100 : 100 + len(shape)] *= np.square(shape)
        assert examine(RULE, make_trace(loss=loss, grad_norm=norm)).status is not Status.FOUND


def struck(losses: list[float], norms: list[float], at: tuple[int, ...] = (100,)) -> Trace:
    """A level run with these losses, and norms as multiples of the usual, from each row on."""
    loss, norm = level(400), np.ones(400)
    for row in at:
        loss[row : row + len(losses)], norm[row : row + len(norms)] = losses, norms
    return make_trace(loss=loss, grad_norm=norm)


MOMENTUM = [400.0, 30, 60, 40, 30, 25, 20, 17, 15, 13, 11, 9, 8, 7, 6, 5, 4]
"""Losses from a bad batch on, whose gradient is in the momentum and moves the weights on."""


def test_a_batch_whose_update_raised_the_loss_for_long_is_found() -> None:
    finding = only_finding(struck(MOMENTUM, [64, 20, 20]))
    assert finding.summary.startswith("A batch raises loss and gradient norm at once at step 101:")
    fading = [400.0, 250, 200, 150, 120, 100, *MOMENTUM[1:]]
    assert examine(RULE, struck(fading, [64, 50, 40])).status is Status.ABSTAINED


def test_a_rise_just_after_a_norm_that_stood_out_is_the_work_of_that_update() -> None:
    after = [4.0, 3.5, 40, 30, 20]  # the loss of the batch itself does not stand out
    assert examine(RULE, struck(after, [64, 1, 16, 8, 4])).status is Status.CLEAR
    assert only_finding(struck(after, [1, 1, 16, 8, 4])).steps[0] == 103


def test_one_rise_that_stayed_up_does_not_hide_others_that_came_back() -> None:
    trace = struck(MOMENTUM, [64, 20, 20], at=(100, 200, 300))
    loss = np.asarray(trace.series["loss"].values).copy()
    loss[100:117] = np.linspace(200, 4, 17)
    finding = only_finding(make_trace(loss=loss, grad_norm=trace.series["grad_norm"].values))
    assert "2 times, a batch raises" in finding.summary
    assert "from step 201 to step 301" in finding.summary
    assert finding.steps == (201, 303), "until the loss is back by half"


def test_of_clipped_norms_nothing_is_known() -> None:
    trace = spiked([100], 2.0)
    loss, norm = trace.series["loss"].values, trace.series["grad_norm"].values
    assert only_finding(make_trace(loss=loss, grad_norm_used=norm))
    clipped = make_trace(loss=loss, grad_norm_used=np.minimum(norm, 1.0), max_grad_norm=1.0)
    assert examine(RULE, clipped).status is Status.ABSTAINED


def test_a_file_of_a_few_bad_batches_counts_once() -> None:
    finding = only_finding(spiked([100, 101, 102], 2.0))
    assert finding.summary.startswith("3 batches in a row raise loss")
    assert [t.changes for t in finding.treatments if t.changes] == []
    assert finding.steps == (101, 103)


def test_a_file_whose_norm_rises_twice_counts_once() -> None:
    trace = spiked(list(range(100, 108)), 2.0)
    norm = np.ones(200)
    norm[[100, 106]] = 64
    finding = only_finding(make_trace(loss=trace.series["loss"].values, grad_norm=norm))
    assert finding.summary.startswith("8 batches in a row")


def test_what_comes_soon_after_a_rise_that_stayed_is_not_judged() -> None:
    loss, norm = level(), np.ones(200)
    loss[100:], norm[100] = 20, 64
    loss[[120, 130]], norm[[120, 130]] = 300, 64
    assert examine(RULE, make_trace(loss=loss, grad_norm=norm)).status is Status.ABSTAINED


def test_a_file_of_many_bad_batches_is_no_blip_however_low() -> None:
    assert only_finding(spiked([100, 101, 102], 0.9)).severity is Severity.NOTE
    assert only_finding(spiked([100, 101, 102, 103], 0.9)).severity is Severity.WARN
    longest = list(range(100, 116))
    assert only_finding(spiked(longest, 2.0)).steps == (101, 116)
    assert examine(RULE, spiked([*longest, 116], 2.0)).status is Status.ABSTAINED


def test_what_follows_the_newest_rise_is_waited_for() -> None:
    assert examine(RULE, spiked([100], 2.0, rows=103)).status is Status.CLEAR
    assert only_finding(spiked([100], 2.0, rows=104)).steps == (101, 101)


def test_the_newest_of_several_is_not_waited_for() -> None:
    assert only_finding(spiked([60, 100], 2.0, rows=101)).steps == (61, 101)


def test_summary_evidence_and_steps_speak_of_the_same_batches() -> None:
    trace = spiked([40, 80, 120], 2.0)
    loss = np.asarray(trace.series["loss"].values).copy()
    loss[120] *= 2
    finding = only_finding(make_trace(loss=loss, grad_norm=trace.series["grad_norm"].values))
    assert finding.steps == (41, 121)
    assert "from step 41 to step 121, most at step 121: the loss" in finding.summary
    of_loss, of_norm, *_ = finding.evidence
    assert of_loss.what.startswith("loss at step 121 ")
    assert of_norm.what.startswith("gradient norm at step 121 ")


def test_spikes_in_a_run_that_is_lost_already_are_not_the_batches() -> None:
    trace = spiked([150, 170, 190], 2.0, rows=250)
    drifted = np.asarray(trace.series["loss"].values) * np.where(np.arange(250) < 50, 0.1, 1.0)
    drifted[:3] = 20
    lost = make_trace(loss=drifted, grad_norm=trace.series["grad_norm"].values)
    assert examine(RULE, lost).status is Status.CLEAR


def test_a_constant_distance_is_told_with_its_steps() -> None:
    finding = only_finding(spiked([40, 80, 120, 160], 1.5))
    assert "constant: 40 steps apart" in said(finding)
    irregular = only_finding(spiked([40, 55, 120, 170], 1.5))
    assert "not constant" in said(irregular)


def test_the_batch_is_named_where_the_run_records_it() -> None:
    trace = spiked([40, 80, 120, 160], 1.5)
    steps = np.arange(200)
    known = make_trace(
        {name: trace.series[name].values for name in ("loss", "grad_norm")},
        batch_index=steps % 40,
        epoch=steps / 40,
    )
    finding = only_finding(known)
    of_batch = next(e for e in finding.evidence if e.channel == "batch_index")
    assert (of_batch.observed, of_batch.what) == (4, "of them at batch 0 of an epoch")
    of_epoch = next(e for e in finding.evidence if e.channel == "epoch")
    assert of_epoch.observed == pytest.approx(3)


def test_means_over_many_updates_are_not_judged() -> None:
    trace = spiked([100], 2.0)
    facts = {**trace.facts, "loss_window": 10}
    assert examine(RULE, replace(trace, facts=facts)).status is Status.ABSTAINED
    assert examine(RULE, replace(trace, facts={"loss_window": 1})).status is Status.FOUND


def test_a_rise_one_step_after_a_rate_that_jumped_is_not_the_batch() -> None:
    trace = spiked([100, 140], 2.0)
    channels = {name: trace.series[name].values for name in ("loss", "grad_norm")}
    rates = np.full(200, 1e-3)
    assert examine(RULE, make_trace(channels, lr=rates)).status is Status.FOUND
    rates[[99, 139]] = 2e-3
    assert examine(RULE, make_trace(channels, lr=rates)).status is Status.CLEAR


def test_rows_that_are_many_steps_apart_are_not_judged() -> None:
    trace = spiked([100], 2.0)
    channels = {name: trace.series[name].values for name in ("loss", "grad_norm")}
    for distance, status in ((1, Status.FOUND), (4, Status.FOUND), (5, Status.ABSTAINED)):
        steps = dict.fromkeys(channels, np.arange(1, 201) * distance)
        assert examine(RULE, make_trace(channels, steps=steps)).status is status


@pytest.mark.parametrize("kind", ["reward", "adversarial", "diffusion"])
def test_losses_that_jump_in_good_runs_are_not_judged(kind: str) -> None:
    trace = replace(spiked([100], 2.0), facts={"loss_kind": kind})
    assert examine(RULE, trace).status is Status.ABSTAINED


def test_losses_below_zero_are_not_judged() -> None:
    loss = falling_loss() - 3.0
    outcome = examine(RULE, make_trace(loss=loss, grad_norm=gradient_norms()))
    assert outcome.status is Status.ABSTAINED


def test_a_norm_of_few_samples_beside_one_of_every_step_does_not_hide_it() -> None:
    trace = spiked([100], 2.0)
    sampled = make_trace(
        {name: trace.series[name].values for name in ("loss", "grad_norm")},
        grad_norm_used=np.ones(5),
        steps={"grad_norm_used": [1, 40, 80, 120, 160]},
    )
    assert only_finding(sampled).severity is Severity.WARN


def test_a_rise_in_rows_that_were_thinned_is_found_at_its_step() -> None:
    recorder = Recorder(step_capacity=256)
    loss, norm = falling_loss(2000), gradient_norms(2000)
    loss[1500] *= 4
    norm[1500] *= 100
    for step in range(2000):
        values = {"loss": float(loss[step]), "grad_norm": float(norm[step])}
        recorder.add(Vitals(step + 1, values))
    assert only_finding(recorder.trace({})).steps[0] == 1501


def test_clipping_is_not_offered_where_a_rise_lasts_or_clips_already() -> None:
    def knobs(trace: Trace) -> list[dict[str, Any]]:
        return [dict(t.changes) for t in only_finding(trace).treatments if t.changes]

    trace = spiked([50, 80], 2.0)
    assert knobs(trace) == [{"max_grad_norm": (None, 1.5)}]
    assert knobs(replace(trace, facts={"max_grad_norm": 5.0})) == [{"max_grad_norm": (5.0, 1.5)}]
    assert knobs(replace(trace, facts={"max_grad_norm": 1.0})) == []
    loss, norm = (np.asarray(trace.series[n].values).copy() for n in ("loss", "grad_norm"))
    loss[150:], norm[150] = 20, 64
    assert knobs(make_trace(loss=loss, grad_norm=norm)) == []


@pytest.mark.parametrize("rows", [10, 32, 33, 64, 65, 150])
def test_what_is_usual_is_that_of_the_obvious_calculation(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bad_batch, "BLOCK", 40)
    trace = make_trace(loss=falling_loss(rows, noise=0.2))
    found = bad_batch._against_usual(trace.series["loss"], 0.1, "loss")
    levels = np.log2(trace.series["loss"].values + 0.1)
    for row, level in enumerate(levels):
        before = levels[max(row - 64, 0) : row]
        if row < 32:
            assert np.isnan(found.score[row])
            continue
        change = np.diff(before)
        spread = 1.4826 * np.median(np.abs(change - np.median(change))) / np.sqrt(2)
        rise = level - max(np.median(before), np.median(before[-5:]))
        assert found.middle[row] == pytest.approx(np.median(before))
        assert found.score[row] == pytest.approx(rise / max(spread, 0.05), abs=1e-8)


@pytest.mark.parametrize("noise", [0.02, 0.1, 0.3])
def test_noise_that_loss_and_norm_share_is_healthy(noise: float) -> None:
    """The hard batches of a small-batch run raise both, each time and by little."""
    for seed in range(10):
        hard = noise * np.random.default_rng(seed).standard_normal(2000)
        clean = falling_loss(2000, noise=0)
        trace = make_trace(loss=clean * np.exp(hard), grad_norm=np.exp(2 * hard))
        assert examine(RULE, trace).status is Status.CLEAR


# A treatment is tried: SGD runs that batches with targets 200 times too large lose.

FIRST, LATER = 6.0, 200.0
"""How many times too large the targets of the first bad batch are, and those of the others."""


def trained(seed: int, *, bad: bool, clip: float = float("inf")) -> tuple[Trace, float]:
    """A regression by SGD whose batches 100, 150, 200 and 250 are bad; clipped from 110 on.

    Returns the trace, and the loss on held-out data at the end.
    """
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    teacher = torch.randn(8, 1)

    def batch(size: int) -> tuple[Any, Any]:
        inputs = torch.randn(size, 8)
        return inputs, torch.tanh(inputs @ teacher) + 0.3 * torch.randn(size, 1)

    losses, norms = [], []
    for step in range(300):
        inputs, target = batch(16)
        factor = 1.0
        if bad and step >= 100 and step % 50 == 0:
            factor = FIRST if step == 100 else LATER
        loss = torch.nn.functional.mse_loss(model(inputs), factor * target)
        optimizer.zero_grad()
        loss.backward()
        bound = clip if step >= 110 else float("inf")
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), bound)))
        optimizer.step()
        losses.append(float(loss.detach()))
    inputs, target = batch(512)
    with torch.no_grad():
        held_out = float(torch.nn.functional.mse_loss(model(inputs), target))
    return make_trace(loss=np.array(losses), grad_norm=np.array(norms)), held_out


@pytest.mark.parametrize("seed", range(3))
def test_the_clip_that_is_proposed_rescues_the_run(seed: int) -> None:
    _, healthy = trained(seed, bad=False)
    sick, lost = trained(seed, bad=True)
    assert lost > 10 * healthy
    at_110 = {name: sick.series[name].values[:110] for name in ("loss", "grad_norm")}
    (now,) = (t for t in only_finding(make_trace(at_110)).treatments if t.when == "now")
    _, bound = now.changes["max_grad_norm"]
    _, rescued = trained(seed, bad=True, clip=float(str(bound)))
    assert rescued < 1.05 * healthy


def test_the_number_shown_is_the_plain_ratio_of_the_loss_to_the_median_before() -> None:
    losses = level(rows=200)
    losses[100] = 15.0
    norm = np.ones(200)
    norm[100] = 64
    finding = only_finding(make_trace(loss=losses, grad_norm=norm))
    assert "at step 101: the loss 5-fold, " in finding.summary
    height = finding.evidence[2]
    assert (height.observed, height.unit) == (5.0, "times")
    assert height.limit == pytest.approx((2 * (3 + 1) - 1) / 3)  # a doubling of the loss + 1


@pytest.mark.parametrize(("doublings", "beyond"), [(0.9, False), (1.0, False), (1.01, True)])
def test_the_ratio_stands_on_the_side_of_its_limit_that_was_judged(
    doublings: float, beyond: bool
) -> None:
    finding = only_finding(spiked([100], doublings))
    height = next(e for e in finding.evidence if e.unit == "times")
    assert (finding.severity is Severity.WARN) is beyond
    assert (height.observed > height.limit * (1 + 1e-9)) is beyond


def test_a_height_within_its_limit_is_no_evidence_of_an_alarm_by_number() -> None:
    finding = only_finding(spiked([50, 80, 110, 140], 0.8))
    assert finding.severity is Severity.WARN
    assert all(e.observed > e.limit for e in finding.evidence if e.unit in ("times", "rows"))


def test_a_loss_that_rises_from_nothing_has_no_ratio() -> None:
    loss, norm = level(), np.ones(200)
    loss[3:] = 0.0
    loss[100], norm[100] = 20.0, 64.0
    finding = only_finding(make_trace(loss=loss, grad_norm=norm))
    assert "the loss from 0 to 20, " in finding.summary
    height = finding.evidence[2]
    assert (height.observed, height.limit, height.unit) == (20.0, 1.0, "loss")


def test_the_nearest_rows_are_in_the_limit_where_they_are_higher() -> None:
    loss, norm = level(), np.ones(200)
    loss[90:100], loss[100], norm[100] = 4.0, 20.0, 64.0
    finding = only_finding(make_trace(loss=loss, grad_norm=norm))
    assert "the loss 6.67-fold, " in finding.summary, "over the median of 64 rows, 3"
    assert finding.evidence[2].limit == pytest.approx((2 * (4 + 1) - 1) / 3)


@pytest.mark.parametrize("kind", ["reward", "adversarial", "diffusion"])
def test_the_reason_fits_the_foot_of_a_report(kind: str) -> None:
    reason = examine(RULE, replace(spiked([100], 2.0), facts={"loss_kind": kind})).reason or ""
    assert reason.endswith(f"{kind} loss jumps in a good run")
    assert len(reason) <= 40
