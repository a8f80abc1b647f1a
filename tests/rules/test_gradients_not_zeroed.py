"""What the contract cannot know of `gradients-not-zeroed`."""

from typing import Any

import numpy as np
import pytest

from optdoctor.engine import examine
from optdoctor.findings import Finding, Severity, Status
from optdoctor.rules.gradients_not_zeroed import RULE
from optdoctor.synthetic import make_trace
from optdoctor.trace import Trace


def run(kept: Any, family: str = "adam", first: int = 2) -> Trace:
    rows = np.asarray(kept, float)
    steps = {"gradients_kept": np.arange(first, first + len(rows))}
    return make_trace(gradients_kept=rows, optimizer_family=family, steps=steps)


def in_a_row(updates: int) -> Trace:
    return run([0.0] * 5 + [1.0] * updates + [0.0] * 5)


AT_LIMIT = {"passing": (lambda: in_a_row(7), lambda: in_a_row(8))}


def only_finding(trace: Trace) -> Finding:
    outcome = examine(RULE, trace)
    assert outcome.status is Status.FOUND, outcome.reason
    (finding,) = outcome.findings
    return finding


@pytest.mark.parametrize(
    ("family", "severity"),
    [("sgd", Severity.CRITICAL), ("adam", Severity.WARN), ("other", Severity.WARN)],
)
def test_it_is_critical_where_the_step_grows_with_the_sum(family: str, severity: Severity) -> None:
    assert only_finding(run(np.ones(20), family)).severity is severity


def test_it_names_the_updates() -> None:
    finding = only_finding(in_a_row(9))
    assert finding.steps == (7, 15)
    assert finding.evidence[0].observed == 9
    assert finding.summary == (
        "From step 7 to 15 gradients were not set to zero in 9 updates in a row (limit 7): each"
        " follows the sum of its own and up to 9 before it."
    )


def test_a_loop_that_sets_to_zero_too_rarely_sums_no_further_back() -> None:
    finding = only_finding(run(([1.0] * 15 + [0.0]) * 20 + [1.0] * 3, "sgd"))
    assert finding.severity is Severity.WARN
    assert finding.summary == (
        "20 times from step 2 to 320 gradients were not set to zero in 15 updates in a row"
        " (limit 7): each follows the sum of its own and up to 15 before it."
    )


def test_of_thinned_rows_the_edges_of_a_stretch_are_not_known() -> None:
    finding = only_finding(run([0.0] * 50 + [1.0] * 90 + [0.0] * 60).thinned(20))
    assert "its own and at least 90 before it" in finding.summary


def test_the_longest_of_several_stretches_is_told() -> None:
    finding = only_finding(run([1.0] * 9 + [0.0] + [1.0] * 30))
    assert finding.steps == (2, 41)
    assert finding.evidence[0].observed == 30
    assert "From step 12 to 41" in finding.summary
    assert "each follows the sum of all gradients since then." in finding.summary


def test_a_loop_that_sets_to_zero_now_and_then_is_clear() -> None:
    assert examine(RULE, run([0.0, 1.0, 1.0, 1.0] * 50)).status is Status.CLEAR


def test_a_long_run_is_judged_by_whole_buckets_only() -> None:
    kept = np.ones(200)
    assert only_finding(run(kept).thinned(20)).evidence[0].observed == 200
    kept[4::10] = 0.0
    assert examine(RULE, run(kept).thinned(20)).status is Status.CLEAR


def test_without_the_counter_it_is_silent() -> None:
    assert examine(RULE, make_trace(loss=np.ones(50))).status is Status.SKIPPED
