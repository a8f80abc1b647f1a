"""What samples at the doctor's own pace see of short runs of a real model."""

import pytest
import torch
from torch import nn

import optdoctor
from optdoctor.findings import Diagnosis, Status, Verdict
from optdoctor.live.doctor import Doctor

STEPS, BREAKS = 400, 100
BROKE = 1e-9
"""Share of the time that leaves nothing for samples, whatever the machine: those that a run gets in
any case are left."""


def trained(*, dies: bool = False, **options: float) -> Doctor:
    """A perceptron that learns to double its inputs; `dies`: its hidden units are silenced."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with optdoctor.watch(model, optimizer, out=None, sinks=(), **options) as doctor:
        for update in range(STEPS):
            inputs = torch.randn(32, 8)
            loss = (model(inputs) - 2 * inputs).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.log(loss=loss)
            if dies and update == BREAKS:
                with torch.no_grad():
                    model[2].bias.fill_(-100)
    return doctor


def looked(diagnosis: Diagnosis) -> Status:
    return diagnosis.outcomes["dead-units"].status


@pytest.mark.parametrize("overhead", [BROKE, 0.01])
def test_a_short_run_is_looked_at_to_its_end(overhead: float) -> None:
    doctor = trained(overhead=overhead)
    assert doctor.runs[0].trace.last_sample >= STEPS / 1.5
    assert doctor.diagnosis.verdict is Verdict.HEALTHY
    assert looked(doctor.diagnosis) is Status.CLEAR


def test_what_begins_after_the_first_updates_is_seen() -> None:
    diagnosis = trained(dies=True, overhead=BROKE).diagnosis
    assert looked(diagnosis) is Status.FOUND
    assert diagnosis.outcomes["dead-units"].findings[0].steps[0] >= BREAKS


def test_a_run_that_was_hardly_looked_at_is_not_called_healthy() -> None:
    diagnosis = trained(interval=STEPS + 1).diagnosis
    assert diagnosis.verdict is Verdict.UNKNOWN
    assert diagnosis.reason is not None
    assert diagnosis.reason.startswith(f"tensors were last looked at in step 1 of {STEPS};")


def test_nor_one_in_which_sampling_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    from optdoctor.live.collector import Collector

    def broken(self: Collector, step: int, after=Collector.after):
        if step > 50:
            raise RuntimeError("out of memory")
        return after(self, step)

    monkeypatch.setattr(Collector, "after", broken)
    diagnosis = trained(overhead=BROKE).diagnosis
    assert diagnosis.verdict is Verdict.UNKNOWN
    assert looked(diagnosis) is Status.ABSTAINED
