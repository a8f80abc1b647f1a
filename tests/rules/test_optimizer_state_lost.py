"""What the contract cannot know of `optimizer-state-lost`."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optdoctor.engine import examine
from optdoctor.findings import Finding, Severity, Status
from optdoctor.rules.optimizer_state_lost import RULE
from optdoctor.synthetic import make_trace
from optdoctor.trace import TensorInfo, Trace

ONE = (TensorInfo("w", (64,)),)
RESUMED = 40


def run(
    after: float = 1.0, *, noise: float = 0.0, first: float | None = None, **more: Any
) -> Trace:
    """80 losses of 1 with that noise, resumed at step 40; `after` from the second update on."""
    losses = np.full(80, 1.0)
    losses[: RESUMED + 1] += noise / 2 * (-1.0) ** np.arange(RESUMED + 1)
    losses[RESUMED] = 1.0 if first is None else first
    losses[RESUMED + 1 :] = after
    facts = {"resumed_from": RESUMED, "state_loaded": "no", "optimizer_family": "adam", **more}
    return make_trace({"loss": losses, "moment1_rms": np.ones((80, 1)), **facts}, tensors=ONE)


AT_LIMIT = {
    "rise": (lambda: run(1.0625), lambda: run(np.nextafter(1.0625, 2))),
    "noises": (lambda: run(1.75, noise=0.25), lambda: run(np.nextafter(1.75, 2), noise=0.25)),
}


def only_finding(trace: Trace) -> Finding:
    outcome = examine(RULE, trace)
    assert outcome.status is Status.FOUND, outcome.reason
    (finding,) = outcome.findings
    return finding


def status(trace: Trace) -> Status:
    return examine(RULE, trace).status


def test_a_resume_without_state_is_a_note_while_the_loss_goes_on() -> None:
    finding = only_finding(run())
    assert (finding.severity, finding.steps) == (Severity.NOTE, (41, 41))
    assert not finding.awaits_symptom
    assert (finding.evidence[0].observed, finding.evidence[0].limit) == (0, 40)


def test_it_is_a_warning_where_the_loss_rises_after_the_first_update() -> None:
    finding = only_finding(run(1.5))
    assert finding.severity is Severity.WARN
    assert "from 1 to 1.5" in finding.summary


def test_a_loss_that_is_higher_before_any_update_tells_of_other_weights_or_data() -> None:
    assert only_finding(run(1.5, first=1.5)).severity is Severity.NOTE
    assert only_finding(run(1.5, first=1.2)).severity is Severity.WARN


def test_where_the_rate_jumps_too_the_rise_may_come_from_it() -> None:
    rates = np.full(80, 1e-3)
    assert only_finding(run(1.5, lr=rates)).severity is Severity.WARN
    rates[RESUMED:] = 2e-3
    assert only_finding(run(1.5, lr=rates)).severity is Severity.NOTE


@pytest.mark.parametrize("loaded", ["yes", None, "garbage"])
def test_only_a_state_that_is_known_to_be_missing_is_told(loaded: str | None) -> None:
    assert status(run(state_loaded=loaded)) in (Status.CLEAR, Status.SKIPPED)


@pytest.mark.parametrize("resumed", [0, True, 40.0, "garbage", 10**400, 80])
def test_a_resume_of_which_nothing_is_seen_is_silent(resumed: Any) -> None:
    assert status(run(resumed_from=resumed)) is Status.CLEAR


def test_an_optimizer_that_keeps_no_moments_has_none_to_lose() -> None:
    facts = {"resumed_from": RESUMED, "state_loaded": "no", "optimizer_family": "sgd"}
    trace = make_trace({"loss": np.ones(80), **facts}, tensors=ONE)
    assert status(trace) is Status.SKIPPED


def test_how_far_the_first_update_moved_is_told_of_adam_kinds() -> None:
    moved = np.full((80, 1), 0.2)
    moved[RESUMED] = 0.98
    finding = only_finding(run(update_to_lr=moved))
    assert [e.observed for e in finding.evidence if e.unit == "learning rates"] == [
        pytest.approx(0.98)
    ]
    other = only_finding(run(update_to_lr=moved, optimizer_family="lion"))
    assert not [e for e in other.evidence if e.unit == "learning rates"]


@pytest.mark.parametrize(
    ("kind", "keeps", "found"),
    [
        ("Adam", False, Status.FOUND),
        ("Adam", True, Status.CLEAR),
        ("SGD", False, Status.SKIPPED),
        ("SGD with momentum", False, Status.FOUND),
        ("SGD with momentum", True, Status.CLEAR),
    ],
)
def test_in_a_plain_loop_that_goes_on(
    kind: str, keeps: bool, found: Status, tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch")
    import optdoctor

    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)

    def optimizer() -> Any:
        if kind == "Adam":
            return torch.optim.Adam(model.parameters(), lr=1e-3)
        return torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9 * (kind != "SGD"))

    def train(updates: int, one: Any, doctor: Any) -> None:
        for _ in range(updates):
            one.zero_grad()
            loss = (model(torch.randn(16, 8)) - torch.randn(16, 1)).square().mean()
            loss.backward()
            doctor.log(loss=loss)
            one.step()

    first = optimizer()
    with optdoctor.watch(model, first, out=tmp_path, sinks=(), interval=1) as doctor:
        train(60, first, doctor)
    again = optimizer()
    if keeps:
        again.load_state_dict(first.state_dict())
    watched = {"out": tmp_path, "sinks": (), "interval": 1, "first_step": 61}
    with optdoctor.watch(model, again, **watched) as doctor:
        train(40, again, doctor)
    outcome = examine(RULE, doctor.runs[0].trace)
    assert outcome.status is found, outcome
    if kind == "Adam" and not keeps:
        (finding,) = outcome.findings
        assert finding.severity is Severity.NOTE
        assert finding.steps == (61, 61)
        moved = next(e.observed for e in finding.evidence if e.unit == "learning rates")
        assert moved == pytest.approx(1, abs=0.02)
