"""What the contract cannot know of `nothing-trainable`."""

from dataclasses import replace

import numpy as np
import pytest

from optdoctor.engine import examine
from optdoctor.findings import Finding, Severity, Status
from optdoctor.rules.nothing_trainable import RULE
from optdoctor.synthetic import make_trace, small_gpt
from optdoctor.trace import TensorInfo, Trace

FROZEN = tuple(replace(t, trainable=False) for t in small_gpt())


def run(tensors: tuple[TensorInfo, ...], trained: int = 0, **more: object) -> Trace:
    return make_trace(num_parameters=trained, tensors=tensors, **more)


def one_trained() -> Trace:
    tensors = (replace(FROZEN[0], trainable=True), *FROZEN[1:])
    return run(tensors, trained=FROZEN[0].num_elements)


AT_LIMIT = {"one tensor": (one_trained, lambda: run(FROZEN))}


def only_finding(trace: Trace) -> Finding:
    outcome = examine(RULE, trace)
    assert outcome.status is Status.FOUND, outcome.reason
    (finding,) = outcome.findings
    return finding


def test_frozen_weights_only_are_critical_before_step_1() -> None:
    finding = only_finding(run(FROZEN))
    assert (finding.severity, finding.steps) == (Severity.CRITICAL, (0, 0))
    assert finding.tensors == tuple(t.name for t in FROZEN)
    assert finding.summary == (
        "0 of the 9 tensors of the optimizer require a gradient: no weight will move."
    )


def test_an_optimizer_with_empty_groups_is_critical() -> None:
    finding = only_finding(run(tuple(replace(t, in_optimizer=False) for t in small_gpt())))
    assert finding.severity is Severity.CRITICAL
    assert finding.summary == (
        "The optimizer holds 0 of the 9 tensors of the model: no weight will move."
    )


def test_while_another_optimizer_trains_it_is_a_note() -> None:
    other = replace(small_gpt()[0], in_optimizer=False, held_elsewhere=True)
    assert only_finding(run((other, *FROZEN[1:]))).severity is Severity.NOTE
    idle = replace(other, trainable=False)
    assert only_finding(run((idle, *FROZEN[1:]))).severity is Severity.CRITICAL


def test_a_trainable_one_is_enough_whatever_the_count_says() -> None:
    tensors = (replace(FROZEN[0], trainable=True, shape=(0, 4)), *FROZEN[1:])
    assert examine(RULE, run(tensors)).status is Status.CLEAR


def test_master_copies_are_not_judged() -> None:
    copies = tuple(replace(t, in_model=False) for t in FROZEN)
    assert examine(RULE, run(copies)).status is Status.CLEAR


@pytest.mark.parametrize(
    ("gradient", "status"),
    [(1e-3, Status.CLEAR), (0.0, Status.FOUND), (np.nan, Status.FOUND)],
)
def test_gradients_written_by_hand_end_it(gradient: float, status: Status) -> None:
    rows = np.zeros((3, len(FROZEN)))
    rows[1, 2] = gradient
    assert examine(RULE, run(FROZEN, grad_rms=rows)).status is status


@pytest.mark.parametrize(("reached", "status"), [("yes", Status.CLEAR), ("no", Status.FOUND)])
def test_a_gradient_seen_before_the_first_update_ends_it(reached: str, status: Status) -> None:
    tensors = (*FROZEN[:2], replace(FROZEN[2], reached=reached), *FROZEN[3:])
    assert examine(RULE, run(tensors)).status is status


def test_gradients_of_what_the_optimizer_does_not_hold_do_not_count() -> None:
    rows = np.zeros((3, len(FROZEN)))
    rows[:, 0] = 1.0
    tensors = (replace(FROZEN[0], in_optimizer=False), *FROZEN[1:])
    assert examine(RULE, run(tensors, grad_rms=rows)).status is Status.FOUND


def test_without_tensors_it_abstains() -> None:
    assert examine(RULE, make_trace(num_parameters=0)).status is Status.ABSTAINED
