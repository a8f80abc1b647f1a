"""What the contract cannot know of `nonfinite-gradient`."""

from typing import Any

import numpy as np
import pytest

from optdoctor.engine import diagnose, examine
from optdoctor.findings import Finding, Severity, Status
from optdoctor.rules.nonfinite_gradient import RULE
from optdoctor.synthetic import make_trace
from optdoctor.trace import TensorInfo, Trace

NAN, INF = np.nan, np.inf
THREE = tuple(TensorInfo(name, (4,), order=i) for i, name in enumerate(["embed", "block", "head"]))


def norms(*values: float, **more: Any) -> Trace:
    """A log of gradient norms."""
    return make_trace(grad_norm=values, **more)


def first_at(*steps: float, rows: int = 6, **more: Any) -> Trace:
    """The first bad step of each of three tensors, as a sentinel tells it at each row."""
    row = np.arange(1, rows + 1)[:, None]
    seen = np.where(np.array(steps) <= row, np.array(steps), NAN)
    return make_trace(first_nonfinite_step=seen, tensors=THREE, **more)


AT_LIMIT = {
    "few": (
        lambda: norms(*[1.0] * 10, INF, *[1.0] * 9),
        lambda: norms(*[1.0] * 10, INF, *[1.0] * 8),
    ),
}


def every(
    distance: int, norm: list[float], loss: list[float], *, loss_steps: Any = None, **more: Any
) -> Trace:
    """A log whose rows stand so many steps apart."""
    at = [distance * (row + 1) for row in range(len(norm))]
    steps = {"grad_norm": at, "loss": at if loss_steps is None else loss_steps}
    return make_trace(grad_norm=norm, loss=loss, steps=steps, **more)


def only_finding(trace: Trace) -> Finding:
    outcome = examine(RULE, trace)
    assert outcome.status is Status.FOUND, outcome.reason
    (finding,) = outcome.findings
    return finding


def status(trace: Trace) -> Status:
    return examine(RULE, trace).status


def test_the_first_tensor_is_named_before_a_clip_smears_it() -> None:
    smeared = np.where(np.arange(1, 7)[:, None] >= 4, 4.0, 0.0) * np.ones((6, 3))
    finding = only_finding(first_at(3, 3, 4, grad_nonfinite=smeared))
    assert finding.severity is Severity.CRITICAL
    assert finding.steps == (3, 6)
    assert finding.tensors == ("block", "embed")
    assert finding.evidence[0].observed == 2
    assert "backward meets block first" in finding.evidence[0].what
    assert "of block and 1 more" in finding.summary


def test_samples_name_tensors_where_no_sentinel_looked() -> None:
    raw, used = np.zeros((6, 3)), np.zeros((6, 3))
    raw[2:, 1], used[2:] = 1, 4
    both = make_trace(grad_nonfinite_raw=raw, grad_nonfinite=used, tensors=THREE)
    assert only_finding(both).tensors == ("block",)
    after = only_finding(make_trace(grad_nonfinite=used, tensors=THREE))
    assert after.tensors == ("head", "block", "embed")
    assert after.evidence[0].observed == 12


def test_tensors_that_never_had_one_are_clear() -> None:
    assert status(make_trace(grad_nonfinite=np.zeros((6, 3)), tensors=THREE)) is Status.CLEAR
    assert status(first_at(NAN, NAN, NAN)) is Status.CLEAR


def test_finite_losses_afterwards_show_that_the_weights_are_whole() -> None:
    losses = [3.0, 2.9, 2.8, 2.7, 2.6, 2.5]
    assert only_finding(first_at(3, NAN, NAN, loss=losses)).severity is Severity.WARN
    assert only_finding(first_at(6, NAN, NAN, loss=losses)).severity is Severity.CRITICAL
    losses[3:] = [NAN] * 3
    assert only_finding(first_at(3, NAN, NAN, loss=losses)).severity is Severity.CRITICAL


def test_the_loss_is_blamed_where_it_broke_first() -> None:
    losses = [3.0, 2.9, 2.8, NAN, NAN, NAN]
    backward = only_finding(first_at(3, NAN, NAN, loss=losses, framework="torch"))
    forward = only_finding(first_at(4, NAN, NAN, loss=losses, framework="torch"))
    assert "the loss of step 3 is finite: the backward pass broke" in backward.summary
    assert {e.channel for e in backward.evidence} == {"first_nonfinite_step"}
    assert "backward pass" not in forward.summary
    assert forward.evidence[-1].what == "loss of step 4 NaN or infinite: it broke first"
    assert (backward.severity, forward.severity) == (Severity.CRITICAL, Severity.WARN)
    assert "Look at the batch of step 4" in forward.treatments[0].title
    assert not any("gradient broke" in t.title for t in forward.treatments)


