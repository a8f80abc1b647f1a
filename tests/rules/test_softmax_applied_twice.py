"""What the contract cannot know of `softmax-applied-twice`."""

import math
from typing import Any

import numpy as np
import pytest

from optdoctor.engine import examine
from optdoctor.findings import Finding, Severity, Status
from optdoctor.rules.softmax_applied_twice import RULE, floor
from optdoctor.synthetic import falling_loss, make_trace
from optdoctor.trace import Trace

ROW = np.arange(400)
FLOOR = floor(10)
FALL = 0.8 * np.exp(-ROW / 30)


def run(loss: Any, classes: int | None = 10, **facts: Any) -> Trace:
    return make_trace(loss=np.asarray(loss, float), num_classes=classes, **facts)


def ending(height: float, lowest: float = 0.0) -> Trace:
    """A loss that ends so far above the floor, with one row this far above it."""
    loss = FLOOR * (1 + height) + 0.9 * FALL * (ROW < 200)
    loss[150] = FLOOR * (1 + lowest)
    return run(loss)


AT_LIMIT = {
    "nearest": (lambda: ending(0.02, 0.0100001), lambda: ending(0.02, 0.01)),
    "above": (lambda: ending(0.1500001), lambda: ending(0.15)),
}


def only_finding(trace: Trace) -> Finding:
    outcome = examine(RULE, trace)
    assert outcome.status is Status.FOUND, outcome.reason
    (finding,) = outcome.findings
    return finding


def status(trace: Trace) -> Status:
    return examine(RULE, trace).status


@pytest.mark.parametrize(
    ("classes", "value"), [(2, 0.3133), (3, 0.5514), (10, 1.4612), (100, 3.6222)]
)
def test_the_floors_of_the_page_are_those_of_pytorch(classes: int, value: float) -> None:
    torch = pytest.importorskip("torch")
    logits = torch.full((1, classes), -1000.0, dtype=torch.float64)
    logits[0, 0] = 1000.0
    loss = torch.nn.functional.cross_entropy(logits.softmax(1), torch.zeros(1, dtype=torch.long))
    assert float(loss) == pytest.approx(floor(classes), abs=1e-9)
    assert floor(classes) == pytest.approx(value, abs=5e-5)
    wrong = torch.nn.functional.cross_entropy(logits.softmax(1), torch.ones(1, dtype=torch.long))
    assert float(wrong) == pytest.approx(floor(classes) + 1, abs=1e-9)


def test_it_is_a_warning_from_the_first_row_at_the_floor() -> None:
    finding = only_finding(run(FLOOR + FALL))
    assert finding.severity is Severity.WARN
    assert finding.steps == (int(np.flatnonzero(FALL <= 0.01 * FLOOR)[0]) + 1, 400)
    assert "lies on 1.4612" in finding.summary


def test_of_few_classes_it_is_a_note() -> None:
    assert only_finding(run(floor(4) + FALL, 4)).severity is Severity.NOTE
    assert only_finding(run(floor(5) + FALL, 5)).severity is Severity.WARN


def test_a_loss_below_the_floor_is_another_loss() -> None:
    loss = FLOOR + FALL
    assert status(run(np.where(ROW == 300, FLOOR * 0.99, loss))) is Status.CLEAR
    assert status(run(loss - 0.02)) is Status.CLEAR


def test_a_loss_more_than_1_above_the_floor_is_another_loss() -> None:
    assert status(run(np.where(ROW == 5, FLOOR + 1.01, FLOOR + FALL))) is Status.CLEAR


def test_noise_to_both_sides_of_the_floor_is_no_floor() -> None:
    for seed in range(20):
        noise = np.exp(0.02 * np.random.default_rng(seed).standard_normal(400))
        assert status(run((FLOOR + FALL) * noise)) is Status.CLEAR


def test_a_loss_that_passes_by_is_silent() -> None:
    assert status(run(FLOOR + 0.9 - ROW / 460)) is Status.CLEAR


@pytest.mark.parametrize("classes", [None, 0, 1, 2, 11, 1000])
def test_of_other_numbers_of_classes_nothing_is_said(classes: int | None) -> None:
    assert status(run(FLOOR + FALL, classes)) in (Status.CLEAR, Status.SKIPPED)


def test_only_a_mean_in_nats_is_judged() -> None:
    loss = FLOOR + FALL
    assert status(run(loss, loss_base="nats", loss_form="mean")) is Status.FOUND
    assert status(run(loss, loss_base="bits")) is Status.CLEAR
    assert status(run(loss, loss_base="other")) is Status.CLEAR
    assert status(run(loss, loss_form="sum")) is Status.CLEAR
    assert status(run(loss, loss_kind="reward")) is Status.CLEAR


@pytest.mark.parametrize("classes", [10, 100, 50_257])
def test_healthy_losses_from_a_guess_down_are_silent(classes: int) -> None:
    guess = math.log(classes)
    for end in np.linspace(0.02, 0.9, 30):
        loss = falling_loss(start=guess, end=float(end) * guess)
        assert status(run(loss, classes)) is Status.CLEAR


@pytest.mark.parametrize(
    ("made_by", "classes", "said"),
    [
        ("softmax", 10, "one of 10 classes gets 0.232 of"),
        ("softmax", None, "two classes gets 0.731"),
        ("sigmoid", 10, "two classes gets 0.731"),
        ("sigmoid", None, "two classes gets 0.731"),
    ],
)
def test_what_the_graph_shows_is_a_warning_at_any_height_from_the_first_row(
    made_by: str, classes: int | None, said: str
) -> None:
    finding = only_finding(run([9.0, 8.0], classes, loss_input=made_by))
    assert finding.severity is Severity.WARN
    assert finding.steps == (1, 2)
    assert f"the output of a {made_by}" in finding.summary
    assert said in finding.summary
    assert made_by in finding.treatments[0].title


def test_the_share_of_the_page_is_the_largest_that_pytorch_gives() -> None:
    torch = pytest.importorskip("torch")
    sure = torch.tensor([1.0] + [0.0] * 9, dtype=torch.float64)
    finding = only_finding(run([2.0], 10, loss_input="softmax"))
    assert finding.evidence[0].observed == pytest.approx(100 * float(sure.softmax(0)[0]))


def test_another_input_of_the_loss_is_judged_by_its_curve() -> None:
    assert status(run(FLOOR + FALL, loss_input="logits")) is Status.FOUND
    assert status(run((FLOOR + 0.8 * np.exp(-ROW / 4))[:39])) is Status.ABSTAINED
    assert status(run((FLOOR + 0.8 * np.exp(-ROW / 4))[:40])) is Status.FOUND
