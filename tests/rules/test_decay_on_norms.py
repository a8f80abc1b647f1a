"""What the contract cannot know of `decay-on-norms`."""

import math
from dataclasses import replace
from typing import Any

import pytest

from optdoctor.engine import diagnose, examine
from optdoctor.findings import Finding, Severity, Status
from optdoctor.rules.decay_on_norms import RULE
from optdoctor.synthetic import make_trace
from optdoctor.trace import TensorInfo, Trace

WEIGHT = TensorInfo("h.0.mlp.weight", (8, 8), kind="mlp", weight_decay=0.1)
NORM = TensorInfo("h.0.ln.weight", (8,), kind="norm", weight_decay=0.1)
BIAS = TensorInfo("h.0.mlp.bias", (8,), kind="bias", weight_decay=0.1)


def run(*tensors: TensorInfo, decay: float = 0.1, rate: float = 1e-3, steps: float = 1000) -> Trace:
    return make_trace(weight_decay=decay, peak_lr=rate, total_steps=steps, tensors=tensors)


def of_length(reach: float) -> Trace:
    return run(WEIGHT, replace(NORM, weight_decay=1.0), decay=1.0, rate=reach, steps=1)


AT_LIMIT = {
    "decay": (
        lambda: run(WEIGHT, replace(NORM, weight_decay=0.0)),
        lambda: run(WEIGHT, replace(NORM, weight_decay=0.1)),
    ),
    "shrink": (lambda: of_length(math.nextafter(0.05, 0)), lambda: of_length(0.05)),
}


def only_finding(trace: Trace) -> Finding:
    outcome = examine(RULE, trace)
    assert outcome.status is Status.FOUND, outcome.reason
    (finding,) = outcome.findings
    return finding


def test_it_is_a_note_however_large_the_decay_and_no_cause() -> None:
    trace = run(WEIGHT, replace(NORM, weight_decay=100.0))
    finding = only_finding(trace)
    assert (finding.severity, finding.steps) == (Severity.NOTE, (0, 0))
    assert not finding.awaits_symptom
    assert diagnose(trace, [RULE]).causes == ()


def test_biases_are_named_beside_norms() -> None:
    finding = only_finding(run(WEIGHT, BIAS, NORM))
    assert finding.tensors == (NORM.name, BIAS.name)
    assert finding.summary == (
        "1 tensor of norms and 1 bias are decayed, by a weight decay of up to 0.1: rate times decay"
        " times updates is 0.1 (limit 0.05)."
    )
    alone = only_finding(run(WEIGHT, NORM))
    assert alone.summary.startswith("1 tensor of norms is decayed, by a weight decay of up to 0.1:")
    assert (alone.evidence[0].observed, alone.evidence[0].limit) == (pytest.approx(0.1), 0.05)


def test_biases_alone_are_not_told_of() -> None:
    assert examine(RULE, run(WEIGHT, BIAS)).status is Status.CLEAR


@pytest.mark.parametrize(
    "other",
    [{"weight_decay": 0.0}, {"trainable": False}, {"in_optimizer": False}, {"kind": "other"}],
    ids=str,
)
def test_norms_in_a_group_without_decay_or_not_trained_are_sound(other: dict[str, Any]) -> None:
    assert examine(RULE, run(WEIGHT, replace(NORM, **other))).status is Status.CLEAR


def test_a_run_without_decay_or_rate_is_sound() -> None:
    assert examine(RULE, run(WEIGHT, NORM, decay=0.0)).status is Status.CLEAR
    assert examine(RULE, run(WEIGHT, NORM, rate=0.0)).status is Status.CLEAR


def test_the_decay_is_that_of_the_norms_not_of_the_other_weights() -> None:
    weak = replace(NORM, weight_decay=0.01)
    assert examine(RULE, run(WEIGHT, weak)).status is Status.CLEAR
    strong = replace(NORM, weight_decay=0.2)
    assert only_finding(run(WEIGHT, weak, strong)).evidence[0].observed == pytest.approx(0.2)


def test_a_run_of_unknown_length_is_not_examined() -> None:
    outcome = examine(RULE, make_trace(weight_decay=0.1, peak_lr=1e-3, tensors=(NORM,)))
    assert (outcome.status, outcome.missing) == (Status.SKIPPED, ("total_steps",))


def test_without_tensors_it_abstains() -> None:
    assert examine(RULE, run()).status is Status.ABSTAINED
