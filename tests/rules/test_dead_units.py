"""What the contract cannot know of `dead-units`."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from optdoctor.engine import examine
from optdoctor.findings import Finding, Severity, Status
from optdoctor.report.slots import where
from optdoctor.rules.dead_units import RULE
from optdoctor.synthetic import make_trace
from optdoctor.trace import TensorInfo, Trace

HIDDEN, NEXT, OUT = 1, 2, 3
"""Positions of the hidden layer's bias, the next weight and the bias beside that."""


def net(units: int = 20) -> list[TensorInfo]:
    """One hidden layer."""
    shapes = {"a.weight": (units, 30), "a.bias": (units,), "b.weight": (9, units), "b.bias": (9,)}
    return [TensorInfo(n, s, order=i) for i, (n, s) in enumerate(shapes.items())]


def run(
    shares: Sequence[float],
    tensors: list[TensorInfo] | None = None,
    *,
    first: float | None = None,
    others: dict[int, Any] | None = None,
    **facts: Any,
) -> Trace:
    """A run whose hidden layer has these shares of silent units; `others` are {position: share}."""
    zero = np.tile(np.asarray(shares, float)[:, None], 4)
    zero[:, 0] = zero[:, 0] if first is None else first
    zero[:, OUT] = 0.0
    for position, share in (others or {}).items():
        zero[:, position] = share
    return make_trace(grad_zero=zero, tensors=tensors or net(), **facts)


AT_LIMIT = {
    "share": (lambda: run([16 / 20] * 4), lambda: run([17 / 20] * 4)),
    "passing": (lambda: run([0.0, 1.0, 1.0, 0.0]), lambda: run([0.0, 1.0, 1.0, 1.0, 0.0])),
    "few": (lambda: run([1.0] * 4, net(7)), lambda: run([1.0] * 4, net(8))),
}


def only_finding(trace: Trace) -> Finding:
    outcome = examine(RULE, trace)
    assert outcome.status is Status.FOUND, outcome.reason
    (finding,) = outcome.findings
    return finding


def is_clear(trace: Trace) -> bool:
    return examine(RULE, trace).status is Status.CLEAR


def test_some_silent_units_are_a_note_that_awaits_a_symptom() -> None:
    finding = only_finding(run([0.9] * 5))
    assert finding.severity is Severity.NOTE
    assert finding.awaits_symptom
    assert finding.summary == (
        '90 % of the units of layer "a" (20 units, limit 80 %) have a gradient of exactly 0, as'
        " units have that are silent on the batch, from step 1 to 5."
    )


def test_a_layer_of_silent_units_is_a_warning_and_critical_where_it_cuts_the_network() -> None:
    beside = only_finding(run([1.0] * 5, first=0.3))
    assert beside.severity is Severity.WARN
    cut = only_finding(run([1.0] * 5))
    assert cut.severity is Severity.CRITICAL
    assert cut.summary == (
        'Every unit of layer "a" (20 units, limit 80 %) is silent on the batch from step 1 to 5.'
    )


def test_where_units_die_one_after_the_other_it_begins_with_most_and_tells_of_the_last() -> None:
    finding = only_finding(run([0.2, 0.85, 0.9, 0.95, 1.0, 1.0, 1.0, 1.0]))
    assert finding.steps == (2, 8)
    assert finding.summary.endswith(
        "on the batch from step 5 to 8, and more than 80 % from step 2 to 8."
    )
    assert finding.severity is Severity.CRITICAL


def test_a_unit_that_wakes_for_a_moment_does_not_end_the_finding() -> None:
    trace = run([0.2, 0.85, *[1.0] * 3, 0.95, *[1.0] * 4, 0.9, 0.1])
    finding = only_finding(trace)
    assert finding.steps == (2, 11)
    assert "from step 7 to 10, and more than 80 % from step 2 to 11" in finding.summary
    assert "from step 7 to 10" in finding.evidence[0].what
    assert ": 85 % at step 2. 1 of 4 tensors" in where(finding, trace)


def test_what_to_do_depends_on_when_it_began() -> None:
    assert "scale the inputs" in only_finding(run([1.0] * 5)).treatments[1].title
    assert "checkpoint before" in only_finding(run([0.1, 1.0, 1.0, 1.0])).treatments[1].title


