"""What the contract cannot know of `frozen-weights`."""

from typing import Any

import numpy as np
import pytest

from optdoctor.engine import examine
from optdoctor.findings import Finding, Severity, Status
from optdoctor.rules.frozen_weights import RULE
from optdoctor.synthetic import make_trace
from optdoctor.trace import TensorInfo, Trace

MEASURED: dict[str, float] = {
    "grad_rms": 1e-3,
    "tensor_lr": 1e-3,
    "param_rms": 0.02,
    "moment_ratio": 0.5,
    "effective_lr": 1.0,
    "moment1_rms": 5e-4,
    "update_realized": np.nan,
}


def run(
    still: Any = True, *, sizes: tuple[int, int] = (300, 700), own: Any = None, **more: Any
) -> Trace:
    """A tensor that stands still in these of 4 samples, beside one that moves; `more` are channels
    of the first and facts, `own` fields of its table."""
    frozen = np.broadcast_to(still, 4 if np.ndim(still) == 0 else len(still))
    rows = len(frozen)
    channels = {name: np.full((rows, 2), value) for name, value in MEASURED.items()}
    channels["update_rms"] = np.stack([np.where(frozen, 0.0, 1e-3), np.full(rows, 1e-3)], 1)
    for name in [name for name in more if name in channels]:
        channels[name][:, 0] = more.pop(name)
    tensors = (
        TensorInfo("still", sizes[:1], **{"dtype": "float32", **(own or {})}),
        TensorInfo("moving", sizes[1:], dtype="float32"),
    )
    return make_trace(channels, tensors=tensors, **{"optimizer_family": "adam", **more})


def rates(last: float) -> Trace:
    return run([False] + [True] * 3, tensor_lr=[1.0, *[last] * 3], effective_lr=1e3)


AT_LIMIT = {
    "share": (lambda: run(sizes=(20, 980)), lambda: run(sizes=(21, 979))),
    "passing": (lambda: run([0, 1, 1, 0]), lambda: run([0, 1, 1, 1])),
    "near_peak": (
        lambda: rates(float(np.nextafter(np.float32(0.5), np.float32(0)))),
        lambda: rates(0.5),
    ),
}


def only_finding(trace: Trace) -> Finding:
    outcome = examine(RULE, trace)
    assert outcome.status is Status.FOUND, outcome.reason
    (finding,) = outcome.findings
    return finding


def is_clear(trace: Trace) -> bool:
    return examine(RULE, trace).status is Status.CLEAR


def test_it_is_a_warning_where_the_rule_of_the_optimizer_asks_for_a_change() -> None:
    known = only_finding(run(update_realized=0.0))
    assert known.severity is Severity.WARN
    assert not known.awaits_symptom
    assert known.tensors == ("still",)
    assert "30 % of the trained weights (limit 2 %) did not move" in known.summary
    for unknown in (run(update_realized=np.nan), run(update_realized=1.0), run([0, 1, 1, 1])):
        finding = only_finding(unknown)
        assert finding.severity is Severity.NOTE
        assert finding.awaits_symptom


def test_it_tells_from_when_to_when() -> None:
    assert only_finding(run([0, 1, 1, 1, 1, 0])).steps == (2, 5)


@pytest.mark.parametrize(
    "own",
    [
        {"in_optimizer": False},
        {"trainable": False},
        {"update_sampled": True},
        {"dtype": "bfloat16"},
        {"dtype": "float16"},
    ],
)
def test_tensors_that_may_stand_still_are_not_counted(own: dict[str, Any]) -> None:
    assert is_clear(run(own=own))


@pytest.mark.parametrize(
    "more", [{"grad_rms": 0.0}, {"grad_rms": np.nan}, {"tensor_lr": 0.0}, {"tensor_lr": np.nan}]
)
def test_without_a_gradient_or_a_rate_nothing_ought_to_move(more: dict[str, float]) -> None:
    assert is_clear(run(**more))


def test_where_nothing_moves_at_all_the_optimizer_made_no_update() -> None:
    trace = run()
    update = np.zeros((4, 2))
    others = {name: np.full((4, 2), value) for name, value in MEASURED.items()}
    assert is_clear(make_trace(others, update_rms=update, tensors=trace.tensors))


@pytest.mark.parametrize(
    ("family", "more"),
    [
        ("sgd", {"grad_rms": 1e-7}),
        ("adam", {"tensor_lr": 1e-9}),
        ("adam", {"moment_ratio": 1e-7}),
        ("adam", {"effective_lr": 1e-9}),
        ("lion", {"tensor_lr": 1e-9}),
        ("other", {"grad_rms": 1e-7}),
    ],
)
def test_what_float32_swallows_is_not_frozen(family: str, more: dict[str, float]) -> None:
    assert not is_clear(run(optimizer_family=family))
    assert is_clear(run(optimizer_family=family, **more))


def test_lbfgs_may_stand_still() -> None:
    assert examine(RULE, run(optimizer_family="lbfgs")).status is Status.ABSTAINED
