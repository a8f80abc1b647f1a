"""What the contract cannot know of `gradient-dominated-by-one-layer`."""

from dataclasses import replace

import numpy as np
import pytest

from optdoctor.engine import examine
from optdoctor.findings import Finding, Severity, Status
from optdoctor.rules.gradient_dominated_by_one_layer import RULE
from optdoctor.synthetic import make_trace
from optdoctor.trace import TensorInfo, Trace


def layers(*sizes: int) -> tuple[TensorInfo, ...]:
    return tuple(TensorInfo(f"net.{i}.weight", (size,), order=i) for i, size in enumerate(sizes))


def run(*sizes: int, samples: int = 16, before: int = 20) -> Trace:
    """Equal gradients in every element of layers of those sizes, after samples in which the first
    layer has next to none."""
    rows = np.ones((before + samples, len(sizes)))
    rows[:before, 0] = 1e-9
    return make_trace(grad_rms=rows, tensors=layers(*sizes))


AT_LIMIT = {
    "share": (lambda: run(95, 3, 1, 1), lambda: run(96, 3, 1, 1)),
    "layers": (lambda: run(970, 3, 1), lambda: run(970, 3, 1, 1)),
    "lasting": (
        lambda: run(970, 3, 1, 1, samples=15),
        lambda: run(970, 3, 1, 1, samples=16),
    ),
}


def only_finding(trace: Trace) -> Finding:
    outcome = examine(RULE, trace)
    assert outcome.status is Status.FOUND, outcome.reason
    (finding,) = outcome.findings
    return finding


def status(trace: Trace) -> Status:
    return examine(RULE, trace).status


def test_the_layer_and_its_share_are_told() -> None:
    finding = only_finding(run(970, 10, 10, 10))
    assert finding.summary == (
        "net.0 has 97 % of the gradient's squared norm (limit 95 %), 1 of 4 layers, since step 21."
    )
    assert (finding.severity, finding.awaits_symptom) == (Severity.NOTE, False)
    assert finding.tensors == ("net.0.weight",)
    assert finding.steps == (21, 36)


def test_tensors_of_one_block_are_one_layer() -> None:
    block = tuple(replace(t, layer="h.0") for t in layers(48, 49))
    rest = tuple(replace(t, name=f"other.{t.name}") for t in layers(1, 1, 1))
    trace = make_trace(grad_rms=np.ones((20, 5)), tensors=(*block, *rest))
    assert only_finding(trace).tensors == ("net.0.weight", "net.1.weight")


def test_two_layers_in_turn_are_silent() -> None:
    rows = np.full((40, 4), 1e-3)
    rows[::2, 0], rows[1::2, 1] = 1.0, 1.0
    assert status(make_trace(grad_rms=rows, tensors=layers(8, 8, 8, 8))) is Status.CLEAR


def test_a_dominance_that_has_passed_is_silent() -> None:
    rows = np.full((60, 4), 1e-3)
    rows[:50, 0] = 1.0
    assert status(make_trace(grad_rms=rows, tensors=layers(8, 8, 8, 8))) is Status.CLEAR


def test_a_sample_of_part_of_the_tensors_is_passed_over() -> None:
    rows = np.full((60, 4), 1e-3)
    rows[:, 0] = 1.0
    rows[::2, 0] = np.nan
    assert only_finding(make_trace(grad_rms=rows, tensors=layers(8, 8, 8, 8))).steps == (2, 60)


@pytest.mark.parametrize("change", [{"trainable": False}, {"in_optimizer": False}], ids=str)
def test_frozen_layers_do_not_count(change: dict[str, bool]) -> None:
    frozen = (*layers(970, 3, 1), replace(layers(1, 1, 1, 1)[3], **change))
    assert status(make_trace(grad_rms=np.ones((40, 4)), tensors=frozen)) is Status.CLEAR