FIRST, TOGETHER = "it broke first", "which of the two broke first is not known"


@pytest.mark.parametrize(
    ("distance", "facts", "said"),
    [
        (1, {"loss_window": 1}, FIRST),
        (1, {"framework": "torch"}, FIRST),
        (1, {}, TOGETHER),
        (1, {"loss_window": 10}, TOGETHER),
        (10, {}, TOGETHER),
        (10, {"loss_window": 1}, TOGETHER),
        (10, {"loss_window": 10}, TOGETHER),
    ],
)
def test_which_of_loss_and_gradient_broke_first_is_said_only_where_rows_show_it(
    distance: int, facts: dict[str, Any], said: str
) -> None:
    finding = only_finding(every(distance, [1.0, 1.0, NAN], [3.0, 2.9, NAN], **facts))
    assert finding.severity is Severity.WARN
    assert finding.evidence[-1].what.endswith(said)
    titles = " ".join(t.title for t in finding.treatments)
    assert ("first" in titles) == (said is FIRST)
    assert ("in the same row" in titles) == (said is TOGETHER)
    assert ("the batches of steps 21 to 30" if distance > 1 else "the batch of step 3") in titles


def test_gradients_in_samples_far_apart_do_not_show_what_was_first() -> None:
    samples, losses = np.zeros((3, 3)), [*[2.0] * 29, NAN]
    samples[2] = 1
    more: dict[str, Any] = {"tensors": THREE, "loss_window": 1, "steps": {}}
    more["steps"]["grad_nonfinite_raw"] = [10, 20, 30]
    rare = only_finding(make_trace(grad_nonfinite_raw=samples, loss=losses, **more))
    assert rare.evidence[-1].what.endswith(TOGETHER)
    more["steps"]["grad_nonfinite_raw"] = [10, 29, 30]
    each = only_finding(make_trace(grad_nonfinite_raw=samples, loss=losses, **more))
    assert each.evidence[-1].what.endswith(FIRST)


def test_a_row_of_several_steps_sends_back_to_the_last_finite_one() -> None:
    log = every(10, [1.0, 1.0, NAN, NAN], [3.0, 2.9, 2.8, NAN], nan_filter="off")
    assert "the loss of step 30 is finite" in only_finding(log).summary
    assert advice(log).startswith("Go back to a checkpoint from step 20 or before")
    log = every(10, [1.0, 1.0, NAN, NAN], [3.0, 2.9], loss_steps=[10, 20])
    assert advice(log) == (
        "Go back to a checkpoint from step 20 or before: none later is known sound"
    )
    log = every(10, [1.0, 1.0, NAN, NAN], [2.0] * 29, loss_steps=range(1, 30))
    assert advice(log).startswith("Go back to a checkpoint from before step 30, where")
    broken = [*[2.0] * 24, *[NAN] * 5]
    log = every(10, [1.0, 1.0, NAN, NAN], broken, loss_steps=range(1, 30))
    assert advice(log).startswith("Go back to a checkpoint from step 20 or before")


def test_a_loss_that_broke_first_stands_first() -> None:
    losses = [3.0, 2.9, 2.8, NAN, NAN, NAN]
    both = first_at(4, NAN, NAN, loss=losses, grad_norm_used=losses, framework="torch")
    assert [f.rule for f in diagnose(both).findings] == ["nan-pulse", "nonfinite-gradient"]


def test_a_finite_loss_of_several_updates_acquits_nothing() -> None:
    losses = [3.0, 2.9, 2.8, NAN, NAN, NAN]
    for facts in ({"loss_window": 10}, {"nan_filter": "seen"}, {"framework": "huggingface"}):
        assert "backward pass" not in only_finding(first_at(3, 3, 3, loss=losses, **facts)).summary


@pytest.mark.parametrize("norm", ["grad_norm", "grad_norm_used"])
def test_the_norm_of_every_update_tells_until_when_it_lasted(norm: str) -> None:
    finding = only_finding(first_at(1, 1, 1, rows=5, **{norm: [NAN] * 60}))
    assert finding.steps == (1, 60)
    assert finding.summary.endswith("from step 1 to the end, 60.")
    passed = only_finding(first_at(1, 1, 1, rows=5, **{norm: [*[NAN] * 9, *[1.0] * 51]}))
    assert passed.summary.endswith("from step 1 to 9.")


def advice(trace: Trace) -> str:
    return only_finding(trace).treatments[0].title


