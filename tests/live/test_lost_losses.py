"""A loss that is not finite is told within a few updates, whatever the bill."""

import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from small_training import batches, events, loss_of, net, quiet
from torch.optim import AdamW

from optdoctor.live.examiner import AFTERMATH, Examiner
from optdoctor.live.schedule import GROWTH as AGED
from optdoctor.live.schedule import Schedule
from optdoctor.readers.run_record import FINDINGS, json_rows
from optdoctor.synthetic import make_trace

BROKE, TRACE = 101, make_trace(loss=[1.0, 1.0])


@pytest.fixture
def no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bill that allows nothing, and examiners whose own account has no room either."""
    monkeypatch.setattr(Schedule, "may_spend", lambda *_: False)
    monkeypatch.setattr(Schedule, "may_hurry", lambda *_: False)


def losses_told(out: Path, loss: Callable[[int], float], last: int) -> list[tuple[int, str]]:
    """(step, severity and summary) of what is told of the loss in that many updates."""
    model = net()
    optimizer = AdamW(model.parameters(), lr=1e-2)
    with quiet(model, optimizer, out) as doctor:
        for step in range(1, last + 1):
            optimizer.step()
            doctor.log(loss=loss(step))
    told = [row for row in json_rows(out / FINDINGS) if row["rule"] == "nan-pulse"]
    return [(r["announced"], f"{r['severity']}: {r['finding']['summary']}") for r in told]


@pytest.mark.usefixtures("no_room")
def test_one_that_stays_is_told_while_the_training_goes_on(tmp_path: Path) -> None:
    told = losses_told(tmp_path, lambda step: math.nan if step >= BROKE else 1.0, 300)
    ((step, said),) = told
    assert BROKE < step <= BROKE + AFTERMATH + 1  # a loop that logs after it steps
    assert said.startswith(f"critical: NaN loss from step {BROKE} to the end, {step - 1}: the last")


@pytest.mark.usefixtures("no_room")
def test_of_one_that_passed_no_more_is_said_than_that(tmp_path: Path) -> None:
    told = losses_told(tmp_path, lambda step: math.nan if step == BROKE else 1.0, 300)
    assert len(told) == 1
    assert "to the end" not in told[0][1]
    assert f"loss at step {BROKE}: 1 of" in told[0][1]


@pytest.mark.usefixtures("no_room")
def test_an_infinite_gradient_that_a_scaler_skips_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    exams, real = [], Examiner.examine
    monkeypatch.setattr(
        Examiner,
        "examine",
        lambda *args: exams.append(1) or real(*args),  # type: ignore[func-returns-value]
    )
    model = net()
    optimizer = AdamW(model.parameters(), lr=1e-2, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    with quiet(model, optimizer, scaler=scaler) as doctor:
        for i, batch in enumerate(batches(40), 1):
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            scaler.scale(loss * (math.inf if i in (20, 21) else 1)).backward()
            doctor.log(loss=loss)
            scaler.step(optimizer)
            scaler.update()
    assert events(doctor).count("step-skipped") == 2
    assert len(exams) == 2, "before the first update and at the end"


@pytest.mark.usefixtures("no_room")
def test_one_under_a_scaler_that_skips_every_update_is_told(tmp_path: Path) -> None:
    model = net()
    optimizer = AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    with quiet(model, optimizer, tmp_path, scaler=scaler) as doctor:
        for i, batch in enumerate(batches(60), 1):
            optimizer.zero_grad()
            loss = loss_of(model, batch) * (math.nan if i >= 30 else 1)
            scaler.scale(loss).backward()
            doctor.log(loss=loss)
            scaler.step(optimizer)
            scaler.update()
    told = [r["announced"] for r in json_rows(tmp_path / FINDINGS) if r["rule"] == "nan-pulse"]
    assert told
    assert told[0] <= 30 + AFTERMATH + 1


def overdue(lost_at: Callable[[int], bool], last: int) -> list[int]:
    """Steps at which the examiner has to look for a loss's sake alone."""
    doctor, looks = Examiner([]), []
    for step in range(1, last + 1):
        if lost_at(step):
            doctor.lost(step)
        if doctor.overdue(step):
            looks.append(step)
            doctor.examine(TRACE, step)
    return looks


def test_ones_that_come_and_go_are_looked_at_ever_more_rarely() -> None:
    looks = overdue(lambda step: step % 9 == 0, 20_000)
    assert looks[0] == 9 + AFTERMATH
    assert all(later >= AGED * earlier for earlier, later in pairwise(looks))
    assert len(looks) <= math.log(20_000 / looks[0], AGED) + 1


def test_a_look_before_its_course_is_known_is_no_answer() -> None:
    doctor = Examiner([])
    doctor.lost(100)
    doctor.examine(TRACE, 102)
    assert not doctor.overdue(100 + AFTERMATH - 1)
    assert doctor.overdue(100 + AFTERMATH)
    doctor.examine(TRACE, 100 + AFTERMATH)
    assert not doctor.overdue(10_000)
