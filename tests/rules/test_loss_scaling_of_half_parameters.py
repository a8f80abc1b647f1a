"""What the contract cannot know of `loss-scaling-of-half-parameters`."""

from dataclasses import replace
from typing import Any

import pytest

from optdoctor.engine import examine
from optdoctor.findings import Finding, Severity, Status
from optdoctor.rules.loss_scaling_of_half_parameters import FUSED, RULE
from optdoctor.synthetic import make_trace, small_gpt
from optdoctor.trace import Trace


def run(dtype: str = "float16", tensors: Any = None, **more: Any) -> Trace:
    facts = {
        "optimizer": "AdamW",
        "scaler": "on",
        "param_dtype": dtype,
        "state_dtype": dtype,
        "math_dtype": dtype,
    }
    table = small_gpt(dtype) if tensors is None else tensors
    return make_trace({**facts, **more}, tensors=table)


AT_LIMIT = {"scaler": (lambda: run(scaler="off"), lambda: run())}


def only_finding(trace: Trace) -> Finding:
    outcome = examine(RULE, trace)
    assert outcome.status is Status.FOUND, outcome.reason
    (finding,) = outcome.findings
    return finding


def status(trace: Trace) -> Status:
    return examine(RULE, trace).status


def test_it_is_critical_before_step_1_where_the_scaler_refuses() -> None:
    finding = only_finding(run())
    assert (finding.severity, finding.steps) == (Severity.CRITICAL, (0, 0))
    count = sum(t.num_elements for t in small_gpt())
    assert finding.summary == (
        f"{count:,} trained weights are float16 under a gradient scaler, which raises at the first"
        " update."
    )


@pytest.mark.parametrize("name", sorted(FUSED))
def test_a_fused_step_is_a_note(name: str) -> None:
    assert only_finding(run(optimizer=name, math_dtype="float32")).severity is Severity.NOTE


def test_float32_state_does_not_make_a_step_fused() -> None:
    """As of bitsandbytes' AdamW, whose class has the same name."""
    trace = run(math_dtype="float32", state_dtype="float32")
    assert only_finding(trace).severity is Severity.CRITICAL
    other = run(math_dtype="float32", optimizer="Adafactor", state_dtype=None)
    assert only_finding(other).severity is Severity.CRITICAL


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_other_weights_are_silent(dtype: str) -> None:
    assert status(run(dtype)) is Status.CLEAR


def test_without_a_scaler_it_is_silent() -> None:
    assert status(run(scaler="off")) is Status.CLEAR
    assert status(run(scaler=None)) is Status.SKIPPED


def test_frozen_half_weights_are_silent_and_not_counted() -> None:
    frozen = tuple(replace(t, trainable=False) for t in small_gpt("float16"))
    adapter = replace(small_gpt("float32")[1], name="lora_A.weight")
    assert status(run(tensors=(*frozen, adapter))) is Status.CLEAR
    half = replace(adapter, dtype="float16")
    assert only_finding(run(tensors=(*frozen, half))).tensors == ("lora_A.weight",)


def test_a_record_without_its_tensors_speaks_from_the_dtype() -> None:
    assert only_finding(run(tensors=())).summary.startswith("100 % of the trained weights")