def test_nobody_is_sent_back_to_before_the_run() -> None:
    assert advice(first_at(3, 3, 3)).startswith("Go back to a checkpoint from before step 3")
    assert advice(first_at(1, 1, 1)).startswith("Restart; a checkpoint cannot help")
    assert advice(first_at(1, 1, 1, resumed_from=0)).startswith("Go back")
    later = {"loss": [2, 3]}
    assert advice(norms(NAN, NAN, NAN, loss=[NAN] * 2, steps=later)).startswith("Restart")
    log = every(10, [NAN] * 3, [NAN] * 2, loss_steps=[15, 20], step_skipped=[0.0] * 3)
    assert advice(log).startswith("Restart")


def test_weights_that_were_broken_before_are_to_be_replaced() -> None:
    came_so = only_finding(first_at(1, 1, 1, weights_nonfinite=12, loss=[NAN] * 6))
    assert [t.title for t in came_so.treatments] == [
        "Load weights that are finite: these were not when watching began"
    ]
    assert [e.channel for e in came_so.evidence] == ["first_nonfinite_step", "weights_nonfinite"]
    update = np.array([[0] * 3, [7, 0, 0], *[[NAN] * 3] * 4])
    broke = only_finding(first_at(3, 3, 3, update_nonfinite=update, loss=[2.0, 2.0, *[NAN] * 4]))
    assert any("after step 2" in e.what for e in broke.evidence)
    assert not any("batch" in t.title for t in broke.treatments)
    same_step = first_at(2, 2, 2, update_nonfinite=update, loss=[2.0, 2.0, *[NAN] * 4])
    assert not any(e.channel == "update_nonfinite" for e in only_finding(same_step).evidence)


def test_a_norm_that_never_was_one_tells_nothing_beside_losses_that_are_well() -> None:
    losses = np.linspace(3, 2, 999)
    assert status(norms(*[NAN] * 999)) is Status.CLEAR
    assert status(norms(*[NAN] * 999, loss=losses)) is Status.CLEAR
    assert status(norms(1.0, *[NAN] * 998, loss=losses)) is Status.FOUND
    losses[900:] = NAN
    assert status(norms(*[NAN] * 999, loss=losses)) is Status.FOUND


def test_it_explains_a_loss_that_breaks_later() -> None:
    losses = [3.0, 2.9, 2.8, NAN, NAN, NAN]
    (pulse,) = diagnose(first_at(3, NAN, NAN, loss=losses)).outcomes["nan-pulse"].findings
    assert "nonfinite-gradient" in pulse.causes.found


def test_a_scaler_that_searches_for_its_scale_is_silent() -> None:
    losses = np.linspace(3, 2, 100)
    search = [INF] * 4 + [1.0] * 96
    assert status(norms(*search, loss=losses)) is Status.CLEAR
    search[50] = INF
    assert status(norms(*search, loss=losses)) is Status.CLEAR


def test_skipped_updates_are_not_counted() -> None:
    values = [1.0, INF] * 20
    assert only_finding(norms(*values)).severity is Severity.WARN
    skips = np.arange(2, 41, 2)
    every = {"step_skipped": np.ones(20)}
    assert status(make_trace(every, grad_norm=values, steps={"step_skipped": skips})) is (
        Status.CLEAR
    )


def test_a_log_does_not_name_the_tensor() -> None:
    finding = only_finding(norms(1.0, 1.0, NAN, NAN, loss=[2.0, 1.9, 1.8, NAN]))
    assert finding.severity is Severity.CRITICAL
    assert finding.steps == (3, 4)
    assert finding.tensors == ()
    assert "a log does not tell of which tensor" in finding.evidence[0].what


def test_a_zero_printed_for_nan_is_no_finite_loss() -> None:
    trace = norms(1.0, 1.0, NAN, NAN, NAN, loss=[2.0, 1.9, 1.4, 0.0, 0.0])
    assert only_finding(trace).severity is Severity.CRITICAL


def test_norms_that_stay_bad_beside_finite_losses_are_a_warning() -> None:
    trace = norms(3.1, 2.8, 2.8, 2.5, NAN, NAN, loss=[2.8, 2.6, 2.7, 2.8, 2.5, 2.5])
    assert only_finding(trace).severity is Severity.WARN


@pytest.mark.parametrize("bad", [NAN, INF])
def test_one_row_in_a_million_is_no_alarm_and_its_end_is(bad: float) -> None:
    values = np.ones(200_000)
    values[123_456] = bad
    assert status(norms(*values)) is Status.CLEAR
    values[150_000:] = bad
    assert only_finding(norms(*values)).steps == (123_457, 200_000)


def test_the_guard_is_for_now_while_the_weights_are_whole() -> None:
    whole = only_finding(first_at(3, NAN, NAN, loss=[3.0, 2.9, 2.8, 2.7, 2.6, 2.5]))
    assert [t.when for t in whole.treatments] == ["now", "check"]
    lost = only_finding(first_at(3, NAN, NAN))
    assert [t.when for t in lost.treatments] == ["next", "next", "check"]
