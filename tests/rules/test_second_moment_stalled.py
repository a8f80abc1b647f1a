"""What the contract cannot know of `second-moment-stalled`."""

from typing import Any

import numpy as np
import pytest

from optdoctor.engine import examine
from optdoctor.findings import Finding, Severity, Status
from optdoctor.rules.second_moment_stalled import RULE
from optdoctor.synthetic import make_trace
from optdoctor.trace import TensorInfo, Trace

ONE = (TensorInfo("w", (64,), state_dtype="bfloat16"),)
BEFORE = 30
EVERY = 100_000
"""Updates between two samples: a moment of full precision has forgotten the one before."""


def run(
    share: float = 1.0,
    *,
    samples: int = 12,
    held: Any = 4.0,
    gradient: Any = 2.0,
    beta2: float = 0.999,
    dtype: str = "bfloat16",
    family: str = "adam",
    tensors: tuple[TensorInfo, ...] = ONE,
    every: int = EVERY,
    **more: Any,
) -> Trace:
    """Gradients of 2 and a moment that matches them; then `samples` in which that much stands
    still."""
    rows, width = BEFORE + samples, len(tensors)
    unchanged = np.full((rows, width), 0.5)
    unchanged[BEFORE:] = share
    moments, gradients = np.full((rows, width), 4.0), np.full((rows, width), 2.0)
    moments[BEFORE:], gradients[BEFORE:] = held, gradient
    sampled = ("moment2_unchanged", "moment2_rms", "grad_rms")
    # The samples before lie close together, so that some are within the moment's memory.
    steps = EVERY + np.concatenate([np.arange(BEFORE), BEFORE + every * np.arange(samples)])
    return make_trace(
        moment2_unchanged=unchanged,
        moment2_rms=moments,
        grad_rms=gradients,
        beta2=beta2,
        state_dtype=dtype,
        optimizer_family=family,
        tensors=tensors,
        steps=dict.fromkeys(sampled, steps),
        **more,
    )


AT_LIMIT = {
    "share": (lambda: run(0.875), lambda: run(0.8750001)),
    "samples": (lambda: run(samples=9), lambda: run(samples=10)),
    "factor": (lambda: run(gradient=1.0), lambda: run(gradient=0.9999)),
}


def only_finding(trace: Trace) -> Finding:
    outcome = examine(RULE, trace)
    assert outcome.status is Status.FOUND, outcome.reason
    (finding,) = outcome.findings
    return finding


def status(trace: Trace) -> Status:
    return examine(RULE, trace).status


def test_a_moment_that_matches_the_gradients_is_a_note() -> None:
    finding = only_finding(run())
    assert finding.severity is Severity.NOTE
    assert finding.steps == (EVERY + BEFORE, EVERY + BEFORE + 11 * EVERY)
    assert [e.observed for e in finding.evidence] == [100.0, 1.0]


def test_one_that_did_not_follow_the_gradients_down_is_a_warning_with_the_factor() -> None:
    finding = only_finding(run(gradient=0.2))
    assert finding.severity is Severity.WARN
    assert finding.evidence[1].observed == pytest.approx(10)
    assert "10 times smaller" in finding.summary


def test_one_that_full_precision_would_hold_as_long_is_no_warning() -> None:
    """100 updates after the fall a moment with beta2 0.999 still is 0.9 of what it was."""
    finding = only_finding(run(gradient=0.2, every=10))
    assert finding.severity is Severity.NOTE
    assert finding.evidence[1].observed == pytest.approx(
        (0.999**110 + 0.01 * (1 - 0.999**110)) ** -0.5
    )


def test_half_of_the_entries_have_to_be_cut() -> None:
    tensors = TensorInfo("small", (400,)), TensorInfo("large", (600,))
    assert only_finding(run(gradient=[0.2, 2.0], tensors=tensors)).severity is Severity.NOTE
    finding = only_finding(run(gradient=[2.0, 0.2], tensors=tensors))
    assert (finding.severity, finding.tensors) == (Severity.WARN, ("large",))


@pytest.mark.parametrize(
    ("dtype", "beta2", "found"),
    [
        ("bfloat16", 0.999, Status.FOUND),
        ("bfloat16", 0.9962, Status.FOUND),
        ("bfloat16", 1 - 2.0**-8, Status.CLEAR),
        ("bfloat16", 0.95, Status.CLEAR),
        ("float16", 0.999, Status.CLEAR),
        ("float16", 0.9999, Status.FOUND),
        ("float32", 0.9999, Status.CLEAR),
    ],
)
def test_only_a_decay_that_the_dtype_rounds_away_can_be_stalled(
    dtype: str, beta2: float, found: Status
) -> None:
    assert status(run(dtype=dtype, beta2=beta2)) is found


@pytest.mark.parametrize("family", ["rmsprop", "adabelief", "lion", "other"])
def test_other_families_are_not_judged(family: str) -> None:
    assert status(run(family=family)) is Status.CLEAR


def test_an_unknown_dtype_makes_it_abstain() -> None:
    assert status(run(dtype="float8_e4m3fn")) is Status.ABSTAINED


def test_without_gradients_it_is_a_note() -> None:
    trace = make_trace(
        moment2_unchanged=np.ones((20, 1)),
        beta2=0.999,
        state_dtype="bfloat16",
        optimizer_family="adam",
        tensors=ONE,
    )
    assert only_finding(trace).severity is Severity.NOTE


def test_a_beta2_is_proposed_only_where_the_dtype_can_follow_it() -> None:
    changes = [t.changes for t in only_finding(run()).treatments]
    assert changes == [{"state_dtype": ("bfloat16", "float32")}, {"beta2": (0.999, 0.99)}]


def test_adam_in_bfloat16_is_found_and_the_comparison_is_that_of_float32() -> None:
    """200 updates with gradients of about 1, then 2,000 with a thousandth of them."""
    torch = pytest.importorskip("torch")
    trace, moment = _trained(torch, torch.bfloat16)
    _, full = _trained(torch, torch.float32)
    finding = only_finding(trace)
    assert finding.severity is Severity.WARN
    assert finding.evidence[1].observed == pytest.approx((moment / full) ** 0.5, rel=0.05)


def _trained(torch: Any, dtype: Any) -> tuple[Trace, float]:
    """The samples of every 20th update, and the root mean square of the moment at the end."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.zeros(256, dtype=dtype, requires_grad=True)
    optimizer = torch.optim.Adam([weight], lr=1e-3)
    rows: dict[str, list[list[float]]] = {
        "moment2_unchanged": [],
        "moment2_rms": [],
        "grad_rms": [],
    }
    steps = []
    for step in range(1, 2201):
        scale = 1.0 if step <= 200 else 1e-3
        weight.grad = (scale * torch.randn(256, generator=generator)).to(dtype)
        sampled = step % 20 == 0
        old = optimizer.state[weight]["exp_avg_sq"].clone() if sampled else None
        optimizer.step()
        if sampled:
            new = optimizer.state[weight]["exp_avg_sq"]
            rows["moment2_unchanged"].append([float((new == old).float().mean())])
            rows["moment2_rms"].append([float(new.float().square().mean().sqrt())])
            rows["grad_rms"].append([float(weight.grad.float().square().mean().sqrt())])
            steps.append(step)
    trace = make_trace(
        rows,
        steps=dict.fromkeys(rows, steps),
        beta2=0.999,
        state_dtype=str(dtype).removeprefix("torch."),
        optimizer_family="adam",
        tensors=(TensorInfo("w", (256,)),),
    )
    return trace, rows["moment2_rms"][-1][0]
