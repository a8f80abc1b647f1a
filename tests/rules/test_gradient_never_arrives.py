"""What the contract cannot know of `gradient-never-arrives`."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from optdoctor.engine import examine
from optdoctor.findings import Finding, Severity, Status
from optdoctor.rules.gradient_never_arrives import RULE
from optdoctor.synthetic import make_trace
from optdoctor.trace import Kind, TensorInfo, Trace


def layers(count: int = 8, kind: Kind = "mlp") -> tuple[TensorInfo, ...]:
    return tuple(
        TensorInfo(f"net.{i}.{name}", shape, kind=kind, order=2 * i + j)
        for i in range(count)
        for j, (name, shape) in enumerate((("weight", (8, 8)), ("bias", (8,))))
    )


def run(
    silent: Sequence[int] = (),
    *,
    samples: int = 10,
    tensors: tuple[TensorInfo, ...] = layers(),
    nothing: float = np.nan,
    **more: Any,
) -> Trace:
    """Layers of two tensors each, those of the given numbers without a gradient."""
    rows = np.full((samples, len(tensors)), 0.02)
    for layer in silent:
        rows[:, 2 * layer : 2 * layer + 2] = nothing
    measured = np.full(rows.shape, 0.1)
    return make_trace({"grad_rms": rows, "param_rms": measured, **more}, tensors=tensors)


def looked_at(times: int) -> Trace:
    """Ten samples, in which the lowest half was measured so many times."""
    rows = np.full((10, 16), 0.02)
    rows[:, :8] = np.nan
    measured = np.full(rows.shape, 0.1)
    measured[times:, :8] = np.nan
    return make_trace({"grad_rms": rows, "param_rms": measured}, tensors=layers())


AT_LIMIT = {
    "samples": (lambda: looked_at(2), lambda: looked_at(3)),
    "share": (lambda: run(range(3)), lambda: run(range(4))),
    "layers that learn": (lambda: run(range(7)), lambda: run(range(6))),
}


def only_finding(trace: Trace) -> Finding:
    outcome = examine(RULE, trace)
    assert outcome.status is Status.FOUND, outcome.reason
    (finding,) = outcome.findings
    return finding


def status(trace: Trace) -> Status:
    return examine(RULE, trace).status


def test_a_cut_is_told_with_its_layers() -> None:
    finding = only_finding(run(range(4)))
    assert finding.severity is Severity.WARN
    assert finding.steps == (1, 10)
    assert finding.summary == (
        "4 of 8 layers that are to be trained had no gradient in any of 10 samples (limit 0): net.0"
        " to net.3, 288 weights."
    )
    assert finding.tensors[:3] == ("net.0.weight", "net.0.bias", "net.1.weight")
    assert len(finding.tensors) == 8


def test_a_gradient_of_exactly_zero_is_none() -> None:
    assert only_finding(run(range(4), nothing=0.0)).severity is Severity.WARN


def test_one_gradient_in_any_sample_is_one() -> None:
    trace = run(range(4))
    rows = np.array(trace.series["grad_rms"].values)
    rows[5, 6:8] = 1e-30
    again = make_trace(
        grad_rms=rows, param_rms=trace.series["param_rms"].values, tensors=trace.tensors
    )
    assert only_finding(again).severity is Severity.NOTE
    assert len(only_finding(again).tensors) == 6


def test_a_gradient_of_long_ago_is_remembered() -> None:
    rows = np.full((2_000, 16), 0.02)
    rows[2:, :8] = 0.0
    trace = make_trace(grad_rms=rows, tensors=layers())
    assert not (trace.series["grad_rms"].values[10:, :8] > 0).any()
    assert status(trace) is Status.CLEAR


def test_a_tensor_that_was_not_measured_is_not_silent() -> None:
    trace = run(range(4))
    only_gradients = make_trace(grad_rms=trace.series["grad_rms"].values, tensors=trace.tensors)
    assert status(only_gradients) is Status.CLEAR


def test_scattered_layers_and_the_last_ones_are_a_note_that_no_symptom_raises() -> None:
    for silent in ([1, 3, 4, 6], [4, 5, 6, 7], [7], [2]):
        finding = only_finding(run(silent))
        assert (finding.severity, finding.awaits_symptom) == (Severity.NOTE, False)


def test_an_encoder_without_gradients_below_a_new_head_is_a_note() -> None:
    finding = only_finding(run(range(7)))
    assert (finding.severity, finding.awaits_symptom) == (Severity.NOTE, True)
    assert only_finding(run(range(3), tensors=layers(4))).severity is Severity.NOTE
    assert only_finding(run(range(2), tensors=layers(4))).severity is Severity.WARN


def test_one_layer_of_many_is_a_note() -> None:
    assert only_finding(run([0])).severity is Severity.NOTE


def test_adapters_of_which_none_has_a_gradient_are_a_warning_whatever_else_learns() -> None:
    adapters = tuple(
        TensorInfo(f"net.{i}.lora_{side}.weight", (8, 8), kind="adapter", order=2 * i + j)
        for i in range(7)
        for j, side in enumerate("AB")
    )
    head = TensorInfo("score.weight", (8, 8), kind="head", order=20)
    rows = np.full((9, 15), np.nan)
    rows[:, 14] = 0.1
    measured = np.full(rows.shape, 0.1)
    sick = make_trace(grad_rms=rows, param_rms=measured, tensors=(*adapters, head))
    assert only_finding(sick).severity is Severity.WARN
    rows[:, 1:14:2] = 0.01  # the second halves have one at once, the first halves later
    young = make_trace(grad_rms=rows, param_rms=measured, tensors=(*adapters, head))
    assert examine(RULE, young).findings == () or only_finding(young).severity is Severity.NOTE


@pytest.mark.parametrize("change", [{"trainable": False}, {"in_optimizer": False}], ids=str)
def test_frozen_layers_need_no_gradient(change: dict[str, bool]) -> None:
    tensors = tuple(replace(t, **change) if t.order < 8 else t for t in layers())
    assert status(run(range(4), tensors=tensors)) is Status.CLEAR


def test_a_run_without_any_gradient_is_not_its_matter() -> None:
    assert status(run(range(8))) is Status.CLEAR


def test_the_order_is_that_of_the_forward_pass() -> None:
    backwards = tuple(replace(t, order=20 - t.order) for t in layers())
    assert only_finding(run(range(4, 8), tensors=backwards)).severity is Severity.WARN
    assert only_finding(run(range(4), tensors=backwards)).severity is Severity.NOTE


def test_the_first_updates_alone_are_no_warning() -> None:
    assert only_finding(run(range(4), samples=8)).severity is Severity.NOTE
    assert only_finding(run(range(4), samples=9)).severity is Severity.WARN


def parts(
    low: str = "vision", high: str = "text", layers_of_high: int = 4
) -> tuple[TensorInfo, ...]:
    """Two parts of four layers, or of another number."""
    names = [(low, i) for i in range(4)] + [(high, i) for i in range(layers_of_high)]
    return tuple(
        TensorInfo(f"{part}.{i}.{name}", shape, order=2 * at + j)
        for at, (part, i) in enumerate(names)
        for j, (name, shape) in enumerate((("weight", (8, 8)), ("bias", (8,))))
    )


def test_a_whole_part_without_gradients_is_a_note_that_a_symptom_raises() -> None:
    finding = only_finding(run(range(4), tensors=parts(layers_of_high=3)))
    assert (finding.severity, finding.awaits_symptom) == (Severity.NOTE, True)
    stem = TensorInfo("stem.weight", (8, 8), order=-2), TensorInfo("stem.bias", (8,), order=-1)
    beside = only_finding(run(range(5), tensors=(*stem, *parts())))
    assert beside.severity is Severity.WARN  # a cut through two modules


@pytest.mark.parametrize("names", [("target", "online"), ("net.target", "net.online")])
def test_a_part_that_another_one_copies_is_a_note_whatever_the_loss_does(
    names: tuple[str, str],
) -> None:
    finding = only_finding(run(range(4), tensors=parts(*names)))
    assert (finding.severity, finding.awaits_symptom) == (Severity.NOTE, False)


@pytest.mark.parametrize(
    ("change", "update", "status"),
    [(1e-5, 0.0, Status.CLEAR), (1e-7, 0.0, Status.FOUND), (1e-5, 1e-6, Status.FOUND)],
)
def test_layers_that_something_else_moves_are_not_judged(
    change: float, update: float, status: Status
) -> None:
    trace = run(range(4))
    weights = np.full((10, 16), 0.1) * (1 + change * np.arange(10)[:, None] / 9)
    updates = np.full(weights.shape, update)
    rows = trace.series["grad_rms"].values
    moved = make_trace(grad_rms=rows, param_rms=weights, update_rms=updates, tensors=trace.tensors)
    assert examine(RULE, moved).status is status
