"""What the contract cannot know of `tie-broken`."""

import pytest

from optdoctor.engine import examine
from optdoctor.findings import Severity, Status
from optdoctor.rules.tie_broken import RULE
from optdoctor.synthetic import make_trace
from optdoctor.trace import Trace


def run(broken: object) -> Trace:
    return make_trace(ties_broken=broken)


AT_LIMIT = {"none": (lambda: run(0), lambda: run(1))}


@pytest.mark.parametrize(("broken", "pairs"), [(1, "1 pair "), (2, "2 pairs ")])
def test_it_is_a_warning_before_step_1_that_counts_pairs(broken: int, pairs: str) -> None:
    (finding,) = examine(RULE, run(broken)).findings
    assert (finding.severity, finding.steps) == (Severity.WARN, (0, 0))
    assert finding.summary.startswith(pairs)
    assert finding.evidence[0].observed == broken


def test_a_model_that_says_nothing_of_ties_is_not_examined() -> None:
    outcome = examine(RULE, make_trace(num_parameters=64))
    assert (outcome.status, outcome.missing) == (Status.SKIPPED, ("ties_broken",))
