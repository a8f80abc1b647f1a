"""What the contract cannot know of `optimizer-of-another-model`."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from optdoctor.engine import diagnose, examine
from optdoctor.findings import Finding, Severity, Status
from optdoctor.rules import RULES
from optdoctor.rules.optimizer_of_another_model import RULE
from optdoctor.synthetic import make_trace, small_gpt
from optdoctor.trace import TensorInfo, Trace

MODEL = small_gpt()
LEFT = tuple(replace(t, in_optimizer=False) for t in MODEL)
OLD = tuple(replace(t, name=f"group0.{i}", in_model=False) for i, t in enumerate(MODEL))


def run(tensors: Sequence[TensorInfo], **more: object) -> Trace:
    held = sum(t.num_elements for t in tensors if t.in_optimizer and t.trainable)
    return make_trace(num_parameters=held, tensors=tuple(tensors), **more)


def new_head(*, left_out: bool = True, outputs: int = 5) -> Trace:
    """The optimizer holds the old head, the model has a new one."""
    body = [replace(t, in_optimizer=True) for t in MODEL]
    new = [TensorInfo("head.weight", (outputs, 64)), TensorInfo("head.bias", (outputs,))]
    new = [replace(t, dtype="float32", in_optimizer=not left_out) for t in new]
    old = [replace(t, name=f"group0.{9 + i}", in_model=False) for i, t in enumerate(new)]
    old = [replace(t, shape=(10, *t.shape[1:]), in_optimizer=True) for t in old]
    return run([*body, *new, *old])


AT_LIMIT = {
    "one foreign tensor": (lambda: run(MODEL), lambda: run([*MODEL, OLD[0]])),
    "all alike": (lambda: run([*LEFT, *OLD[1:]]), lambda: run([*LEFT, *OLD])),
    "none of its own": (lambda: run([MODEL[0], *LEFT[1:], *OLD[1:]]), lambda: run([*LEFT, *OLD])),
}


def only_finding(trace: Trace) -> Finding:
    outcome = examine(RULE, trace)
    assert outcome.status is Status.FOUND, outcome.reason
    (finding,) = outcome.findings
    return finding


def severity(trace: Trace) -> Severity:
    return only_finding(trace).severity


def test_an_optimizer_built_before_the_model_was_wrapped_is_critical_before_step_1() -> None:
    finding = only_finding(run([*LEFT, *OLD]))
    assert (finding.severity, finding.steps) == (Severity.CRITICAL, (0, 0))
    assert finding.tensors == tuple(t.name for t in (*OLD, *LEFT))
    assert finding.evidence[0].observed == 1
    assert finding.summary == (
        "9 of the optimizer's 9 trainable tensors are not the watched model's (limit 0), and 9 of"
        " its 9 trainable tensors are in no optimizer."
    )


@pytest.mark.parametrize("outputs", [5, 10])
def test_a_head_replaced_after_the_optimizer_was_built_is_a_warning(outputs: int) -> None:
    finding = only_finding(new_head(outputs=outputs))
    assert finding.severity is Severity.WARN
    assert finding.tensors == ("group0.9", "group0.10", "head.weight", "head.bias")
    (cause,) = diagnose(new_head(outputs=outputs), RULES).causes
    assert cause.rule == RULE.name


def test_a_loss_with_parameters_of_its_own_is_a_note() -> None:
    finding = only_finding(new_head(left_out=False))
    assert finding.severity is Severity.NOTE
    assert finding.summary == (
        "2 of the optimizer's 13 trainable tensors are not the watched model's (limit 0)."
    )


def test_a_part_that_is_watched_of_what_is_trained_is_a_note() -> None:
    decoder = [replace(t, name=f"group0.{9 + i}", in_model=False) for i, t in enumerate(MODEL)]
    assert severity(run([*MODEL, *decoder])) is Severity.NOTE


def test_a_frozen_backbone_watched_without_its_probe_is_a_note() -> None:
    probe = TensorInfo("group0.0", (10, 64), dtype="float32", in_model=False)
    assert severity(run([*LEFT, probe])) is Severity.NOTE


@pytest.mark.parametrize(
    "change",
    [{"dtype": "bfloat16"}, {"shape": (500, 32)}, {"held_elsewhere": True}, {"trainable": False}],
    ids=str,
)
def test_masters_other_shapes_and_what_others_train_are_no_replacement(
    change: dict[str, object],
) -> None:
    one = [replace(LEFT[0], **change), *LEFT[1:]]
    assert severity(run([*one, *OLD])) is Severity.NOTE
    every = [replace(t, **change) for t in LEFT]
    assert severity(run([*every, *OLD])) is Severity.NOTE


def test_flat_partitions_of_an_optimizer_that_shards_are_a_note() -> None:
    flat = TensorInfo("group0.0", (100_000,), dtype="float32", in_model=False)
    assert severity(run([*LEFT, flat])) is Severity.NOTE


def test_vectors_alone_are_too_little_to_know_what_they_stand_for() -> None:
    new = TensorInfo("layers.0._flat_param", (4096,), dtype="float32", in_optimizer=False)
    old = TensorInfo("group0.0", (4096,), dtype="float32", in_model=False)
    assert severity(run([new, old])) is Severity.NOTE
    assert severity(run([replace(new, name="scale"), old])) is Severity.NOTE


def test_a_model_flattened_after_the_optimizer_was_built_is_critical() -> None:
    flat = TensorInfo("layers.0._flat_param", (4096,), dtype="float32", in_optimizer=False)
    assert severity(run([flat, *OLD])) is Severity.CRITICAL
    whole = replace(flat, name="layers.0.weight")
    assert severity(run([whole, *OLD])) is Severity.NOTE


@pytest.mark.parametrize(
    ("gradient", "expected"),
    [(1e-3, Severity.NOTE), (0.0, Severity.CRITICAL), (np.nan, Severity.CRITICAL)],
)
def test_a_gradient_shows_that_the_loss_is_made_of_them(
    gradient: float, expected: Severity
) -> None:
    rows = np.full((3, 2 * len(MODEL)), np.nan)
    rows[1, len(MODEL) + 2] = gradient
    assert severity(run([*LEFT, *OLD], grad_rms=rows)) is expected


@pytest.mark.parametrize(
    ("reached", "expected"), [("yes", Severity.NOTE), ("no", Severity.CRITICAL)]
)
def test_so_does_one_before_the_first_update(reached: str, expected: Severity) -> None:
    assert severity(run([*LEFT, replace(OLD[0], reached=reached), *OLD[1:]])) is expected
    assert severity(run([replace(LEFT[0], reached=reached), *LEFT[1:], *OLD])) is Severity.CRITICAL


def test_a_gradient_of_the_models_own_shows_nothing() -> None:
    rows = np.full((3, 2 * len(MODEL)), np.nan)
    rows[:, 0] = 1.0
    assert severity(run([*LEFT, *OLD], grad_rms=rows)) is Severity.CRITICAL


def test_frozen_foreign_parameters_are_no_matter() -> None:
    frozen = [replace(t, trainable=False) for t in OLD]
    assert examine(RULE, run([*MODEL, *frozen])).status is Status.CLEAR


def test_without_tensors_it_abstains() -> None:
    assert examine(RULE, make_trace(num_parameters=64)).status is Status.ABSTAINED
