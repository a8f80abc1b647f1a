"""What the contract cannot know of `momentum-too-long`."""

from typing import Any

import numpy as np
import pytest

from optdoctor.engine import examine
from optdoctor.findings import Finding, Severity, Status
from optdoctor.rules.momentum_too_long import OF_ADAM, OF_SGD, RULE
from optdoctor.synthetic import make_trace
from optdoctor.trace import Trace


def adam(beta1: float, **more: Any) -> Trace:
    return make_trace(optimizer_family="adam", beta1=beta1, **more)


def sgd(momentum: float, family: str = "sgd", **more: Any) -> Trace:
    return make_trace(optimizer_family=family, momentum=momentum, **more)


EXACT = 1 - 2.0**-7  # a memory of 128 updates exactly

AT_LIMIT = {
    "beta": (lambda: adam(0.98), lambda: adam(float(np.nextafter(0.98, 1)))),
    "share": (lambda: adam(EXACT, total_steps=640), lambda: adam(EXACT, total_steps=639)),
}


def only_finding(trace: Trace) -> Finding:
    outcome = examine(RULE, trace)
    assert outcome.status is Status.FOUND, outcome.reason
    (finding,) = outcome.findings
    return finding


def status(trace: Trace) -> Status:
    return examine(RULE, trace).status


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.9, 0.95, 0.98])
def test_usual_momentums_are_silent(beta: float) -> None:
    assert status(adam(beta)) is Status.CLEAR
    assert status(sgd(beta)) is Status.CLEAR


def test_a_long_memory_is_a_note_with_its_length() -> None:
    finding = only_finding(adam(0.99))
    assert (finding.severity, finding.steps, finding.awaits_symptom) == (
        Severity.NOTE,
        (0, 0),
        True,
    )
    assert finding.summary == "beta1 = 0.99 averages gradients over 100 updates (limit 50)."


def test_a_run_of_few_memories_is_a_warning() -> None:
    finding = only_finding(adam(0.999, total_steps=300))
    assert finding.severity is Severity.WARN
    assert "1,000 updates of the 300 planned (limit 60)" in finding.summary
    assert only_finding(adam(0.999, total_steps=100_000)).severity is Severity.NOTE


def test_a_short_trial_run_with_a_usual_momentum_is_silent() -> None:
    assert status(adam(0.9, total_steps=3)) is Status.CLEAR


def test_a_shorter_momentum_of_sgd_is_said_to_make_shorter_steps() -> None:
    """Sums of gradients: 0.99 moves as far as 0.9 at ten times the rate."""
    (treatment,) = only_finding(sgd(0.99)).treatments
    assert treatment.changes == {"momentum": (0.99, 0.9)}
    assert treatment.title.endswith("steps are then 10 times shorter at the same rate")
    (treatment,) = only_finding(adam(0.99)).treatments
    assert "rate" not in treatment.title


@pytest.mark.parametrize("family", sorted(OF_SGD))
def test_momentum_is_what_is_read_of_sgd_kinds(family: str) -> None:
    assert status(sgd(0.99, family)) is Status.FOUND
    assert status(make_trace(optimizer_family=family, beta1=0.99)) is Status.CLEAR


@pytest.mark.parametrize("family", sorted(OF_ADAM))
def test_beta1_is_what_is_read_of_adam_kinds(family: str) -> None:
    assert status(make_trace(optimizer_family=family, beta1=0.99)) is Status.FOUND
    assert status(sgd(0.99, family)) is Status.CLEAR


@pytest.mark.parametrize(
    "family", ["lion", "ademamix", "adan", "prodigy", "schedule_free", "lookahead", "other"]
)
def test_optimizers_built_on_a_long_memory_are_not_judged(family: str) -> None:
    both = {"beta1": 0.999, "momentum": 0.999, "total_steps": 10}
    assert status(make_trace(optimizer_family=family, **both)) is Status.CLEAR


def test_a_sum_of_momentum_is_as_far_as_the_page_says() -> None:
    torch = pytest.importorskip("torch")
    moved = {}
    for momentum in (0.9, 0.99):
        weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
        optimizer = torch.optim.SGD([weight], lr=1e-3, momentum=momentum)
        for _ in range(3000):
            weight.grad = torch.ones_like(weight)
            before = weight.item()
            optimizer.step()
        moved[momentum] = before - weight.item()
    assert moved[0.99] / moved[0.9] == pytest.approx(10, rel=1e-6)
