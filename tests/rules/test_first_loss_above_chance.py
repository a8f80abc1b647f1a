"""What the contract cannot know of `first-loss-above-chance`."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from optdoctor.engine import examine
from optdoctor.findings import Finding, Severity, Status
from optdoctor.rules.first_loss_above_chance import RULE
from optdoctor.synthetic import make_trace
from optdoctor.trace import Trace

CHANCE = math.log(10)


def run(*first: float, **more: Any) -> Trace:
    loss = [*(first if len(first) > 1 else first * 3), *np.linspace(2, 1, 30)]
    return make_trace({"loss": loss, "num_classes": 10, **more})


AT_LIMIT = {
    "nats": (lambda: run(CHANCE + 1), lambda: run(CHANCE + 1 + 1e-6)),
    "times": (lambda: run(3 * CHANCE), lambda: run(3 * CHANCE + 1e-6)),
}


def only_finding(trace: Trace) -> Finding:
    outcome = examine(RULE, trace)
    assert outcome.status is Status.FOUND, outcome.reason
    (finding,) = outcome.findings
    return finding


def status(trace: Trace) -> Status:
    return examine(RULE, trace).status


def test_it_tells_how_far_above_chance_the_lowest_of_three_is() -> None:
    finding = only_finding(run(5.0, 4.0, 6.0))
    assert (finding.severity, finding.steps) == (Severity.NOTE, (3, 3))
    assert finding.evidence[0].observed == pytest.approx(4 - CHANCE)
    assert only_finding(run(50.0, 40.0, 60.0)).severity is Severity.WARN


def test_one_odd_batch_is_no_start() -> None:
    assert status(run(50.0, 2.3, 2.3)) is Status.CLEAR
    assert status(run(2.3, 50.0, 50.0)) is Status.CLEAR
    assert status(run(50.0, math.nan, 50.0)) is Status.CLEAR


@pytest.mark.parametrize(
    "fact",
    [
        {"loss_base": "bits"},
        {"loss_form": "sum"},
        {"loss_form": "running mean"},
        {"loss_kind": "unknown"},
        {"accumulation_steps": 20},
        {"num_classes": 1},
        {"num_classes": math.nan},
    ],
)
def test_a_loss_that_is_no_mean_cross_entropy_in_nats_is_silent(fact: dict[str, Any]) -> None:
    assert status(run(40.0, **fact)) is Status.CLEAR


@pytest.mark.parametrize("fact", [{"resumed_from": 100}, {"loss_window": 10}])
def test_other_losses_than_the_first_are_not_judged(fact: dict[str, Any]) -> None:
    assert status(run(40.0, **fact)) is Status.ABSTAINED
    late = make_trace(
        {"loss": np.full(30, 40.0), "num_classes": 10}, steps={"loss": np.arange(10, 310, 10)}
    )
    assert status(late) is Status.ABSTAINED


def test_outputs_that_scatter_cost_what_the_text_says() -> None:
    torch.manual_seed(0)
    target = torch.randint(1000, (4000,))
    for spread in (0.5, 1.4, 2.0):
        loss = float(F.cross_entropy(spread * torch.randn(4000, 1000), target))
        assert loss - math.log(1000) == pytest.approx(spread**2 / 2, rel=0.1)
