"""What the contract cannot know of `replicas-differ`."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from optdoctor.engine import examine
from optdoctor.findings import Finding, Severity, Status
from optdoctor.rules.replicas_differ import RULE
from optdoctor.synthetic import make_trace, small_gpt
from optdoctor.trace import Trace

TENSORS = small_gpt()
STEPS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12)


def run(differ: Sequence[float], distance: float | None = 0.1, **more: Any) -> Trace:
    """Comparisons, and how far copies are apart wherever they are."""
    channels: dict[str, Any] = {"replicas_differ": differ} | more
    steps = {"replicas_differ": STEPS[: len(differ)], "unwrapped_differ": STEPS[: len(differ)]}
    ill = [step for step, number in zip(STEPS, differ, strict=False) if number > 0]
    if distance is not None and ill:
        channels["replica_distance"] = [distance] * len(ill)
        steps["replica_distance"] = tuple(ill)
    return make_trace(tensors=TENSORS, world_size=4, steps=steps, **channels)


AT_LIMIT = {
    "apart": (lambda: run([0, 1], 1e-3), lambda: run([0, 1], float(np.nextafter(1e-3, 1)))),
}


def only_finding(trace: Trace) -> Finding:
    outcome = examine(RULE, trace)
    assert outcome.status is Status.FOUND, outcome.reason
    (finding,) = outcome.findings
    return finding


def test_copies_that_are_alike_are_clear() -> None:
    assert examine(RULE, run([0.0] * 10)).status is Status.CLEAR


def test_where_nothing_was_compared_it_is_not_examined() -> None:
    assert examine(RULE, make_trace(world_size=4, tensors=TENSORS)).status is Status.SKIPPED


def test_it_says_who_since_when_and_by_how_much() -> None:
    finding = only_finding(run([0, 0, 2, 2], replicas_apart="1, 3"))
    assert finding.steps == (3, 4)
    assert "weights of 2 of 4 processes (rank 1, 3)" in finding.summary
    assert "by 0.1 of their size (limit 0.001), alike until step 2." in finding.summary
    assert finding.severity is Severity.CRITICAL


@pytest.mark.parametrize(
    ("differ", "distance", "facts", "severity"),
    [
        ([0, 1], None, {}, Severity.WARN),  # nobody told how far
        ([0, 1, 0], 0.1, {}, Severity.WARN),  # alike again
        ([0, 1], 1e-6, {}, Severity.NOTE),  # rounding
        ([1, 1], 0.1, {"replicated": "local"}, Severity.NOTE),  # gradients were not to be averaged
    ],
)
def test_it_is_less_where_less_is_known_or_meant(
    differ: list[float], distance: float | None, facts: dict[str, str], severity: Severity
) -> None:
    finding = only_finding(run(differ, distance, **facts))
    assert finding.severity is severity
    assert finding.awaits_symptom is ("replicated" in facts)


def test_weights_that_no_wrapper_holds_are_a_note() -> None:
    finding = only_finding(run([0, 0, 0], unwrapped_differ=[0, 1, 1]))
    assert finding.severity is Severity.NOTE
    assert finding.awaits_symptom
    assert finding.steps == (2, 3)


def test_it_names_tensors_furthest_apart_first() -> None:
    row = np.zeros((1, len(TENSORS)))
    row[0, [3, 5]] = 0.1, 0.2
    finding = only_finding(run([1], tensor_replica_distance=row))
    assert finding.tensors == (TENSORS[5].name, TENSORS[3].name)


def test_the_way_it_began_decides_what_to_look_at() -> None:
    from_the_start, later = only_finding(run([1, 1])), only_finding(run([0, 1]))
    assert from_the_start.treatments[0].title.startswith("Compare learning rates")
    assert from_the_start.treatments[1].title.startswith("Load the checkpoint")
    assert later.treatments[0].title.startswith("Call the wrapper")
