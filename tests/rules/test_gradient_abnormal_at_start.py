"""What the contract cannot know of `gradient-abnormal-at-start`."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from optdoctor.engine import examine
from optdoctor.findings import Finding, Severity, Status
from optdoctor.rules.gradient_abnormal_at_start import RULE
from optdoctor.synthetic import make_trace
from optdoctor.trace import TensorInfo, Trace


def biases(count: int, names: Sequence[str] = ("fc.bias",)) -> tuple[TensorInfo, ...]:
    return tuple(
        TensorInfo(f"h.{i}.{name}", (8,), kind="bias", layer=f"h.{i}")
        for i in range(count)
        for name in names
    )


def run(first: Sequence[float], *, tensors: tuple[TensorInfo, ...] | None = None) -> Trace:
    """The first gradients, and two samples in which all are alike."""
    rows = np.ones((3, len(first)))
    rows[0] = first
    return make_trace(grad_rms=rows, tensors=tensors or biases(len(first)))


def falling(ratio: float, blocks: int = 8) -> Trace:
    """From 1 in the last block down to 1 over the ratio in the first: powers of 2, and the ends
    in float64."""
    trace = run(np.geomspace(1.0, ratio, blocks).tolist())
    series = trace.series["grad_rms"]
    values = np.array(series.values, np.float64)
    values[0, 0], values[0, -1] = 1.0, ratio
    return replace(trace, series={"grad_rms": replace(series, values=values)})


AT_LIMIT = {
    "blocks": (lambda: falling(1e6, 3), lambda: falling(1e6, 4)),
    "factor": (lambda: falling(1000.0), lambda: falling(float(np.nextafter(1000.0, 2000)))),
    "extreme": (lambda: falling(1e4), lambda: falling(float(np.nextafter(1e4, 2e4)))),
}


def only_finding(trace: Trace) -> Finding:
    outcome = examine(RULE, trace)
    assert outcome.status is Status.FOUND, outcome.reason
    (finding,) = outcome.findings
    return finding


def status(trace: Trace) -> Status:
    return examine(RULE, trace).status


def test_the_way_and_the_factor_a_block_are_told() -> None:
    finding = only_finding(run(2.0 ** np.arange(0, 36, 3)))
    assert finding.summary == (
        "The gradient fades on its way back through 12 blocks, by 8 times at each: at step 1 that"
        " of h.11 is 8.6e+09 times that of h.0 (limit 1,000)."
    )
    assert (finding.severity, finding.steps) == (Severity.WARN, (1, 1))
    assert finding.tensors == tuple(f"h.{i}.fc.bias" for i in range(12))
    grown = only_finding(run(2.0 ** -np.arange(0, 36, 3)))
    assert grown.summary.startswith("The gradient grows on its way back through 12 blocks, by 8")
    assert "that of h.0 is 8.6e+09 times that of h.11" in grown.summary


def test_blocks_are_taken_by_their_number() -> None:
    shuffled = (*biases(12)[6:], *biases(12)[:6])
    first = 2.0 ** np.array([*range(18, 36, 3), *range(0, 18, 3)])
    assert only_finding(run(first, tensors=shuffled)).tensors[0] == "h.0.fc.bias"


def test_between_the_limits_it_waits_for_a_symptom() -> None:
    finding = only_finding(falling(3000.0))
    assert (finding.severity, finding.awaits_symptom) == (Severity.NOTE, True)
    assert not only_finding(falling(3e4)).awaits_symptom


def test_one_odd_block_is_no_line() -> None:
    assert status(run([1e-6, 1, 1, 1, 1, 1, 1, 1, 1])) is Status.CLEAR
    assert status(run([1, 1, 1, 1, 1, 1, 1, 1e-6])) is Status.CLEAR


def test_later_samples_are_not_judged() -> None:
    rows = np.ones((4, 8))
    rows[1:] = 10.0 ** -np.arange(8)
    assert status(make_trace(grad_rms=rows, tensors=biases(8))) is Status.CLEAR


def test_the_first_sample_is_the_first_with_a_gradient() -> None:
    rows = np.ones((4, 8))
    rows[:2] = np.nan
    rows[2] = 10.0 ** -np.arange(8)
    assert only_finding(make_trace(grad_rms=rows, tensors=biases(8))).steps == (3, 3)


@pytest.mark.parametrize("nothing", [0.0, np.nan])
def test_blocks_without_a_gradient_yet_are_left_out(nothing: float) -> None:
    first = 10.0 ** -np.arange(8.0)
    first[[2, 5]] = nothing
    assert "through 6 blocks" in only_finding(run(first)).summary
    first[:4] = nothing
    assert status(run(first)) is Status.CLEAR


def test_of_several_biases_the_one_in_the_middle_counts() -> None:
    names = ("key.bias", "query.bias", "value.bias")
    first = np.ones((8, 3))
    first[:, 0] = 10.0 ** -np.arange(8)
    assert status(run(first.ravel(), tensors=biases(8, names))) is Status.CLEAR
    first[:, 1] = 10.0 ** -np.arange(8)
    assert status(run(first.ravel(), tensors=biases(8, names))) is Status.FOUND


@pytest.mark.parametrize(
    "change", [{"trainable": False}, {"in_optimizer": False}, {"layer": ""}, {"shape": (8, 8)}]
)
def test_without_biases_of_trained_blocks_it_abstains(change: dict[str, object]) -> None:
    tensors = tuple(replace(t, **change) for t in biases(8))  # type: ignore[arg-type]
    outcome = examine(RULE, run(10.0 ** -np.arange(8), tensors=tensors))
    assert outcome.status is Status.ABSTAINED


def test_two_stacks_are_two_lines() -> None:
    encoder = biases(6)
    decoder = tuple(replace(t, name=f"d{t.name}", layer=f"d{t.layer}") for t in encoder)
    first = [1.0] * 6 + (10.0 ** -np.arange(6)).tolist()
    finding = only_finding(run(first, tensors=(*encoder, *decoder)))
    assert finding.tensors == tuple(t.name for t in decoder)


def sequential(weights: Sequence[float], gradients: Sequence[float], prefix: str = "") -> Trace:
    """Weights and biases of the linear layers 0, 2, 4.. of a Sequential, which is in no block."""
    tensors, first = [], []
    for i, (weight, bias) in enumerate(zip(weights, gradients, strict=True)):
        tensors += [
            TensorInfo(f"{prefix}{2 * i}.weight", (8, 8), kind="mlp"),
            TensorInfo(f"{prefix}{2 * i}.bias", (8,), kind="bias"),
        ]
        first += [weight, bias]
    return run(first, tensors=tuple(tensors))


@pytest.mark.parametrize("prefix", ["", "net."])
def test_numbered_layers_of_a_sequential_are_blocks(prefix: str) -> None:
    first = 8.0 ** np.arange(12)
    finding = only_finding(sequential(first, first, prefix))
    assert finding.tensors == tuple(f"{prefix}{2 * i}.bias" for i in range(12))
    called = prefix or "layer "
    assert f"that of {called}22 is 8.6e+09 times that of {called}0" in finding.summary
    assert status(sequential(first[:3], first[:3], prefix)) is Status.CLEAR


def test_what_rounding_leaves_of_biases_in_front_of_a_norm_is_no_line() -> None:
    gradients = [1e-8, 1e-7, 1e-2, 1e0, 1e1]
    assert status(sequential([1.0] * 5, gradients)) is Status.CLEAR
    assert status(sequential(gradients, gradients)) is Status.FOUND


def test_norms_and_linear_layers_of_a_sequential_are_two_lines() -> None:
    tensors = tuple(
        TensorInfo(f"{i}.bias", (8,), kind="norm" if i % 2 else "bias") for i in range(10)
    )
    first = np.ones(10)
    first[::2] = 100.0 ** np.arange(5)
    assert status(run(first, tensors=tensors)) is Status.CLEAR
