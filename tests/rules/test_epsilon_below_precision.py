"""What the contract cannot know of `epsilon-below-precision`."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from optdoctor.engine import examine
from optdoctor.findings import Severity, Status
from optdoctor.knowledge.precision import round_to
from optdoctor.rules.epsilon_below_precision import DIVIDING, RULE
from optdoctor.synthetic import make_trace, small_gpt
from optdoctor.trace import Trace

HALF_THE_SMALLEST = 2.0**-25  # of float16; a tie, rounded to even: 0


def run(eps: float, math_dtype: str, param_dtype: str = "float16", family: str = "adam") -> Trace:
    return make_trace(
        optimizer_family=family,
        eps=eps,
        param_dtype=param_dtype,
        math_dtype=math_dtype,
        tensors=small_gpt(param_dtype, math_dtype),
    )


AT_LIMIT = {
    "eps chosen as 0": (lambda: run(0.0, "float16"), lambda: run(5e-324, "float16")),
    "rounding": (
        lambda: run(math.nextafter(HALF_THE_SMALLEST, 1), "float16"),
        lambda: run(HALF_THE_SMALLEST, "float16"),
    ),
}


def status(trace: Trace) -> Status:
    return examine(RULE, trace).status


def test_unfused_float16_fires_before_step_1_on_every_tensor() -> None:
    (finding,) = examine(RULE, run(1e-8, "float16")).findings
    assert (finding.severity, finding.steps) == (Severity.CRITICAL, (0, 0))
    assert finding.tensors == tuple(tensor.name for tensor in small_gpt())
    assert (finding.evidence[0].observed, finding.evidence[0].limit) == (0.0, 1e-8)


@pytest.mark.parametrize(
    ("scaler", "weights", "severity"),
    [
        ("on", "float16", Severity.WARN),
        ("on", "float32", Severity.CRITICAL),
        ("off", "float16", Severity.CRITICAL),
    ],
)
def test_a_scaler_refuses_such_gradients_before_any_update(
    scaler: str, weights: str, severity: Severity
) -> None:
    trace = run(1e-8, "float16", weights)
    trace = replace(trace, facts={**trace.facts, "scaler": scaler})
    (finding,) = examine(RULE, trace).findings
    assert finding.severity is severity


@pytest.mark.parametrize(
    ("param_dtype", "math_dtype"),
    [("float16", "float32"), ("bfloat16", "bfloat16"), ("float32", "float32")],
    ids=["fused", "bfloat16", "float32"],
)
def test_a_dtype_that_holds_epsilon_is_silent(param_dtype: str, math_dtype: str) -> None:
    assert status(run(1e-8, math_dtype, param_dtype)) is Status.CLEAR


@pytest.mark.parametrize("math_dtype", ["float16", "bfloat16", "float32"])
def test_an_epsilon_of_0_is_the_users_choice(math_dtype: str) -> None:
    assert status(run(0.0, math_dtype)) is Status.CLEAR


@pytest.mark.parametrize("eps", [1e-4, 1e-6, 1e-7])
def test_an_epsilon_that_float16_holds_is_silent(eps: float) -> None:
    assert status(run(eps, "float16")) is Status.CLEAR


@pytest.mark.parametrize("family", sorted(DIVIDING - {"adam"}))
def test_its_kin_are_told_by_runs_of_their_own(family: str) -> None:
    (finding,) = examine(RULE, run(1e-8, "float16", family=family)).findings
    assert all("each family" in treatment.source for treatment in finding.treatments)


@pytest.mark.parametrize("family", ["sgd", "lion", "stable_adamw", "adam_mini", "muon", "other"])
def test_other_families_are_silent(family: str) -> None:
    assert status(run(1e-8, "float16", family=family)) is Status.CLEAR


def test_an_unknown_dtype_is_silent() -> None:
    assert status(run(1e-8, "float8_e4m3fn")) is Status.CLEAR


def test_weights_already_in_float32_are_not_to_be_changed() -> None:
    (finding,) = examine(RULE, run(1e-8, "float16", "float32")).findings
    assert finding.treatments[0].changes == {"math_dtype": ("float16", "float32")}


@given(st.floats(-60000, 60000) | st.floats(-1e-4, 1e-4) | st.floats(-1e-7, 1e-7))
@example(HALF_THE_SMALLEST)
@example(math.nextafter(HALF_THE_SMALLEST, 1))
@example(1.5 * 2.0**-24)
def test_rounding_to_float16_is_that_of_numpy(value: float) -> None:
    assert round_to(value, "float16") == float(np.float16(value))


@given(st.floats(-1e30, 1e30) | st.floats(-1e-30, 1e-30) | st.floats(-1e-44, 1e-44))
@example(2.0**-150)
@example(math.nextafter(2.0**-150, 1))
def test_rounding_to_float32_is_that_of_numpy(value: float) -> None:
    assert round_to(value, "float32") == float(np.float32(value))


@given(st.floats(-1e30, 1e30) | st.floats(-1e-30, 1e-30) | st.floats(-1e-40, 1e-40))
@settings(deadline=None)  # the first example imports torch
def test_rounding_to_bfloat16_is_that_of_torch(value: float) -> None:
    torch = pytest.importorskip("torch")
    exact = float(np.float32(value))  # torch rounds twice on its way from float64
    assert round_to(exact, "bfloat16") == torch.tensor(exact).to(torch.bfloat16).item()


def test_rounding_to_an_unknown_dtype_is_unknown() -> None:
    assert round_to(1.0, "float8_e4m3fn") is None
