"""What the contract cannot know of `nonfinite-state`."""

from typing import Any

import numpy as np
import pytest

from optdoctor.engine import diagnose, examine
from optdoctor.findings import Finding, Severity, Status
from optdoctor.rules.nonfinite_state import RULE
from optdoctor.synthetic import make_trace
from optdoctor.trace import TensorInfo, Trace

TWO = TensorInfo("embedding", (100,)), TensorInfo("head", (50,))
NONE = np.zeros((8, 2))
LOSSES = [3.0, 2.9, 2.8, 2.7, 2.6, 2.5, 2.4, 2.3]


def rows(**at: Any) -> np.ndarray:
    """Eight samples of two tensors, with the values given for s1 to s8, of the first tensor."""
    found = NONE.copy()
    for step, value in at.items():
        found[int(step[1:]) - 1, 0] = value
    return found


def run(
    update: np.ndarray = NONE,
    moment: np.ndarray = NONE,
    gradient: np.ndarray = NONE,
    tensors: tuple[TensorInfo, ...] = TWO,
    **more: Any,
) -> Trace:
    return make_trace(
        update_nonfinite=update,
        moment2_saturated=moment,
        grad_nonfinite=gradient,
        tensors=tensors,
        **more,
    )


AT_LIMIT = {
    "an element of the update": (lambda: run(), lambda: run(rows(s4=1))),
    "an element of the weights at the start": (
        lambda: run(weights_nonfinite=0),
        lambda: run(weights_nonfinite=1),
    ),
    "the gradient of that step": (
        lambda: run(rows(s4=1), gradient=rows(s4=1)),
        lambda: run(rows(s4=1, s5=1), gradient=rows(s4=1)),
    ),
}


def only_finding(trace: Trace) -> Finding:
    outcome = examine(RULE, trace)
    assert outcome.status is Status.FOUND, outcome.reason
    (finding,) = outcome.findings
    return finding


def status(trace: Trace) -> Status:
    return examine(RULE, trace).status


def test_an_update_that_breaks_with_finite_gradients_is_critical() -> None:
    finding = only_finding(run(rows(s4=7, s5=7), loss=[*LOSSES[:5], *[np.nan] * 3]))
    assert (finding.severity, finding.steps) == (Severity.CRITICAL, (4, 5))
    assert finding.tensors == ("embedding",)
    assert finding.evidence[0].observed == 7


def test_it_is_a_warning_while_the_loss_is_finite() -> None:
    assert only_finding(run(rows(s4=7), loss=LOSSES)).severity is Severity.WARN
    assert only_finding(run(rows(s4=7), loss=LOSSES[:4])).severity is Severity.CRITICAL
    assert only_finding(run(rows(s4=7))).severity is Severity.CRITICAL


def test_a_gradient_that_is_not_finite_in_the_same_step_is_another_rules_affair() -> None:
    broken = rows(s4=1, s5=1, s6=1, s7=1, s8=1)
    assert status(run(broken, broken, broken)) is Status.CLEAR


def test_the_gradient_of_another_tensor_counts_too() -> None:
    elsewhere = NONE.copy()
    elsewhere[3, 1] = 1
    assert status(run(rows(s4=1), gradient=elsewhere)) is Status.CLEAR


def test_a_gradient_before_the_clip_counts_too() -> None:
    assert status(run(rows(s4=1), grad_nonfinite_raw=rows(s4=1))) is Status.CLEAR
    assert status(run(rows(s4=1), grad_nonfinite_raw=NONE)) is Status.FOUND


def test_moments_that_a_gradient_poisoned_are_found_though_weights_move() -> None:
    poisoned = run(moment=rows(s5=0.02, s6=0.02), gradient=rows(s3=1), loss=LOSSES)
    finding = only_finding(poisoned)
    assert (finding.severity, finding.steps) == (Severity.WARN, (5, 6))
    assert "at step 3" in finding.summary
    assert "step 3" in finding.treatments[0].title
    assert finding.evidence[0].observed == pytest.approx(2)


def test_the_poison_may_be_known_from_the_sentinel_alone() -> None:
    moment = rows(s5=0.02)
    assert status(run(moment=moment)) is Status.CLEAR
    first = np.full((8, 2), np.nan)
    first[4:, 0] = 4
    assert status(run(moment=moment, first_nonfinite_step=first)) is Status.FOUND
    first[4:, 0] = 5
    assert status(run(moment=moment, first_nonfinite_step=first)) is Status.CLEAR


def test_moments_that_are_large_in_float16_are_left_to_another_rule() -> None:
    half = tuple(TensorInfo(t.name, t.shape, state_dtype="float16") for t in TWO)
    poisoned = {"moment": rows(s5=0.02), "gradient": rows(s3=1)}
    assert status(run(**poisoned, tensors=half)) is Status.CLEAR
    assert status(run(**poisoned)) is Status.FOUND


def test_weights_that_begin_broken_are_told_from_the_first_step_on() -> None:
    everything = rows(**{f"s{i}": 9 for i in range(1, 9)})
    finding = only_finding(
        run(everything, everything, everything, weights_nonfinite=3, loss=[np.nan] * 8)
    )
    assert (finding.severity, finding.steps) == (Severity.CRITICAL, (1, 1))
    assert finding.summary.startswith("3 elements of the weights were NaN")
    assert finding.treatments[0].title.startswith("Load weights that are finite")


def test_without_a_single_row_the_fact_is_enough() -> None:
    finding = only_finding(make_trace(weights_nonfinite=1))
    assert finding.steps == (0, 0)
    assert "1 element of the trained weights was" in finding.summary


@pytest.mark.parametrize("value", [0, None, True, "garbage", -1, 10**400])
def test_a_fact_that_is_no_count_is_silent(value: Any) -> None:
    assert status(run(weights_nonfinite=value)) is Status.CLEAR


def test_without_gradients_nothing_is_known_of_them() -> None:
    trace = make_trace(update_nonfinite=rows(s4=1), tensors=TWO)
    assert status(trace) is Status.CLEAR


def test_an_adam_whose_state_was_saved_broken_is_told_before_its_gradients_break() -> None:
    torch = pytest.importorskip("torch")
    import optdoctor

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.Adam(model.parameters())
    _step(model, optimizer)
    optimizer.state[model.weight]["exp_avg_sq"][0, 0] = torch.nan
    with optdoctor.watch(model, optimizer, sinks=(), interval=1) as doctor:
        for _ in range(4):
            doctor.log(loss=_step(model, optimizer))
    diagnosis = diagnose(doctor.runs[0].trace)
    (finding,) = diagnosis.outcomes["nonfinite-state"].findings
    assert (finding.severity, finding.tensors) == (Severity.CRITICAL, ("weight",))
    assert diagnosis.causes[0].rule == "nonfinite-state"


def _step(model: Any, optimizer: Any) -> Any:
    optimizer.zero_grad()
    loss = model(model.weight.new_ones(3, 4)).square().mean()
    loss.backward()
    optimizer.step()
    return loss
