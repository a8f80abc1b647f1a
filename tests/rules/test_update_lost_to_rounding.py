"""What the contract cannot know of `update-lost-to-rounding`."""

from typing import Any

import numpy as np
import pytest

from optdoctor.engine import examine
from optdoctor.findings import Finding, Severity, Status
from optdoctor.rules.update_lost_to_rounding import RULE
from optdoctor.synthetic import make_trace
from optdoctor.trace import TensorInfo, Trace

RATE = 2.0**-17
MOVED, STILL = TensorInfo("moved", (300,)), TensorInfo("still", (700,))


def run(
    unmoved: Any,
    tensors: tuple[TensorInfo, ...] = (STILL,),
    *,
    dtype: str = "bfloat16",
    rate: Any = RATE,
    samples: int = 3,
    **more: Any,
) -> Trace:
    """A run; `unmoved` and `rate` are [T, P], [P] of samples alike, or one number."""
    shape = (samples, len(tensors))
    rows = np.asarray(unmoved, float)
    rows = rows if rows.ndim == 2 else np.broadcast_to(rows, shape)
    channels = {k: np.broadcast_to(v, rows.shape) for k, v in more.items() if k in CHANNELS}
    facts = {k: v for k, v in more.items() if k not in CHANNELS}
    return make_trace(
        channels,
        update_unchanged=rows,
        tensor_lr=np.broadcast_to(rate, rows.shape),
        param_dtype=dtype,
        tensors=tensors,
        **facts,
    )


CHANNELS = ("update_rms", "update_realized", "update_ratio", "param_rms", "grad_rms")


def lost_of(thousand: int) -> Trace:
    """That many unmoved weights of 1000."""
    tensors = TensorInfo("still", (thousand,)), TensorInfo("moved", (1000 - thousand,))
    return run([1.0, 0.0], tensors)


def in_a_row(samples: int) -> Trace:
    return run([[0.0]] + [[1.0]] * samples + [[0.0]])


def rates(*several: float) -> Trace:
    """A run whose rate was highest first."""
    return run(1.0, rate=np.array(several)[:, None], samples=len(several))


def moving(rates_far: float) -> Trace:
    """2 of 8 weights at most can have moved, half the rms of all: that far, in learning rates."""
    return run(1.0, (TensorInfo("small", (8,)),), update_rms=RATE * rates_far / 2)


def of_family(family: str, samples: int) -> Trace:
    """All is lost in every update."""
    return run(1.0, samples=samples, optimizer_family=family)


AT_LIMIT = {
    "noted": (lambda: lost_of(600), lambda: lost_of(601)),
    "share": (lambda: lost_of(700), lambda: lost_of(701)),
    "total": (lambda: lost_of(900), lambda: lost_of(901)),
    "passing": (lambda: in_a_row(2), lambda: in_a_row(3)),
    "near_peak": (
        lambda: rates(1.0, 0.5, 0.5, 0.5),
        lambda: rates(1.0, *[float(np.nextafter(np.float32(0.5), 1))] * 3),
    ),
    "own_warmup": (lambda: of_family("radam", 34), lambda: of_family("radam", 35)),
    "kept": (
        lambda: run(1.0, update_realized=float(np.nextafter(np.float32(0.875), 1))),
        lambda: run(1.0, update_realized=0.875),
    ),
    "farthest": (lambda: moving(float(np.nextafter(np.float32(1.5), 2))), lambda: moving(1.5)),
}


def only_finding(trace: Trace) -> Finding:
    outcome = examine(RULE, trace)
    assert outcome.status is Status.FOUND, outcome.reason
    (finding,) = outcome.findings
    return finding


def is_clear(trace: Trace) -> bool:
    return examine(RULE, trace).status is Status.CLEAR


@pytest.mark.parametrize(
    ("thousand", "severity"),
    [(650, Severity.NOTE), (750, Severity.WARN), (950, Severity.CRITICAL)],
)
def test_the_more_is_lost_the_graver_it_is(thousand: int, severity: Severity) -> None:
    finding = only_finding(lost_of(thousand))
    assert finding.severity is severity
    assert finding.steps == (1, 3)
    assert finding.evidence[0].observed == pytest.approx(thousand / 10)


def test_it_speaks_in_the_third_sample_and_names_the_tensors() -> None:
    finding = only_finding(run([1.0, 0.2], (STILL, MOVED), samples=3))
    assert finding.steps == (1, 3)
    assert finding.tensors == ("still",)
    assert "76 % of the bfloat16 weights" in finding.summary


def test_what_moved_stands_beside_what_the_format_needs() -> None:
    evidence = only_finding(run(0.95, update_ratio=0.0014)).evidence[-1]
    assert evidence.what.endswith("bfloat16 needs 0.39 % or more to keep it")
    assert (evidence.observed, evidence.limit) == pytest.approx((0.14, 0.390625))


def test_its_numbers_are_plain() -> None:
    finding = only_finding(RULE.sick())
    assert {type(e.observed) for e in finding.evidence} == {float}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_fine_format_is_clear_however_little_moves(dtype: str) -> None:
    assert is_clear(run(1.0, dtype=dtype))


def test_an_unknown_format_makes_it_abstain() -> None:
    assert examine(RULE, run(1.0, dtype="float8_e4m3fn")).status is Status.ABSTAINED


def test_frozen_tensors_and_those_of_another_dtype_are_not_counted() -> None:
    frozen = TensorInfo("frozen", (700,), trainable=False)
    wide = TensorInfo("wide", (700,), dtype="float32")
    assert is_clear(run([1.0, 0.0], (frozen, MOVED)))
    assert is_clear(run([1.0, 0.0], (wide, MOVED)))


