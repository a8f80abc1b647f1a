"""What the contract cannot know of `layer-learning-rate-mismatch`."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from optdoctor.engine import diagnose, examine
from optdoctor.findings import Finding, Severity, Status, Verdict
from optdoctor.rules.layer_learning_rate_mismatch import RULE, STEP
from optdoctor.synthetic import falling_loss, make_trace
from optdoctor.trace import Kind, TensorInfo, Trace

UNIT = 2.0**-10  # exact in float32, as its small multiples are


def layers(count: int = 6, kind: Kind = "mlp", size: int = 8) -> tuple[TensorInfo, ...]:
    return tuple(
        TensorInfo(f"h.{i}.mlp.weight", (size, size), kind=kind, layer=f"h.{i}")
        for i in range(count)
    )


def run(
    factor: float,
    channel: str = "tensor_lr",
    *,
    samples: int = 16,
    before: int = 20,
    tensors: tuple[TensorInfo, ...] = layers(),
    odd: int = 2,
    **more: Any,
) -> Trace:
    """All tensors alike, and in the last samples one at `factor` times the others' value."""
    values = np.full((before + samples, len(tensors)), UNIT)
    values[before:, odd] *= factor
    return make_trace({channel: values, **more}, tensors=tensors)


AT_LIMIT = {
    "rate_factor": (lambda: run(5.0), lambda: run(5.001)),
    "update_factor": (lambda: run(32.0, "update_ratio"), lambda: run(32.01, "update_ratio")),
    "lasting": (lambda: run(9.0, samples=15), lambda: run(9.0, samples=16)),
}


def only_finding(trace: Trace) -> Finding:
    outcome = examine(RULE, trace)
    assert outcome.status is Status.FOUND, outcome.reason
    (finding,) = outcome.findings
    return finding


@pytest.mark.parametrize("factor", [6.0, 1e3, 1e6])
def test_it_is_a_note_however_large_the_ratio_and_leaves_the_run_healthy(factor: float) -> None:
    trace = run(factor)
    assert only_finding(trace).severity is Severity.NOTE
    with_loss = make_trace(
        {"tensor_lr": trace.series["tensor_lr"].values},
        loss=falling_loss(36),
        tensors=trace.tensors,
    )
    diagnosis = diagnose(with_loss, [RULE])
    assert diagnosis.verdict is Verdict.HEALTHY
    assert diagnosis.causes == ()


def test_the_layer_is_named_with_the_samples_in_which_it_lasted() -> None:
    finding = only_finding(run(8.0))
    assert finding.tensors == ("h.2.mlp.weight",)
    assert finding.steps == (21, 36)
    assert finding.summary == "1 of 6 weights learns at 8 times the most common rate (limit 5)."


@pytest.mark.parametrize("factor", [64.0, 1 / 64])
def test_an_update_far_from_the_median_is_told_on_either_side(factor: float) -> None:
    finding = only_finding(run(factor, "update_ratio"))
    (evidence,) = finding.evidence
    assert evidence.observed == pytest.approx(factor)
    assert evidence.limit == (32 if factor > 1 else 1 / 32)


def test_a_smaller_rate_for_some_layers_is_nobodys_concern() -> None:
    assert examine(RULE, run(1 / 100)).status is Status.CLEAR


@pytest.mark.parametrize("kind", ["norm", "bias", "embedding", "head", "adapter"])
@pytest.mark.parametrize("channel", ["tensor_lr", "update_ratio"])
def test_kinds_that_recipes_treat_apart_are_not_judged(kind: Kind, channel: str) -> None:
    tensors = list(layers())
    tensors[2] = replace(tensors[2], kind=kind)
    assert examine(RULE, run(1000.0, channel, tensors=tuple(tensors))).status is Status.CLEAR


