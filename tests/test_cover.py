"""A rule that needs samples says nothing of a run of which they show only the beginning."""

from dataclasses import replace

import numpy as np
import pytest
from made_up import finding, rule

from optdoctor.engine import diagnose
from optdoctor.findings import Status, Verdict
from optdoctor.synthetic import make_trace
from optdoctor.trace import TensorInfo, Trace


def sampled_at(*steps: int, **channels: np.ndarray) -> Trace:
    """A run of 400 updates whose tensors were looked at in these."""
    rows = {"param_rms": np.ones((len(steps), 1)), **channels}
    places = {"param_rms": np.array(steps)}
    tensors = (TensorInfo("w", (3,)),)
    return make_trace(rows, steps=places, loss=[1.0] * 400, loss_kind="falling", tensors=tensors)


OF_TENSORS = rule("of-tensors", needs=("param_rms",))
SELDOM = "tensors were last looked at in step 3 of 400; interval= and overhead= of watch say how"


def test_a_rule_that_saw_samples_of_the_beginning_only_has_not_looked() -> None:
    diagnosis = diagnose(sampled_at(1, 2, 3), [rule("of-loss"), OF_TENSORS])
    assert diagnosis.outcomes["of-loss"].status is Status.CLEAR
    outcome = diagnosis.outcomes["of-tensors"]
    assert outcome.status is Status.ABSTAINED
    assert outcome.reason is not None
    assert outcome.reason.startswith(SELDOM)
    assert diagnosis.verdict is Verdict.UNKNOWN
    assert diagnosis.reason == outcome.reason


def test_what_it_did_find_there_is_found() -> None:
    found = replace(OF_TENSORS, check=lambda trace, limits: [finding(3)], uses=("loss",))
    assert diagnose(sampled_at(1, 2, 3), [found]).verdict is Verdict.SICK


@pytest.mark.parametrize(("last", "covered"), [(159, False), (160, True), (400, True)])
def test_samples_must_reach_over_two_fifths_of_a_run(last: int, covered: bool) -> None:
    diagnosis = diagnose(sampled_at(1, 2, last), [OF_TENSORS])
    assert (diagnosis.outcomes["of-tensors"].status is Status.CLEAR) is covered
    assert (diagnosis.verdict is Verdict.HEALTHY) is covered


def test_a_rule_of_the_first_sample_needs_no_other() -> None:
    diagnosis = diagnose(sampled_at(1, 2, 3), [replace(OF_TENSORS, early=True)])
    assert diagnosis.outcomes["of-tensors"].status is Status.CLEAR


def test_where_gradients_broke_is_no_sample() -> None:
    """It is told whenever an alarm asks."""
    trace = sampled_at(1, 2, 3)
    broke = make_trace(
        {"first_nonfinite_step": np.full((1, 1), 9.0)},
        steps={"first_nonfinite_step": np.array([399])},
        tensors=trace.tensors,
    )
    trace = replace(trace, series={**trace.series, **broke.series})
    assert trace.last_sample == 3
    assert diagnose(trace, [OF_TENSORS]).verdict is Verdict.UNKNOWN


def test_what_is_told_at_every_update_is_as_good_as_new() -> None:
    """`grad_norm_used` may be of samples, and is not here."""
    trace = sampled_at(1, 2, 3, grad_norm_used=np.ones(400))
    seen = rule("of-updates", needs=("grad_norm_used",))
    assert diagnose(trace, [seen]).outcomes["of-updates"].status is Status.CLEAR
