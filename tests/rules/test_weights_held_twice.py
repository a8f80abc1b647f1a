"""What the contract cannot know of `weights-held-twice`."""

import warnings
from dataclasses import replace
from typing import Any

import pytest

from optdoctor.engine import examine
from optdoctor.findings import Finding, Severity, Status
from optdoctor.rules.weights_held_twice import RULE
from optdoctor.synthetic import make_trace
from optdoctor.trace import TensorInfo, Trace


def run(*times: int, size: int = 8) -> Trace:
    tensors = tuple(
        TensorInfo(f"h.{i}.weight", (size,), order=i, times_held=n) for i, n in enumerate(times)
    )
    return make_trace(num_parameters=size * len(times), tensors=tensors)


AT_LIMIT = {
    "once": (lambda: run(1, 1), lambda: run(1, 2)),
    "share": (lambda: run(2, 2, 2, 1), lambda: run(2, 2, 2, 2)),
}


def only_finding(trace: Trace) -> Finding:
    outcome = examine(RULE, trace)
    assert outcome.status is Status.FOUND, outcome.reason
    (finding,) = outcome.findings
    return finding


def test_all_of_them_are_a_warning_before_step_1() -> None:
    finding = only_finding(run(2, 2))
    assert (finding.severity, finding.steps) == (Severity.WARN, (0, 0))
    assert not finding.awaits_symptom


def test_a_part_is_a_note_that_awaits_a_symptom_and_names_the_worst_first() -> None:
    finding = only_finding(run(1, 2, 3, 1))
    assert (finding.severity, finding.awaits_symptom) == (Severity.NOTE, True)
    assert finding.tensors == ("h.2.weight", "h.1.weight")
    assert finding.summary == (
        "2 of 4 trained tensors, 50 % of the trained elements, stand up to 3 times in the optimizer"
        " (limit 1): each step moves such a tensor as often."
    )


@pytest.mark.parametrize("other", [{"trainable": False}, {"in_optimizer": False}], ids=str)
def test_what_is_not_trained_is_not_counted(other: dict[str, Any]) -> None:
    trace = run(1, 2)
    tensors = (trace.tensors[0], replace(trace.tensors[1], **other))
    assert examine(RULE, replace(trace, tensors=tensors)).status is Status.CLEAR


def test_a_tie_that_is_held_once_is_sound() -> None:
    trace = run(1, 1)
    tensors = (replace(trace.tensors[0], tied_to="head.weight"), trace.tensors[1])
    assert examine(RULE, replace(trace, tensors=tensors)).status is Status.CLEAR


def test_without_tensors_it_abstains() -> None:
    assert examine(RULE, make_trace(num_parameters=64)).status is Status.ABSTAINED


@pytest.mark.parametrize("path", [{"foreach": False}, {"foreach": True}], ids=["loop", "foreach"])
@pytest.mark.parametrize(
    ("name", "options", "low", "high"),
    [
        ("SGD", {}, 1.95, 2.05),
        ("Adam", {}, 1.95, 2.05),
        ("AdamW", {}, 1.95, 2.05),
        ("SGD", {"momentum": 0.9}, 2.15, 2.35),
        ("RMSprop", {}, 1.35, 1.55),
        ("Adagrad", {}, 1.35, 1.55),
    ],
)
def test_torch_moves_such_a_weight_as_far_as_the_page_says(
    name: str, options: dict[str, Any], low: float, high: float, path: dict[str, bool]
) -> None:
    torch = pytest.importorskip("torch")
    twice, once = (torch.nn.Parameter(torch.ones(4, dtype=torch.float64)) for _ in range(2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kind = getattr(torch.optim, name)
        optimizer = kind([twice, twice, once], lr=0.01, **options, **path)
    for _ in range(50):
        for parameter in (twice, once):
            parameter.grad = torch.full_like(parameter, 0.5)
        optimizer.step()
    ratio = (1 - twice[0].item()) / (1 - once[0].item())
    assert low <= ratio <= high