@pytest.mark.parametrize("channel", ["tensor_lr", "update_ratio"])
def test_small_tensors_vectors_and_frozen_ones_are_not_judged(channel: str) -> None:
    like = layers()[2]
    for other in (
        replace(like, shape=(512,)),
        replace(like, shape=(3, 3)),
        replace(like, trainable=False),
        replace(like, in_optimizer=False),
    ):
        tensors = (*layers()[:2], other, *layers()[3:])
        assert examine(RULE, run(1000.0, channel, tensors=tensors)).status is Status.CLEAR


def test_tensors_of_unknown_kind_may_be_a_head_and_are_judged_by_their_rate_only() -> None:
    tensors = layers(kind="other")
    assert examine(RULE, run(1000.0, "update_ratio", tensors=tensors)).status is Status.CLEAR
    assert examine(RULE, run(1000.0, tensors=tensors)).status is Status.FOUND


def test_weights_that_began_near_zero_and_grew_are_not_judged() -> None:
    size = np.full((36, 6), 0.5)
    size[:, 2] = np.linspace(1e-5, 0.5, 36)
    assert examine(RULE, run(64.0, "update_ratio", param_rms=size)).status is Status.CLEAR
    assert examine(RULE, run(64.0, "update_ratio", param_rms=size * 0 + 1)).status is Status.FOUND


def test_the_most_common_rate_is_that_of_most_elements() -> None:
    tensors = (replace(layers()[0], shape=(100, 100)), *layers()[1:])
    values = np.full((20, 6), UNIT)
    values[:, 1:] /= 9  # five small tensors at a ninth of the large one's rate
    assert examine(RULE, make_trace(tensor_lr=values, tensors=tensors)).status is Status.CLEAR


def test_a_mismatch_that_has_passed_is_silent() -> None:
    values = np.full((60, 6), UNIT)
    values[:40, 2] *= 100
    assert examine(RULE, make_trace(tensor_lr=values, tensors=layers())).status is Status.CLEAR


def test_too_few_layers_have_no_median() -> None:
    few = run(64.0, "update_ratio", tensors=layers(3))
    assert examine(RULE, few).status is Status.CLEAR


def test_a_frozen_layer_is_another_rules_matter() -> None:
    assert examine(RULE, run(0.0, "update_ratio")).status is Status.CLEAR


def test_a_partial_row_counts_for_the_tensors_that_it_measured() -> None:
    values = np.full((60, 6), UNIT)
    values[20:, 2] *= 9
    values[21::2, 2] = np.nan
    finding = only_finding(make_trace(tensor_lr=values, tensors=layers()))
    assert finding.steps == (21, 60)


@pytest.mark.parametrize(("channel", "factor"), [("tensor_lr", 20.0), ("update_ratio", 1 / 64)])
def test_the_rate_is_never_changed_by_more_than_a_factor_of_two(
    channel: str, factor: float
) -> None:
    more = {} if channel == "tensor_lr" else {"tensor_lr": np.full((36, 6), 1e-3)}
    finding = only_finding(run(factor, channel, **more))
    changes = [t.changes for t in finding.treatments if t.changes]
    ((knob, (old, new)),) = changes[0].items()
    assert knob == "tensor_lr:2"
    assert new / old == (1 / STEP if factor > 1 else STEP)  # type: ignore[operator]


def test_without_rates_it_asks_and_changes_nothing() -> None:
    finding = only_finding(run(64.0, "update_ratio"))
    assert [t.changes for t in finding.treatments] == [{}]


def test_a_group_that_no_name_sets_apart_is_not_spelled() -> None:
    tensors = tuple(
        TensorInfo(name, (8, 8), kind="mlp") for name in ("a.b", "b.c", "c.a", "a.c", "b.a", "c.b")
    )
    values = np.full((20, 6), UNIT)
    values[:, :3] *= 9
    # the same rate for the other half but for one element more
    larger = (*tensors[:3], replace(tensors[3], shape=(9, 8)), *tensors[4:])
    finding = only_finding(make_trace(tensor_lr=values, tensors=larger))
    assert [t.changes for t in finding.treatments] == [{}]
