"""What the contract cannot know of `loss-scale-collapse`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from optdoctor.curves.scaler import scaler
from optdoctor.engine import diagnose, examine
from optdoctor.findings import Finding, Severity, Status
from optdoctor.readers import read
from optdoctor.rules.loss_scale_collapse import RULE
from optdoctor.synthetic import falling_loss, make_trace
from optdoctor.trace import Event, Trace

Floats = NDArray[np.float64]
LARGEST = 65504.0


class Kind(NamedTuple):
    """How a scaler works."""

    start: float = 2.0**16
    interval: int = 2000
    hysteresis: int = 1
    least: float = 0.0


KINDS = {
    "torch": Kind(),
    "lightning, every 200": Kind(interval=200),
    "every 20": Kind(interval=20),
    "deepspeed": Kind(interval=1000, hysteresis=2, least=1.0),
    "deepspeed, every 100": Kind(interval=100, hysteresis=2, least=1.0),
    "megatron": Kind(2.0**32, 1000, 2, 1.0),
    "fairseq": Kind(2.0**7, 256, 1, 1e-4),
    "icefall": Kind(1.0, 400),
}


class Course(NamedTuple):
    """The scale before each update, and whether it was skipped, [n] each."""

    scales: Floats
    skipped: NDArray[np.bool_]


def scaled(largest: Floats, kind: Kind) -> Course:
    """What a scaler does over the largest gradients [n] of each update."""
    scale, good, left = kind.start, 0, kind.hysteresis
    scales, skipped = np.empty(len(largest)), np.zeros(len(largest), bool)
    for row, gradient in enumerate(largest):
        scales[row] = scale
        if gradient * scale < LARGEST:
            good += 1
            if good == kind.interval:
                scale, good, left = 2 * scale, 0, kind.hysteresis
            continue
        skipped[row], good = True, 0
        if left > 1:
            left -= 1
        else:
            scale = max(scale / 2, kind.least)
    return Course(scales, skipped)


def gradients(rows: int, seed: int) -> Floats:
    """Largest gradients of a healthy run: they drift, warm up or calm down, with heavy tails."""
    rng = np.random.default_rng(seed)
    t = np.arange(rows)
    early = 1 + 10 ** rng.uniform(0, 2) * np.exp(-t / rng.uniform(5, 60))
    if rng.random() < 0.5:
        early = 1 / (1 + 10 ** rng.uniform(0, 1) * np.exp(-t / rng.uniform(20, 300)))
    drift = 10 ** (rng.uniform(-2, 0.7) * t / rows)
    noise = np.exp(rng.choice([0.1, 0.3, 0.6, 1.0]) * rng.standard_normal(rows))
    outliers = np.where(rng.random(rows) < 0.001, 10 ** rng.uniform(0.5, 3, rows), 1)
    return np.asarray(10 ** rng.uniform(-3, 0.5) * early * drift * noise * outliers)


def logged(course: Course, every: int = 1, how: str = "both", **more: Any) -> Trace:
    """A log of it: the scale in each row, rows of skipped updates, or both."""
    rows = len(course.scales)
    at = np.arange(every, rows + 1, every)
    channels: dict[str, Any] = {"loss": falling_loss(rows)[at - 1]}
    steps = {"loss": at}
    skipped = np.flatnonzero(course.skipped) + 1
    if how in ("both", "scale"):
        channels["loss_scale"], steps["loss_scale"] = course.scales[at - 1], at
    if how in ("both", "skipped"):
        channels["step_skipped"], steps["step_skipped"] = np.ones(skipped.size), skipped
    return make_trace({**channels, **more}, steps=steps)


def printed(course: Course, every: int) -> Trace:
    """A log that prints a row every so often and, before it, a line for each skipped update."""
    rows = len(course.scales)
    at, skipped = np.arange(every, rows + 1, every), np.flatnonzero(course.skipped) + 1
    group = np.searchsorted(at, skipped)
    place = np.append(0, at)[group] + 1 + np.arange(skipped.size) - np.searchsorted(group, group)
    return make_trace(
        loss=falling_loss(rows)[at - 1],
        step_skipped=np.ones(skipped.size),
        loss_scale=course.scales[skipped - 1],
        steps={"loss": at, "step_skipped": place, "loss_scale": place},
    )


def powers(exponents: Sequence[float], **more: Any) -> Trace:
    """A log of scales of 2 to these, a row each, and a loss beside them."""
    levels = np.asarray(exponents, np.float64)
    return make_trace(loss=falling_loss(levels.size), loss_scale=2.0**levels, **more)


def fallen(halvings: int, apart: int = 1, after: int = 60, start: int = 16) -> Trace:
    """From update 200 on so many halvings, so many updates apart, and then calm."""
    levels = np.full(200 + halvings * apart + after, float(start))
    for one in range(halvings):
        levels[200 + one * apart + 1 :] -= 1
    return powers(levels)


def broken(skipped: Sequence[int], rows: int = 400, scale: float = 1024.0) -> Trace:
    """These updates skipped at a scale that stays."""
    at = np.asarray(skipped, np.int64)
    return make_trace(
        loss=falling_loss(rows),
        loss_scale=np.full(rows, scale),
        step_skipped=np.ones(at.size),
        steps={"step_skipped": at},
    )


def ended(halvings: int) -> Trace:
    """Halvings in the last updates, each one told."""
    levels = np.full(300, 16.0)
    levels[300 - halvings :] -= np.arange(halvings)
    skipped = np.arange(301 - halvings, 301)
    return powers(levels, step_skipped=np.ones(halvings), steps={"step_skipped": skipped})


AT_LIMIT = {
    "skips": (lambda: fallen(4), lambda: fallen(5)),
    "share": (
        lambda: broken(range(200, 290, 10)),
        lambda: broken(range(200, 300, 10)),
    ),
    "standstill": (lambda: ended(9), lambda: ended(10)),
    "depth": (lambda: fallen(7, 30, start=12), lambda: fallen(8, 30, start=12)),
    "least_scale": (
        lambda: fallen(18, 30, start=6),
        lambda: fallen(19, 30, start=6),
    ),
}


def only_finding(trace: Trace) -> Finding:
    outcome = examine(RULE, trace)
    assert outcome.status is Status.FOUND, outcome.reason or outcome.missing
    (finding,) = outcome.findings
    return finding


def severity(trace: Trace) -> Severity | None:
    outcome = examine(RULE, trace)
    assert outcome.status is not Status.CRASHED, outcome.reason
    return outcome.findings[0].severity if outcome.findings else None


def is_silent(trace: Trace) -> bool:
    """No alarm; a note is none."""
    return severity(trace) in (None, Severity.NOTE)


def views(course: Course) -> list[Trace]:
    every = [logged(course, every, how) for every in (1, 10, 50) for how in ("both", "scale")]
    return [*every, logged(course, 10, "skipped"), printed(course, 10), printed(course, 100)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_scaler_that_works_is_silent(kind: str) -> None:
    size = {"icefall": 1e4, "fairseq": 1e2}.get(kind, 1.0)  # sums over frames and tokens
    for seed in range(12):
        course = scaled(size * gradients(2000, seed), KINDS[kind])
        for trace in views(course):
            assert is_silent(trace), (seed, examine(RULE, trace).findings)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["both", "skipped"])
def test_a_gradient_that_stays_nan_is_critical_since_its_first_step(kind: str, how: str) -> None:
    largest = np.full(500, 0.1)
    largest[300:] = np.nan
    finding = only_finding(logged(scaled(largest, KINDS[kind]), how=how))
    assert finding.severity is Severity.CRITICAL
    assert finding.steps == (301, 500)
    assert "skipped every update from step 301 to the end, 500: 200 in a row" in finding.summary
    assert "weights moved" not in finding.summary  # the loss went on as before


@pytest.mark.parametrize("every", [1, 10, 50])
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_found_from_the_scale_alone(kind: str, every: int) -> None:
    largest = np.full(500, 0.1)
    largest[300:] = np.nan
    trace = logged(scaled(largest, KINDS[kind]), every, "scale")
    finding = only_finding(trace)
    assert finding.severity is not Severity.NOTE
    chance = 25 if kind == "every 20" else 0  # one that was skipped in good health just before
    assert 301 - every - chance < finding.steps[0] <= 302  # hysteresis hides the first one


@pytest.mark.parametrize("share", [0.2, 0.5])
def test_updates_that_are_lost_at_random_are_found(share: float) -> None:
    rng = np.random.default_rng(0)
    largest = np.where((np.arange(1500) > 700) & (rng.random(1500) < share), np.nan, 0.1)
    for kind in KINDS.values():
        for trace in views(scaled(largest, kind)):
            assert not is_silent(trace)


def test_a_gradient_that_explodes_is_found() -> None:
    largest = 0.1 * 2.0 ** np.maximum(np.arange(600) - 400, 0)
    for kind in KINDS.values():
        for trace in views(scaled(largest, kind)):
            assert not is_silent(trace)


def test_a_long_search_is_silent_once_an_update_is_made() -> None:
    largest = np.full(200, 10.0)
    course = scaled(largest, KINDS["megatron"])
    assert course.skipped[:20].all()
    assert severity(logged(course)) is None
    assert severity(logged(course, every=50, how="scale")) is None


def test_a_search_after_a_resume_is_silent() -> None:
    again = np.tile(16.0 - np.minimum(np.arange(300), 9), 2)
    assert severity(powers(again)) is None
    later = np.arange(5001, 5301)
    resumed = {"loss": later, "loss_scale": later}
    levels = 16.0 - np.minimum(np.arange(300), 9)
    trace = make_trace(loss=falling_loss(300), loss_scale=2.0**levels, steps=resumed)
    assert severity(trace) is None  # it begins with a search
    later_on = 2.0 ** np.append(np.full(300, 16.0), levels)
    at = np.arange(4701, 5301)
    steps = {"loss": at, "loss_scale": at}
    trace = make_trace(loss=falling_loss(600), loss_scale=later_on, steps=steps)
    assert severity(trace) is Severity.WARN  # nothing tells that it is one
    events = [Event(5001, "resume")]
    trace = make_trace(loss=falling_loss(600), loss_scale=later_on, steps=steps, events=events)
    assert severity(trace) is None


def test_a_search_that_never_ends_is_critical() -> None:
    course = scaled(np.full(40, np.nan), KINDS["torch"])
    finding = only_finding(logged(course))
    assert finding.severity is Severity.CRITICAL
    assert finding.steps == (1, 40)
    assert severity(logged(scaled(np.full(40, np.nan), KINDS["deepspeed"]))) is Severity.CRITICAL


def skipping_since(step: int, nan_from: int) -> Trace:
    """400 updates that tell of no scale; the scaler skips all from that step on."""
    loss = falling_loss(400)
    loss[nan_from - 1 :] = np.nan
    at = np.arange(step, 401)
    return make_trace(loss=loss, step_skipped=np.ones(at.size), steps={"step_skipped": at})


def test_a_loss_that_breaks_after_a_skipped_update_says_that_the_weights_moved() -> None:
    finding = only_finding(skipping_since(301, 302))
    assert "at none of the 99 after it: the weights moved all the same, or" in finding.summary
    assert "may not heed the scaler" in finding.treatments[0].title
    for nan_from in (301, 303):  # it was broken before, or skipped updates left it as it was
        finding = only_finding(skipping_since(301, nan_from))
        assert "moved" not in finding.summary
        assert "heed" not in finding.treatments[0].title


def test_so_many_skipped_from_the_start_are_no_search_at_any_scale() -> None:
    def started(rows: int) -> Severity | None:
        return severity(make_trace(step_skipped=np.ones(rows)))

    assert started(43) is Severity.NOTE
    assert started(44) is Severity.CRITICAL


def passage(*levels: float) -> Trace:
    """Lines of skipped updates and nothing else."""
    scales = 2.0 ** np.array(levels)
    return make_trace(step_skipped=np.ones(len(levels)), loss_scale=scales)


def test_a_passage_of_skipped_updates_is_a_note_while_it_may_be_a_search() -> None:
    finding = only_finding(passage(16, 15, 14, 13, 12))
    assert finding.severity is Severity.NOTE
    assert "from 65,536 to 4,096" in finding.summary
    assert "search" in finding.summary
    assert severity(passage(*range(16, 3, -1))) is Severity.WARN
    assert severity(passage(*range(16, -1, -1))) is Severity.CRITICAL
    assert severity(passage(6, 5, 4, 3, 2)) is Severity.WARN  # no scaler starts at 64
    assert examine(RULE, passage(6, 5, 4, 3)).status is Status.ABSTAINED


@pytest.mark.parametrize(
    "line",
    [
        "[2026-01-02 03:04:05,678] [INFO] [loss_scaler.py:181:update_scale] [deepspeed] OVERFLOW!"
        " Rank 0 Skipping step. Attempted loss scale: {old}, reducing to {new}",
        "2026-01-02 03:04:25 | INFO | fairseq.trainer | NOTE: gradient overflow detected, ignoring"
        " gradient, setting loss scale to: {new}.0",
    ],
)
def test_a_pasted_passage_is_read_and_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "pasted.log"
    scales = [(2**k, 2 ** (k - 1)) for k in range(6, 0, -1)]
    path.write_text("".join(line.format(old=old, new=new) + "\n" for old, new in scales))
    finding = next(f for f in diagnose(read(path)).findings if f.rule == RULE.name)
    assert finding.severity is not Severity.NOTE
    assert finding.summary.startswith("Loss scale: 6 updates skipped")


def test_rows_every_hundred_steps_do_not_make_single_skips_a_crowd() -> None:
    largest = np.full(5000, 0.4)
    course = scaled(largest, KINDS["every 20"])
    assert int(course.skipped.sum()) > 100  # one in 20, never two in a row
    assert is_silent(printed(course, 1000))
    assert is_silent(printed(course, 1))


def test_a_low_scale_of_gradients_that_grew_slowly_is_a_note() -> None:
    finding = only_finding(fallen(8, 400, start=12))
    assert finding.severity is Severity.NOTE
    assert "8 halvings" in finding.summary


def test_a_fall_to_a_scale_that_loses_no_gradient_is_silent() -> None:
    assert severity(fallen(8, 30, start=16)) is None


def test_ten_halvings_up_to_the_last_row_are_a_standstill_without_any_word_of_skips() -> None:
    falling = 16.0 - np.maximum(np.arange(300) - 289, 0)
    assert severity(powers(falling)) is Severity.CRITICAL
    assert severity(powers(falling[:-1])) is Severity.WARN


def test_a_scale_that_halves_from_the_start_on_and_is_held_between_is_no_search() -> None:
    levels = 16.0 - np.minimum(np.arange(300) // 10, 40)
    finding = only_finding(powers(levels))
    assert finding.severity is Severity.CRITICAL
    assert finding.steps[0] == 10
    assert "after 65,536 until step 10: 29 halvings" in finding.summary
    assert "29 updates skipped" in finding.summary
    assert severity(powers(levels[:60])) is None
    to_four = only_finding(powers(16.0 - np.minimum(np.arange(300) // 10, 14)))
    assert "Loss scale: 4 at step 300, after 65,536 until step 10: 14 halvings" in to_four.summary
    to_256 = only_finding(powers(20.0 - np.minimum(np.arange(300) // 10, 12)))
    assert "11 updates skipped from step 20 to 121" in to_256.summary
    assert severity(powers(16.0 - np.minimum(np.arange(300) // 7, 40))) is Severity.CRITICAL


def test_ten_in_a_row_up_to_the_end_are_no_search_where_updates_were_made_before() -> None:
    def begun(made: int, skipped: int) -> Trace:
        levels = np.append(np.full(made, 16.0), 16.0 - np.arange(skipped))
        at = np.arange(made + 1, made + skipped + 1)
        return powers(levels, step_skipped=np.ones(skipped), steps={"step_skipped": at})

    assert severity(begun(59, 10)) is Severity.CRITICAL
    assert severity(begun(59, 9)) is None
    assert severity(begun(1, 10)) is None


OVERFLOW = "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {}, reducing to {}\n"
RAISED = (
    "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run."
)


@pytest.mark.parametrize("error", [RAISED, ""])
def test_a_log_that_ends_in_overflows_tells_the_newest_scale(error: str, tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    rows = [f"{{'loss': {9 - 0.02 * row:.3f}, 'epoch': {row / 100}}}\n" for row in range(1, 60)]
    lines = [OVERFLOW.format(2**k, 2 ** (k - 1)) for k in range(16, 0, -1)]
    path.write_text("".join([*rows, *lines, error]))
    finding = next(f for f in diagnose(read(path)).findings if f.rule == RULE.name)
    assert finding.severity is Severity.CRITICAL
    assert "from 65,536 to 1." in finding.summary
    assert "after step 59" in finding.summary
    assert ("ended the run" in finding.summary) is bool(error)
    assert f"{17 if error else 16} " in finding.summary
    assert finding.treatments[0].title.startswith("Repeat the update after step 59")


def test_a_scale_at_its_floor_need_not_fall() -> None:
    at = range(300, 320, 4)
    assert severity(broken(at, scale=1.0)) is Severity.WARN
    assert severity(broken(at, scale=1024.0)) is None


def test_a_scale_of_zero_is_a_run_that_stands_still() -> None:
    scales = np.where(np.arange(400) < 250, 2.0**16, 0.0)
    finding = only_finding(make_trace(loss=falling_loss(400), loss_scale=scales))
    assert "the scaler skipped every update" in finding.summary
    assert finding.steps == (250, 400)


def test_a_search_from_a_scale_of_one_is_silent() -> None:
    falling = np.concatenate([np.zeros(20), -np.arange(6.0)])
    assert severity(powers(falling)) is None
    assert severity(powers([*falling, *[-6] * 200])) is None


def test_ten_skipped_updates_in_the_midst_are_a_warning_with_their_numbers() -> None:
    largest = np.full(1000, 0.1)
    largest[400:410] = np.inf
    finding = only_finding(logged(scaled(largest, KINDS["torch"])))
    assert finding.severity is Severity.WARN
    assert finding.steps == (401, 410)
    assert "10 updates skipped from step 401 to 410" in finding.summary
    assert "from 65,536 to" in finding.summary


def test_a_real_scaler_on_a_healthy_and_on_a_broken_run() -> None:
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)

    def train(broken_at: int) -> Trace:
        torch.manual_seed(0)
        model = torch.nn.Linear(8, 1)
        for parameter in model.parameters():  # as a backward pass in float16 gives it
            parameter.register_hook(lambda gradient: gradient.half().float())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        scale = torch.amp.GradScaler("cpu", growth_interval=50)
        losses, scales = [], []
        for step in range(1, 401):
            inputs = torch.randn(16, 8)
            if step >= broken_at:
                inputs[3, 5] = float("nan")
            loss = torch.nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
            optimizer.zero_grad()
            scale.scale(loss).backward()
            scales.append(scale.get_scale())
            scale.step(optimizer)
            scale.update()
            losses.append(loss.item())
        return make_trace(loss=np.array(losses), loss_scale=np.array(scales))

    assert is_silent(train(1000))
    finding = only_finding(train(251))
    assert finding.severity is Severity.CRITICAL
    assert finding.steps[0] == 251


def test_a_thinned_run_keeps_its_judgement() -> None:
    largest = np.full(4000, 0.1)
    largest[3000:] = np.nan
    trace = logged(scaled(largest, KINDS["torch"]))
    whole, thin = only_finding(trace), only_finding(trace.thinned(500))
    assert thin.severity is whole.severity is Severity.CRITICAL
    assert abs(thin.steps[0] - whole.steps[0]) <= 8
    assert "1,000 in a row" in thin.summary


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 10**6), st.integers(0, 100), st.floats(0.1, 0.6))
def test_the_verdict_moves_with_the_steps_and_ends_with_a_healthy_tail(
    shift: int, seed: int, at: float
) -> None:
    largest = gradients(600, seed)
    largest[150 + int(at * 400) :] = np.nan
    course = scaled(largest, KINDS["torch"])
    rows = np.arange(1, 601)
    first = only_finding(logged(course)).steps[0]
    skipped = np.flatnonzero(course.skipped) + 1
    steps = {"loss": rows + shift, "loss_scale": rows + shift, "step_skipped": skipped + shift}
    moved = make_trace(
        loss=falling_loss(600),
        loss_scale=course.scales,
        step_skipped=np.ones(skipped.size),
        steps=steps,
    )
    assert only_finding(moved).severity is Severity.CRITICAL
    assert only_finding(moved).steps[0] in (first, first + shift)
    tail = Course(
        np.append(course.scales, np.full(300, 2.0**10)), np.append(course.skipped, [False] * 300)
    )
    assert severity(logged(tail)) is Severity.WARN


def test_scales_of_any_size_crash_nothing() -> None:
    for value in (0.0, 1e300, 1e-300, np.inf, np.nan, -1.0):
        scales = np.full(60, 2.0**16)
        scales[30:] = value
        assert severity(make_trace(loss=falling_loss(60), loss_scale=scales)) is not Severity.NOTE


def test_skipped_updates_between_two_rows_are_spread_over_the_steps_between() -> None:
    trace = make_trace(
        loss=[3.0, 2.0, 1.0],
        step_skipped=np.ones(4),
        steps={"loss": [100, 200, 300], "step_skipped": [101, 102, 103, 104]},
    )
    assert scaler(trace).steps.tolist() == [120, 140, 160, 180]
    assert scaler(trace).told.tolist() == [101, 102, 103, 104]


def test_treatments_are_those_that_can_help() -> None:
    finding = only_finding(RULE.sick())
    titles = "; ".join(t.title for t in finding.treatments)
    assert "bfloat16" in titles
    assert "clip" not in titles.lower()
    assert "loss_scale" not in titles
    half = make_trace(
        loss=falling_loss(60), loss_scale=2.0 ** -np.arange(60), compute_dtype="float16"
    )
    changes = [dict(t.changes) for t in only_finding(half).treatments if t.changes]
    assert changes == [{"compute_dtype": ("float16", "bfloat16")}]


@pytest.mark.parametrize("grown", [1.0, 20.0])
def test_a_lower_rate_is_offered_where_the_gradient_had_grown(grown: float) -> None:
    sick = RULE.sick()
    norms = np.ones(400)
    norms[290:300], norms[300:] = grown, np.nan
    steps = {name: series.steps for name, series in sick.series.items()}
    values = {name: series.values for name, series in sick.series.items()}
    trace = make_trace(values, grad_norm=norms, steps=steps)
    titles = "; ".join(t.title for t in only_finding(trace).treatments)
    assert ("a lower learning rate: the gradient norm had grown 20 times" in titles) == (grown > 3)


def test_a_nan_loss_before_it_is_named_as_its_cause() -> None:
    sick = RULE.sick()
    loss = falling_loss()
    loss[250:] = np.nan
    steps = {name: series.steps for name, series in sick.series.items()}
    values = {name: series.values for name, series in sick.series.items()}
    trace = make_trace({**values, "loss": loss}, steps=steps)
    finding = next(f for f in diagnose(trace).findings if f.rule == RULE.name)
    assert finding.causes.found == ("nan-pulse",)