def test_a_rate_of_0_moves_nothing_and_is_not_judged() -> None:
    assert is_clear(run(np.nan, rate=0.0, samples=9))


def test_a_warm_up_is_not_judged_while_the_rate_rises() -> None:
    rising = np.linspace(0.0, 1e-3, 20)[:, None]
    assert is_clear(run(1.0, rate=rising, samples=20))


def test_after_a_warm_up_it_is_judged() -> None:
    rate = np.minimum(np.linspace(0.0, 2e-5, 20), 1e-5)[:, None]
    finding = only_finding(run(1.0, rate=rate, samples=20))
    assert finding.steps == (12, 20)


def test_a_planned_warm_up_in_stages_is_not_judged() -> None:
    staged = np.repeat([1e-6, 1e-4], 10)[:, None]
    unmoved = np.repeat([1.0, 0.0], 10)[:, None]
    assert not is_clear(run(unmoved[:10], rate=staged[:10]))
    assert is_clear(run(unmoved[:10], rate=staged[:10], warmup_steps=10))
    assert is_clear(run(unmoved, rate=staged))


def test_the_end_of_a_schedule_is_not_judged() -> None:
    rate = np.linspace(1e-3, 0, 40)[:, None]
    unmoved = np.repeat([0.1, 1.0], 20)[:, None]
    assert is_clear(run(unmoved, rate=rate))


def test_weights_that_moved_a_whole_spacing_were_rounded_stochastically() -> None:
    assert not is_clear(run(0.95, update_rms=RATE * 0.2))
    assert is_clear(run(0.95, update_rms=RATE * 10 * np.sqrt(0.05)))


def test_how_a_run_rounds_is_told_by_the_median_of_its_samples() -> None:
    far, near = RATE * 10 * np.sqrt(0.05), RATE * 0.2
    mostly_far = np.where(np.arange(12) % 4, far, near)[:, None]
    mostly_near = np.where(np.arange(12) % 4, near, far)[:, None]
    assert is_clear(run(0.95, update_rms=mostly_far, samples=12))
    assert not is_clear(run(0.95, update_rms=mostly_near, samples=12))


def test_a_run_that_was_sampled_in_its_first_updates_alone_is_not_judged() -> None:
    early = examine(RULE, of_family("lion", 32))
    assert early.status is Status.ABSTAINED
    assert early.reason == "no sample after its first 32 updates, when it may warm up"
    assert examine(RULE, of_family("adam", 32)).findings


def test_where_all_was_made_on_average_nothing_is_lost() -> None:
    assert is_clear(run(0.95, update_realized=1.02, update_rms=RATE * 0.2))
    assert is_clear(run(0.95, update_realized=1.02, optimizer_family="sgd"))
    assert not is_clear(run(0.95, update_realized=0.4, update_rms=RATE * 0.2))


def test_a_sample_without_a_moved_weight_does_not_acquit_what_moved_outside_of_it() -> None:
    large = (TensorInfo("large", (10**6,)),)
    assert not is_clear(run(1.0, large, update_rms=RATE * 1e-3))


def test_weights_held_by_something_else_than_rounding_are_not_counted() -> None:
    assert not is_clear(run(0.8, update_ratio=0.001))
    assert is_clear(run(0.8, update_ratio=0.02))
    assert is_clear(run(0.8, update_ratio=0.002, dtype="float16"))


def test_a_step_that_float32_would_lose_too_is_no_matter_of_the_dtype() -> None:
    weights = {"param_rms": 1.0, "rate": 1e-6, "optimizer_family": "adam", "eps": 1e-8}
    assert not is_clear(run(1.0, grad_rms=1e-3, **weights))
    assert is_clear(run(1.0, grad_rms=1e-12, **weights))
    plain = {"param_rms": 1.0, "rate": 1e-3, "optimizer_family": "sgd"}
    assert not is_clear(run(1.0, grad_rms=1e-3, **plain))
    assert is_clear(run(1.0, grad_rms=1e-6, **plain))


def test_a_few_large_moves_of_plain_gradient_descent_acquit_nothing() -> None:
    assert not is_clear(run(0.95, update_rms=RATE, optimizer_family="sgd"))
    assert is_clear(run(0.95, update_rms=RATE, optimizer_family="adam"))


def test_float32_weights_are_the_first_treatment() -> None:
    first, *_, last = only_finding(lost_of(950)).treatments
    assert first.changes == {"param_dtype": ("bfloat16", "float32")}
    assert last.when == "check"
    assert "200 steps" in last.title


def test_a_lone_sick_sample_between_healthy_ones_passes() -> None:
    assert is_clear(run([[0.0], [1.0], [0.0], [1.0], [1.0], [0.0]]))


def in_turns(moved: float) -> Trace:
    """Two tensors whose update is measured in turns, as in a model too large to be copied whole."""
    sizes = np.where(np.arange(12)[:, None] % 2 == np.arange(2), moved, np.nan)
    return run([1.0, 1.0], (TensorInfo("a", (500,)), STILL), samples=12, update_rms=sizes)


def test_tensors_are_judged_at_the_samples_whose_turn_they_are() -> None:
    still = examine(RULE, in_turns(0.0))
    assert still.findings
    # What moved went a whole spacing: rounded stochastically. Out of its turn nothing tells that.
    assert not examine(RULE, in_turns(RATE)).findings
