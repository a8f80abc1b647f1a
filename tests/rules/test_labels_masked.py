"""What the contract cannot know of `labels-masked`."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from optdoctor.engine import diagnose, examine, ranked
from optdoctor.findings import Finding, Severity, Status
from optdoctor.rules.labels_masked import RULE
from optdoctor.synthetic import falling_loss, gradient_norms, make_trace
from optdoctor.trace import TensorInfo, Trace

ROW = np.arange(400)


def run(loss: Any, norm: Any, **facts: Any) -> Trace:
    return make_trace(loss=np.asarray(loss, float), grad_norm=np.asarray(norm, float), **facts)


def broken(rows: Any, loss: float, norm: float, **facts: Any) -> Trace:
    """400 updates with such a loss and norm in those rows."""
    losses, norms = falling_loss(), gradient_norms()
    losses[rows], norms[rows] = loss, norm
    return run(losses, norms, **facts)


def without_norms(nan: Any, *, evaluations: Any = (), losses: int = 40, **facts: Any) -> Trace:
    """A log of each tenth update without a gradient norm, with such rows NaN; evaluations at those
    steps."""
    loss = falling_loss(losses)
    loss[nan] = np.nan
    at = {"loss": 10 * np.arange(1, losses + 1), "eval_loss": np.asarray(evaluations, int)}
    held_out = {"eval_loss": np.ones(len(evaluations))} if len(evaluations) else {}
    known = {"param_dtype": "float32", **held_out, **facts}
    return make_trace(known, loss=loss, steps=at)


FORTY = np.arange(40)

AT_LIMIT = {
    "lasting without norms": (
        lambda: without_norms((FORTY < 12) & (FORTY % 4 != 3)),
        lambda: without_norms((FORTY < 13) & (FORTY % 4 != 3)),
    ),
    "idle without norms": (
        lambda: without_norms((FORTY < 36) & np.isin(FORTY % 4, (0, 3))),
        lambda: without_norms((FORTY < 36) & np.isin(FORTY % 4, (0, 3)) | (FORTY == 5)),
    ),
    "unlabelled": (RULE.healthy, lambda: broken([399], np.nan, 0.0)),
    "lasting": (
        lambda: broken((ROW >= 370) & (ROW != 390), np.nan, 0.0),
        lambda: broken((ROW >= 370) & (ROW != 389), np.nan, 0.0),
    ),
    "lasting before the end": (
        lambda: broken((ROW >= 390) & (ROW < 399), np.nan, 0.0),
        lambda: broken((ROW >= 389) & (ROW < 399), np.nan, 0.0),
    ),
    "idle": (
        lambda: broken((ROW >= 100) & (ROW % 2 == 0), np.nan, 0.0),
        lambda: broken((ROW >= 100) & (ROW % 2 == 0) | (ROW == 101), np.nan, 0.0),
    ),
}


def sampled(norm: float, nonfinite: float) -> Trace:
    """400 updates with a NaN loss in the last 100, every fourth sampled: its norm, then."""
    loss, at = falling_loss(), np.arange(0, 400, 4)
    loss[300:] = np.nan
    is_late = at >= 300
    return make_trace(
        loss=loss,
        grad_norm_used=np.where(is_late, norm, 1.0),
        grad_nonfinite=np.where(is_late, nonfinite, 0.0)[:, None],
        tensors=(TensorInfo("weight", (8,)),),
        steps={"grad_norm_used": at + 1, "grad_nonfinite": at + 1},
    )


def only_finding(trace: Trace) -> Finding:
    outcome = examine(RULE, trace)
    assert outcome.status is Status.FOUND, outcome.reason
    (finding,) = outcome.findings
    return finding


def status(trace: Trace) -> Status:
    return examine(RULE, trace).status


def test_a_single_masked_batch_is_a_note() -> None:
    finding = only_finding(broken([150], np.nan, 0.0))
    assert (finding.severity, finding.steps) == (Severity.NOTE, (151, 151))
    assert "NaN in 1 of 400 rows at step 151" in finding.summary
    assert "norm that is exactly 0: the weights stay whole" in finding.summary


def test_it_is_the_cause_where_the_nan_losses_of_a_run_are_all_of_this_kind() -> None:
    diagnosis = diagnose(broken(ROW % 9 == 4, np.nan, 0.0))
    assert ranked(diagnosis)[:2] == ("labels-masked", "nan-pulse")
    assert diagnosis.causes[0].rule == "labels-masked"
    assert diagnosis.causes[0].explains == ("nan-pulse",)


def test_it_is_no_cause_where_numbers_broke_as_well() -> None:
    trace = broken([150, 200], np.nan, 0.0)
    series = trace.series
    for norm in (np.nan, 3.0):
        losses, norms = series["loss"].values.copy(), series["grad_norm"].values.copy()
        losses[300:], norms[300:] = np.nan, norm
        diagnosis = diagnose(run(losses, norms))
        assert "labels-masked" not in [cause.rule for cause in diagnosis.causes]
        assert "labels-masked" in ranked(diagnosis)


def test_nan_losses_between_samples_are_of_this_kind_where_finite_ones_follow() -> None:
    is_masked = ROW % 9 == 4
    at = np.arange(0, 400, 20)
    loss = np.where(is_masked, np.nan, falling_loss())
    channels = {
        "grad_norm_used": np.where(is_masked[at], 0.0, 1.0),
        "grad_nonfinite": np.zeros((at.size, 1)),
        "tensors": (TensorInfo("weight", (8,)),),
        "steps": {"grad_norm_used": at + 1, "grad_nonfinite": at + 1},
    }
    finding = only_finding(make_trace(loss=loss, **channels))
    assert finding.awaits_symptom
    assert finding.steps == (5, 221)
    assert (
        "in 2 of 20 rows of which loss and gradient norm are known, from step 41 to 221"
        in finding.summary
    )
    assert finding.evidence[2].observed == is_masked.sum()
    loss[395:] = np.nan
    assert not only_finding(make_trace(loss=loss, **channels)).awaits_symptom


def test_rows_apart_do_not_tell_that_nothing_is_learnt() -> None:
    every_tenth = {"loss": 10 * np.arange(1, 26), "grad_norm": 10 * np.arange(1, 26)}
    zeros = {"loss": np.zeros(25), "grad_norm": np.zeros(25)}
    finding = only_finding(make_trace(zeros, steps=every_tenth))
    assert finding.severity is Severity.WARN
    assert "nothing is learnt" not in finding.summary
    finding = only_finding(make_trace(zeros | {"loss_window": 10}, steps=every_tenth))
    assert finding.severity is Severity.CRITICAL


def test_a_masked_micro_batch_among_others_is_a_note() -> None:
    for several in ({"accumulation_steps": 4}, {"world_size": 2}):
        finding = only_finding(broken([150, 200, 300], np.nan, 0.7, **several))
        assert finding.severity is Severity.NOTE
        assert "finite, at most 0.7" in finding.summary


def test_a_gradient_of_one_batch_alone_is_not_made_of_masked_labels() -> None:
    """A mean over no label has a gradient of 0: this NaN has another reason, or is not trained."""
    assert status(broken([150, 200, 300], np.nan, 0.7)) is Status.CLEAR
    assert status(broken([150, 200, 300], np.nan, 0.7, accumulation_steps=1)) is Status.CLEAR


def test_every_label_masked_from_the_start_is_critical() -> None:
    finding = only_finding(run(np.full(50, np.nan), np.zeros(50)))
    assert (finding.severity, finding.steps) == (Severity.CRITICAL, (1, 50))
    assert "NaN in all 50 rows from step 1 to 50" in finding.summary


def test_a_loss_and_a_norm_of_0_from_the_start_tell_both_reasons() -> None:
    finding = only_finding(run(np.zeros(50), np.zeros(50)))
    assert finding.severity is Severity.CRITICAL
    assert finding.summary.startswith("Labels all masked or rewards all alike")
    assert any("rewards" in t.title for t in finding.treatments)


def test_losses_of_0_far_from_0_are_masked_batches() -> None:
    assert only_finding(broken([100, 200], 0.0, 0.0)).severity is Severity.NOTE


@pytest.mark.parametrize(("loss", "norm"), [(np.nan, np.nan), (np.nan, np.inf), (np.inf, 0.0)])
def test_numbers_that_broke_are_another_illness(loss: float, norm: float) -> None:
    assert status(broken(ROW >= 300, loss, norm)) is Status.CLEAR
    assert status(broken([300], loss, norm)) is Status.CLEAR


def test_nan_losses_to_the_end_with_gradients_are_no_loss_of_the_run() -> None:
    trace = broken(ROW >= 300, np.nan, 1.0, accumulation_steps=2)
    assert only_finding(trace).severity is Severity.NOTE


def test_a_loss_of_0_with_a_gradient_is_usual_in_policy_optimization() -> None:
    assert status(run(np.zeros(400), gradient_norms())) is Status.CLEAR
    assert status(broken(ROW < 30, 0.0, 1.0)) is Status.CLEAR


def test_prompts_with_answers_all_alike_are_silent_and_all_of_them_are_not() -> None:
    assert status(broken([100, 200], 0.0, 0.0, loss_kind="reward")) is Status.CLEAR
    trace = run(np.zeros(50), np.zeros(50), loss_kind="reward")
    assert only_finding(trace).severity is Severity.CRITICAL


def test_a_hinge_loss_that_reaches_0_is_solved() -> None:
    loss = np.maximum(1 - ROW / 100, 0)
    assert status(run(loss, (loss > 0).astype(float))) is Status.CLEAR


def test_beside_a_scaler_a_norm_that_is_not_0_tells_nothing() -> None:
    skipped = np.zeros(400)
    assert status(broken([150], np.nan, 1.0, step_skipped=skipped)) is Status.CLEAR
    assert status(broken([150], np.nan, 1.0, loss_scale=skipped + 1024)) is Status.CLEAR
    assert status(broken([150], np.nan, 0.0, loss_scale=skipped + 1024)) is Status.FOUND


def test_rows_that_are_means_of_several_updates_count_with_a_norm_of_0_alone() -> None:
    assert status(broken([150], np.nan, 1.0, loss_window=10)) is Status.CLEAR
    assert status(broken([150], np.nan, 0.0, loss_window=10)) is Status.FOUND


def test_without_a_logged_norm_the_sampled_updates_count() -> None:
    finding = only_finding(sampled(0.0, 0.0))
    assert (finding.severity, finding.steps) == (Severity.CRITICAL, (301, 397))
    assert finding.evidence[1].channel == "grad_norm_used"
    assert status(sampled(0.0, 8.0)) is Status.CLEAR


def test_a_finite_loss_between_two_samples_shows_that_something_is_learnt() -> None:
    trace = sampled(0.0, 0.0)
    loss = np.array(trace.series["loss"].values)
    loss[394] = 2.0
    other = make_trace(loss=loss).series["loss"]
    mixed = replace(trace, series={**trace.series, "loss": other})
    assert only_finding(mixed).severity is Severity.WARN


def test_a_norm_over_finite_elements_alone_tells_nothing() -> None:
    trace = sampled(0.0, 0.0)
    series = {n: s for n, s in trace.series.items() if n != "grad_nonfinite"}
    assert status(replace(trace, series=series)) is Status.CLEAR


def test_most_batches_without_a_label_are_a_warning() -> None:
    finding = only_finding(broken((ROW >= 100) & (ROW % 10 > 0), np.nan, 0.0))
    assert (finding.severity, finding.steps) == (Severity.WARN, (102, 400))
    assert "90.3 % of the rows since then teach nothing (limit 50 %)" in finding.summary


def test_rows_without_a_norm_are_not_judged() -> None:
    loss, norm = falling_loss(), gradient_norms()
    loss[150] = np.nan
    steps = {"loss": ROW + 1, "grad_norm": np.delete(ROW, 150) + 1}
    trace = make_trace(loss=loss, grad_norm=np.delete(norm, 150), steps=steps)
    assert status(trace) is Status.CLEAR


def test_in_pytorch_a_mean_over_no_label_is_nan_with_a_gradient_of_0() -> None:
    torch = pytest.importorskip("torch")
    weight = torch.zeros(4, 3, requires_grad=True)
    masked = torch.full((4,), -100)
    loss = torch.nn.functional.cross_entropy(weight, masked)
    loss.backward()
    assert torch.isnan(loss)
    assert (weight.grad == 0).all()


MOST = (FORTY < 39) & (FORTY % 10 != 9)


def test_without_norms_finite_losses_that_come_back_show_whole_weights() -> None:
    finding = only_finding(without_norms(MOST))
    assert finding.severity is Severity.WARN
    assert finding.summary == (
        "Labels all masked, as it seems: the loss is NaN in 36 of 40 rows from step 10 to 390"
        " (limit 0) and finite numbers came back after them 4 times: 92.3 % of the rows since then"
        " teach nothing (limit 50 %)."
    )
    assert "guard" in finding.treatments[-1].title


def test_without_norms_finite_evaluations_show_whole_weights() -> None:
    assert only_finding(without_norms(FORTY >= 0, evaluations=(100, 200, 391))).severity is (
        Severity.WARN
    )
    assert status(without_norms(FORTY >= 0, evaluations=(100, 391))) is Status.CLEAR
    assert status(without_norms(FORTY >= 0, evaluations=(1, 2, 3))) is Status.CLEAR


def test_without_norms_a_run_that_broke_and_was_set_back_is_silent() -> None:
    assert status(without_norms(FORTY >= 10)) is Status.CLEAR
    assert status(without_norms((FORTY >= 10) & (FORTY < 39) & (FORTY != 20))) is Status.CLEAR


@pytest.mark.parametrize(
    "facts",
    [
        {"param_dtype": "float16"},
        {"compute_dtype": "float16"},
        {"scaler": "on"},
        {"param_dtype": None},
        {"loss_window": 10},
    ],
)
def test_without_norms_updates_that_may_be_left_out_are_silent(facts: dict[str, Any]) -> None:
    facts = {"param_dtype": "float32", **facts}
    trace = without_norms(MOST, **{k: v for k, v in facts.items() if v})
    if facts["param_dtype"] is None:
        trace = replace(trace, facts={k: v for k, v in trace.facts.items() if k != "param_dtype"})
    assert status(trace) is Status.CLEAR
