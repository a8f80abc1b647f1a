"""What the contract cannot know of `batchnorm-statistics-lag`."""

from typing import Any

import numpy as np
import pytest

from optdoctor.engine import examine
from optdoctor.findings import Finding, Severity, Status
from optdoctor.rules.batchnorm_statistics_lag import RULE
from optdoctor.synthetic import make_trace
from optdoctor.trace import Trace


def run(memory: float, planned: int | None = None, **more: Any) -> Trace:
    return make_trace(batchnorm_memory=memory, total_steps=planned, **more)


def evaluated(ratios: Any, every: int = 20, memory: float = 1_000.0, **more: Any) -> Trace:
    """A run with a training loss of 1 and evaluations of these losses."""
    at = np.arange(1, len(ratios) + 1) * every
    return run(
        memory,
        loss=np.ones(int(at[-1])),
        eval_loss=np.asarray(ratios, float),
        steps={"eval_loss": at},
        **more,
    )


AT_LIMIT = {
    "left": (lambda: run(2.0, 4), lambda: run(float(np.nextafter(2.0, 3)), 4)),
    "memory": (lambda: run(500.0), lambda: run(float(np.nextafter(500.0, 501)))),
    "gap": (
        lambda: evaluated([1.5]),
        lambda: evaluated([float(np.nextafter(1.5, 2))]),
    ),
}


def only_finding(trace: Trace) -> Finding:
    outcome = examine(RULE, trace)
    assert outcome.status is Status.FOUND, outcome.reason
    (finding,) = outcome.findings
    return finding


def status(trace: Trace) -> Status:
    return examine(RULE, trace).status


def test_a_memory_longer_than_the_run_is_a_note_before_step_1() -> None:
    finding = only_finding(run(1_000.0, 60))
    assert (finding.severity, finding.steps) == (Severity.NOTE, (0, 0))
    assert "after the 60 planned updates 94 % of its statistics" in finding.summary


@pytest.mark.parametrize("memory", [1.0, 10.0, 33.0, 100.0, 3333.0])
def test_a_long_run_outlives_every_usual_memory(memory: float) -> None:
    assert status(run(memory, 20_000)) is Status.CLEAR


def test_an_evaluation_far_above_the_training_loss_makes_it_a_warning() -> None:
    finding = only_finding(evaluated([3.0, 2.9, 2.8], planned=60))
    assert (finding.severity, finding.steps) == (Severity.WARN, (20, 60))
    assert finding.summary.startswith("Evaluated at 2.8 times the training loss at step 60")


def test_an_evaluation_that_comes_near_ends_it() -> None:
    assert only_finding(evaluated([3.0, 3.0, 1.1], planned=60)).severity is Severity.NOTE
    assert only_finding(evaluated([1.1, 3.0, 3.0], planned=60)).steps == (40, 60)


def test_a_lag_that_heals_within_the_run_is_silent_however_it_evaluates() -> None:
    assert status(evaluated([3.0, 1.0], planned=20_000)) is Status.CLEAR


def test_evaluations_after_the_lag_are_none_of_it() -> None:
    """All is forgotten by step 2,773: 1,000 times the logarithm of 16."""
    finding = only_finding(evaluated([3.0] * 8, every=500))
    assert finding.steps == (500, 2_500)


def test_a_loss_of_another_kind_is_not_compared() -> None:
    trace = evaluated([3.0], planned=60, losses_comparable="no")
    assert only_finding(trace).severity is Severity.NOTE


def test_every_micro_batch_counts() -> None:
    assert status(run(1_000.0, 1_000)) is Status.FOUND
    assert status(run(1_000.0, 1_000, accumulation_steps=8)) is Status.CLEAR


def test_the_share_is_that_which_torch_leaves() -> None:
    torch = pytest.importorskip("torch")
    norm = torch.nn.BatchNorm1d(1, momentum=0.001).double()
    batch = torch.tensor([[-3.0], [3.0]], dtype=torch.float64)
    for _ in range(60):
        norm(batch)
    (evidence,) = only_finding(run(1_000.0, 60)).evidence
    left = evidence.observed / 100
    assert norm.running_var.item() == pytest.approx(left * 1 + (1 - left) * batch.var().item())
