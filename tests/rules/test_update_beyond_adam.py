"""What the contract cannot know of `update-beyond-adam`."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from optdoctor.engine import examine
from optdoctor.findings import Finding, Status
from optdoctor.rules.update_beyond_adam import RULE, SETTLED
from optdoctor.synthetic import make_trace
from optdoctor.trace import Event, TensorInfo, Trace

MATRIX = TensorInfo("fc.weight", (8, 8), dtype="float32")
MOST = 0.1 / math.sqrt(0.001 * (1 - 0.81 / 0.999))
"""Learning rates, of 0.9 and 0.999."""


def run(
    update: float, *, tensor: TensorInfo = MATRIX, size: float = 0.0, at: int = 0, **more: Any
) -> Trace:
    """Updates of one learning rate of 1, but for one of them."""
    updates = np.ones((60, 1))
    updates[at] = update
    facts = {"optimizer": "AdamW", "beta1": 0.9, "beta2": 0.999}
    weights, rates = np.full((60, 1), size), np.ones((60, 1))
    series = {"update_rms": updates, "tensor_lr": rates, "param_rms": weights}
    return make_trace({**facts, **series, **more}, tensors=(tensor,))


EXACT = {"beta1": 0.5, "beta2": 0.5}
"""Decays of which the bound is 1, without rounding."""

AT_LIMIT = {
    "times": (lambda: run(2.0, **EXACT), lambda: run(2.0 + 2**-22, **EXACT)),
    "settled": (
        lambda: replace(run(9.0, at=30, **EXACT), events=(Event(0, "resume", "so"),)),
        lambda: replace(run(9.0, at=31, **EXACT), events=(Event(0, "resume", "so"),)),
    ),
}


def only_finding(trace: Trace) -> Finding:
    outcome = examine(RULE, trace)
    assert outcome.status is Status.FOUND, outcome.reason
    (finding,) = outcome.findings
    return finding


def status(trace: Trace) -> Status:
    return examine(RULE, trace).status


def test_one_update_beyond_the_bound_is_enough() -> None:
    finding = only_finding(run(4 * MOST, at=7))
    assert (finding.steps, finding.tensors) == ((8, 8), ("fc.weight",))
    assert finding.evidence[0].observed == pytest.approx(4, rel=1e-6)


def test_decay_and_rounding_are_no_part_of_the_rule() -> None:
    decayed = replace(MATRIX, weight_decay=1.0)
    assert status(run(3 * MOST, tensor=decayed, size=MOST)) is Status.CLEAR
    assert status(run(3 * MOST, size=MOST)) is Status.FOUND
    assert status(run(3 * MOST, size=MOST * 2**22)) is Status.CLEAR


@pytest.mark.parametrize(
    "other",
    [{"dtype": "bfloat16"}, {"group": 1}, {"in_optimizer": False}],
)
def test_tensors_without_the_bound_are_not_judged(other: dict[str, Any]) -> None:
    assert status(run(9 * MOST, tensor=replace(MATRIX, **other))) is Status.CLEAR


@pytest.mark.parametrize("name", ["NAdam", "Lamb", "SparseAdam", "Mine"])
def test_other_rules_are_not_judged(name: str) -> None:
    assert status(run(9 * MOST, optimizer=name)) is Status.CLEAR


def test_moments_of_other_decays_are_given_time() -> None:
    for kind in ("resume", "tensors-changed"):
        event = Event(10, kind, "so")
        for at, expected in ((8 + SETTLED, Status.CLEAR), (9 + SETTLED, Status.FOUND)):
            trace = replace(run(9 * MOST, at=at), events=(event,))
            assert status(trace) is expected


def test_decays_without_a_bound_are_not_judged() -> None:
    assert status(run(9 * MOST, beta1=0.95, beta2=0.9)) is Status.ABSTAINED


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=60),
    st.sampled_from([(0.9, 0.999), (0.9, 0.95), (0.5, 0.9), (0.95, 0.99)]),
)
def test_no_gradients_take_adam_beyond_it(
    gradients: list[float], betas: tuple[float, float]
) -> None:
    """Of torch's own, in float64."""
    weight = torch.zeros(1, dtype=torch.float64)
    optimizer = torch.optim.Adam([weight], lr=1.0, betas=betas, eps=0.0)
    beta1, beta2 = betas
    most = (1 - beta1) / math.sqrt((1 - beta2) * (1 - beta1**2 / beta2))
    for gradient in [1.0, *gradients]:
        before = float(weight)
        weight.grad = torch.tensor([gradient], dtype=torch.float64)
        optimizer.step()
        assert abs(float(weight) - before) <= most * (1 + 1e-9)
