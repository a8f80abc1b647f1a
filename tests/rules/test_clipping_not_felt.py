"""What the contract cannot know of `clipping-not-felt`."""

from typing import Any

import numpy as np
import pytest

from optdoctor.engine import examine
from optdoctor.findings import Finding, Severity, Status
from optdoctor.rules.clipping_not_felt import BLIND, RULE
from optdoctor.synthetic import make_trace
from optdoctor.trace import Trace


def run(norms: Any, family: str = "adam", largest: float = 1.0, **more: Any) -> Trace:
    return make_trace(
        optimizer_family=family, grad_norm=np.asarray(norms, float), max_grad_norm=largest, **more
    )


def scattered(unclipped: int, rows: int = 100) -> Trace:
    """A first row that is clipped, and so many at even distances that are not."""
    norms = np.full(rows, 3.0)
    norms[np.linspace(1, rows - 1, unclipped).astype(int)] = 1.0
    return run(norms)


AT_LIMIT = {
    "share": (lambda: run([3.0] * 50 + [1.0] * 5 + [3.0] * 45), lambda: scattered(4)),
    "rows": (lambda: run([0.5] * 11 + [3.0] * 49), lambda: run([0.5] * 10 + [3.0] * 50)),
    "norm": (lambda: run([1.0] * 60), lambda: run([1.0 + 1e-6] * 60)),
}


def only_finding(trace: Trace) -> Finding:
    outcome = examine(RULE, trace)
    assert outcome.status is Status.FOUND, outcome.reason
    (finding,) = outcome.findings
    return finding


def status(trace: Trace) -> Status:
    return examine(RULE, trace).status


def test_it_is_a_note_from_the_first_of_the_clipped_updates_on() -> None:
    finding = only_finding(run([0.5] * 30 + [4.0] * 70, optimizer="AdamW"))
    assert (finding.severity, finding.steps) == (Severity.NOTE, (31, 100))
    assert finding.summary == (
        "100 % of the gradients since step 31 were clipped to a norm of 1 (limit 95 %), which AdamW"
        " divides out again."
    )
    assert finding.evidence[1].observed == 4.0


def test_a_clip_that_binds_at_the_start_alone_is_silent() -> None:
    assert status(run([5.0] * 90 + [0.5] * 10)) is Status.CLEAR


def test_a_clip_that_catches_outliers_is_silent() -> None:
    norms = np.full(200, 0.5)
    norms[::10] = 50.0
    assert status(run(norms)) is Status.CLEAR


@pytest.mark.parametrize("family", ["sgd", "muon", "lamb", "adafactor", "other"])
def test_optimizers_that_feel_it_or_are_not_known_are_silent(family: str) -> None:
    assert status(run([4.0] * 100, family)) is Status.CLEAR


def test_without_a_clip_it_is_silent() -> None:
    assert status(run([4.0] * 100, largest=0.0)) is Status.CLEAR


def test_norms_that_are_not_finite_are_no_clipped_ones() -> None:
    assert status(run([np.inf] * 100)) is Status.CLEAR


@pytest.mark.parametrize("family", sorted(BLIND - {"adam_mini", "stable_adamw"}))
def test_a_factor_of_all_gradients_changes_no_weight(family: str) -> None:
    torch = pytest.importorskip("torch")
    lion = pytest.importorskip("lion_pytorch")
    make = {
        "adam": lambda p: torch.optim.AdamW(p, eps=1e-30),
        "adamax": lambda p: torch.optim.Adamax(p, eps=1e-30),
        "nadam": lambda p: torch.optim.NAdam(p, eps=1e-30),
        "radam": lambda p: torch.optim.RAdam(p, eps=1e-30),
        "lion": lambda p: lion.Lion(p, lr=1e-3),
    }[family]
    ends = []
    for factor in (1.0, 0.25):
        torch.manual_seed(0)
        weight = torch.nn.Parameter(torch.randn(64, dtype=torch.float64))
        optimizer = make([weight])
        for step in range(30):
            if family == "radam" and step < 6:  # its first steps are plain momentum
                weight.grad = torch.zeros_like(weight)
                optimizer.step()
                continue
            weight.grad = torch.randn(64, dtype=torch.float64) * factor
            optimizer.step()
        ends.append(weight.detach())
    assert torch.allclose(ends[0], ends[1], rtol=0, atol=1e-12)
