"""What the contract cannot know of `second-moment-saturated`."""

from typing import Any

import numpy as np
import pytest

from optdoctor.engine import examine
from optdoctor.findings import Finding, Severity, Status
from optdoctor.rules.second_moment_saturated import RULE
from optdoctor.synthetic import make_trace
from optdoctor.trace import TensorInfo, Trace

NAN = np.nan
TWO = (TensorInfo("small", (100,)), TensorInfo("large", (900,)))


def run(
    saturated: Any,
    dtype: str = "float16",
    tensors: tuple[TensorInfo, ...] = TWO,
    **more: Any,
) -> Trace:
    """A run; `saturated` is [T, P], or [P] of four samples alike."""
    rows = np.asarray(saturated, float)
    rows = np.tile(rows, (4, 1)) if rows.ndim == 1 else rows
    return make_trace(moment2_saturated=rows, state_dtype=dtype, tensors=tensors, **more)


def in_a_row(samples: int) -> Trace:
    return run([[0, 0]] + [[0.5, 0]] * samples + [[0, 0]] * 2)


def of_thousand(entries: int, **more: Any) -> Trace:
    tensors = (TensorInfo("ill", (entries,)), TensorInfo("well", (1000 - entries,)))
    return run([1.0, 0.0], tensors=tensors, **more)


AT_LIMIT = {
    "healthy": (lambda: run([0.0, 0.0]), lambda: run([0.0, 1 / 900])),
    "passing": (lambda: in_a_row(2), lambda: in_a_row(3)),
    "few": (lambda: of_thousand(10), lambda: of_thousand(11)),
    "most": (lambda: of_thousand(500), lambda: of_thousand(501)),
}


def only_finding(trace: Trace) -> Finding:
    outcome = examine(RULE, trace)
    assert outcome.status is Status.FOUND, outcome.reason
    (finding,) = outcome.findings
    return finding


def status(trace: Trace) -> Status:
    return examine(RULE, trace).status


@pytest.mark.parametrize(
    ("entries", "severity"), [(1, Severity.NOTE), (100, Severity.WARN), (900, Severity.CRITICAL)]
)
def test_the_more_entries_are_saturated_the_graver_it_is(entries: int, severity: Severity) -> None:
    finding = only_finding(of_thousand(entries))
    assert finding.severity is severity
    assert f"{entries} of 1,000 second-moment entries" in finding.summary
    assert finding.tensors == ("ill",)
    assert "above 32752" in finding.evidence[0].what


def test_what_follows_a_gradient_that_was_not_finite_is_anothers_fault() -> None:
    ill = [[0, 0]] * 2 + [[1.0, 1.0]] * 6
    assert status(run(ill)) is Status.FOUND
    first = np.full((8, 2), NAN)
    first[3:, 1] = 3.0
    assert status(run(ill, first_nonfinite_step=first)) is Status.CLEAR
    counts = np.zeros((8, 2))
    counts[2, 0] = 1
    for name in ("grad_nonfinite_raw", "grad_nonfinite"):
        assert status(run(ill, **{name: counts})) is Status.CLEAR


def test_what_was_saturated_before_such_a_gradient_is_still_told() -> None:
    first = np.full((8, 2), NAN)
    first[6:] = 7.0
    finding = only_finding(run([[0, 0]] * 2 + [[1.0, 0]] * 6, first_nonfinite_step=first))
    assert finding.steps == (3, 6)


def test_float32_state_is_treatment_where_it_is_none_yet() -> None:
    half = only_finding(run([0.5, 0.5]))
    assert half.treatments[0].changes == {"state_dtype": ("float16", "float32")}
    full = only_finding(run([0.5, 0.5], "float32"))
    assert [dict(t.changes) for t in full.treatments] == [{}]


def test_tensors_of_another_state_dtype_are_neither_counted_nor_named() -> None:
    tensors = (
        TensorInfo("half", (100,), state_dtype="float16"),
        TensorInfo("whole", (900,), state_dtype="float32"),
    )
    finding = only_finding(run([0.5, 0.9], tensors=tensors))
    assert finding.tensors == ("half",)
    assert "50 of 100 second-moment" in finding.summary


def test_the_worst_sample_is_told_beside_the_first() -> None:
    finding = only_finding(run([[0.1, 0], [0.5, 0], [1.0, 0], [0.5, 0]]))
    assert [e.observed for e in finding.evidence] == pytest.approx([1, 10])


def test_an_unknown_number_format_makes_it_abstain() -> None:
    assert status(run([0.5, 0.5], "uint8")) is Status.ABSTAINED


def test_a_partial_row_weighs_by_measured_elements_only() -> None:
    assert only_finding(run([0.5, NAN])).evidence[0].observed == pytest.approx(50)
    assert status(run([NAN, NAN])) is Status.CLEAR


@pytest.mark.parametrize("kind", [{"foreach": False}, {"foreach": True}, {"fused": True}])
def test_adam_in_float16_overflows_and_freezes_as_documented(kind: dict[str, bool]) -> None:
    torch = pytest.importorskip("torch")
    weights = torch.nn.Parameter(torch.ones(3, dtype=torch.float16))
    optimizer = torch.optim.AdamW([weights], lr=1e-2, eps=1e-4, weight_decay=0.0, **kind)
    weights.grad = torch.tensor([8200.0, 8000.0, 1.0]).half()
    optimizer.step()
    second = optimizer.state[weights]["exp_avg_sq"]
    assert torch.isinf(second).tolist() == [True, False, False]
    kept = weights.detach().clone()
    for _ in range(100):
        weights.grad = torch.ones_like(weights)
        optimizer.step()
    assert (weights == kept).tolist() == [True, False, False]


@pytest.mark.parametrize(("form", "said"), [("quantized", "blocks"), ("factored", "rows")])
def test_moments_that_are_decoded_first_are_not_judged(form: str, said: str) -> None:
    outcome = examine(RULE, of_thousand(900, moment2_form=form))
    assert outcome.status is Status.ABSTAINED
    assert said in outcome.reason


def test_of_projected_moments_the_share_is_told_alone() -> None:
    finding = only_finding(of_thousand(900, moment2_form="projected"))
    assert "90 % of the projected second-moment entries" in finding.summary