def test_a_layer_that_was_not_used_is_not_dead() -> None:
    assert not is_clear(run([1.0] * 5))
    assert is_clear(run([1.0] * 5, others={OUT: 1.0}))  # an expert without tokens, a loss of 0
    assert is_clear(run([17 / 20] * 5, others={OUT: 8 / 9}))
    assert is_clear(run([1.0] * 5, others={OUT: np.nan}))


def test_a_gradient_of_0_where_the_inputs_were_not_is_not_a_silent_unit() -> None:
    assert is_clear(run([1.0] * 5, others={NEXT: 0.0}))  # a next weight that began at 0
    assert is_clear(run([1.0] * 5, others={NEXT: np.nan}))


def test_a_share_that_comes_from_a_sample_may_be_a_little_less() -> None:
    assert not is_clear(run([0.9] * 5, others={NEXT: 0.86}))
    assert is_clear(run([0.9] * 5, others={NEXT: 0.84}))


def test_what_was_rounded_to_0_does_not_look_like_silent_inputs() -> None:
    assert not is_clear(run([0.9] * 5, others={NEXT: 0.93}))
    assert is_clear(run([0.9] * 5, others={NEXT: 0.96}))
    both = {NEXT: 0.9 + 0.1 * 7 / 9, OUT: 7 / 9}  # inputs, and of the others silent units behind
    assert not is_clear(run([0.9] * 5, others=both))


def test_masked_outputs_have_no_next_weight() -> None:
    heads = {"policy.bias": (40,), "value.weight": (1, 64), "value.bias": (1,)}
    names = {"policy.weight": (40, 64), **heads}
    tensors = [TensorInfo(n, s, order=i) for i, (n, s) in enumerate(names.items())]
    assert is_clear(run([0.9] * 5, tensors))


def test_the_bias_behind_the_next_weight_must_be_of_the_same_block() -> None:
    inside = {"e.0.a.weight": (20, 30), "e.0.a.bias": (20,), "e.0.b.weight": (9, 20)}
    for name, dead in (("e.0.norm.bias", True), ("e.1.a.bias", False)):
        shapes = {**inside, name: (9,)}
        tensors = [TensorInfo(n, s, order=i) for i, (n, s) in enumerate(shapes.items())]
        assert is_clear(run([1.0] * 5, tensors)) is not dead


def test_channels_that_are_flattened_have_several_inputs_each() -> None:
    tensors = net()
    tensors[NEXT] = replace(tensors[NEXT], shape=(9, 20 * 16))
    assert not is_clear(run([1.0] * 5, tensors))
    tensors[NEXT] = replace(tensors[NEXT], shape=(9, 30))
    assert is_clear(run([1.0] * 5, tensors))


@pytest.mark.parametrize("change", [{"trainable": False}, {"in_optimizer": False}])
def test_layers_that_are_not_trained_are_not_judged(change: dict[str, bool]) -> None:
    tensors = net()
    tensors[HIDDEN] = replace(tensors[HIDDEN], **change)
    assert is_clear(run([1.0] * 5, tensors))


def test_float16_may_have_rounded_gradients_to_0() -> None:
    tensors = net()
    tensors[HIDDEN] = replace(tensors[HIDDEN], grad_dtype="float16")
    assert is_clear(run([1.0] * 5, tensors))
    narrow = examine(RULE, run([1.0] * 5, compute_dtype="float16"))
    assert narrow.status is Status.ABSTAINED
    assert not is_clear(run([1.0] * 5, compute_dtype="bfloat16"))


def test_the_first_sample_alone_proves_nothing() -> None:
    assert is_clear(run([1.0, 0.0, 0.0, 1.0, 0.0]))


def test_several_layers_are_counted_and_the_worst_is_named() -> None:
    tensors = [
        TensorInfo(f"{name}.{part}", shape, order=2 * i + (part == "bias"))
        for i, name in enumerate("abc")
        for part, shape in (("weight", (20, 20)), ("bias", (20,)))
    ]
    zero = np.tile([0.9, 0.95, 0.98, 0.85, 0.85, 0.0], (5, 1))
    finding = only_finding(make_trace(grad_zero=zero, tensors=tensors))
    assert finding.tensors == ("a.bias", "b.bias")
    assert "as those of 1 other layer." in finding.summary
