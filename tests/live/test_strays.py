"""What a setup lacks before the first update may still be given to it; then it is told."""

import copy
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from small_training import failures, quiet
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import LBFGS, SGD, Adam, AdamW

from optdoctor.findings import Severity
from optdoctor.live.doctor import Doctor
from optdoctor.live.strays import AGAIN
from optdoctor.readers.run_record import FINDINGS, json_rows, read_folder

STEPS = 12
NOBODYS, FOREIGN = "parameters-without-optimizer", "optimizer-of-another-model"
FROZEN, BROKEN = "nothing-trainable", "nonfinite-state"


@pytest.fixture(autouse=True)
def without_optimizers_of_earlier_tests() -> None:
    gc.collect()


def row(count: int = 5) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(count)))


def batches(number: int = STEPS) -> Iterator[tuple[Tensor, Tensor]]:
    for i in range(number):
        inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(i))
        yield inputs, inputs.roll(1, 1)


def loss_of(model: Callable[[Tensor], Tensor], batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.mse_loss(model(batch[0]), batch[1])


def train(model: Any, *optimizers: Any, steps: int = STEPS) -> None:
    for batch in batches(steps):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss_of(model, batch).backward()
        for optimizer in optimizers:
            optimizer.step()


def all_but(model: nn.Module, part: str) -> list[nn.Parameter]:
    return [p for name, p in model.named_parameters() if not name.startswith(part)]


def told(folder: Path) -> list[tuple[int, str, str, str]]:
    rows = json_rows(folder / FINDINGS)
    return [(row["announced"], row["what"], row["rule"], row["severity"]) for row in rows]


def found(doctor: Doctor) -> dict[str, Severity]:
    assert failures(doctor) == []
    return {f.rule: f.severity for f in doctor.diagnosis.findings}


# Before the first update


def test_what_is_wrong_is_known_at_once_and_told_when_the_first_update_is_about_to_be_made(
    tmp_path: Path,
) -> None:
    model = row().requires_grad_(False)
    optimizer = Adam(model.parameters())
    doctor = quiet(model, optimizer, tmp_path)
    assert found(doctor) == {FROZEN: Severity.CRITICAL}
    assert told(tmp_path) == []
    optimizer.step()
    assert told(tmp_path) == [(0, "appeared", FROZEN, "critical")]
    (finding,) = doctor.diagnosis.findings
    assert finding.steps == (0, 0)
    doctor.close()


def test_a_thaw_after_watch_leaves_no_trace(tmp_path: Path) -> None:
    model = row().requires_grad_(False)
    optimizer = AdamW(model.parameters(), lr=1e-3)
    doctor = quiet(model, optimizer, tmp_path)
    model.requires_grad_(True)
    train(model, optimizer)
    doctor.close()
    assert (found(doctor), told(tmp_path)) == ({}, [])
    assert doctor.runs[0].trace.facts["num_parameters"] == sum(
        p.numel() for p in model.parameters()
    )
    assert [e.kind for e in doctor.runs[0].trace.events] == ["start"]


def test_weights_loaded_after_watch_leave_no_trace(tmp_path: Path) -> None:
    model = row()
    sound = copy.deepcopy(model.state_dict())
    nn.init.constant_(model[1].weight, float("nan"))
    optimizer = AdamW(model.parameters(), lr=1e-3)
    doctor = quiet(model, optimizer, tmp_path)
    assert found(doctor) == {BROKEN: Severity.CRITICAL}
    model.load_state_dict(sound)
    train(model, optimizer)
    doctor.close()
    assert (found(doctor), told(tmp_path)) == ({}, [])


def test_an_optimizer_built_after_watch_holds_its_part(tmp_path: Path) -> None:
    model = row()
    first = AdamW(all_but(model, "2."), lr=1e-3)
    doctor = quiet(model, first, tmp_path)
    train(model, first, SGD(model[2].parameters(), lr=1e-2))
    doctor.close()
    assert (found(doctor), told(tmp_path)) == ({}, [])


@pytest.mark.parametrize("make", [AdamW, LBFGS], ids=["plain", "with a closure"])
def test_functional_training_of_copies_is_never_critical(make: Any, tmp_path: Path) -> None:
    model = row()
    copies = {n: p.detach().clone().requires_grad_() for n, p in model.named_parameters()}
    optimizer = make(copies.values(), lr=1e-2)
    doctor = quiet(model, optimizer, tmp_path)
    for batch in batches():

        def loss(batch: tuple[Tensor, Tensor] = batch) -> Tensor:
            optimizer.zero_grad()
            value = loss_of(lambda x: torch.func.functional_call(model, copies, (x,)), batch)
            value.backward()
            return value

        if make is AdamW:
            loss()
        optimizer.step(*[loss][: make is LBFGS])
    doctor.close()
    assert found(doctor)[FOREIGN] is Severity.NOTE
    assert [how for _, _, rule, how in told(tmp_path) if rule == FOREIGN] == ["note"]


def test_gradients_written_by_hand_before_the_first_update_are_seen(tmp_path: Path) -> None:
    model = row().requires_grad_(False)
    optimizer = SGD(model.parameters(), lr=1e-3)
    doctor = quiet(model, optimizer, tmp_path)
    for _ in range(STEPS):
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
    doctor.close()
    assert (found(doctor), told(tmp_path)) == ({}, [])
    assert {t.reached for t in read_folder(tmp_path).tensors} == {"yes"}


# While it trains


def test_a_part_that_no_gradient_comes_to_is_none_that_was_forgotten(tmp_path: Path) -> None:
    model = row()
    optimizer = AdamW(all_but(model, "2."), lr=1e-3)
    doctor = quiet(model, optimizer, tmp_path)
    train(nn.Sequential(*(model[i] for i in (0, 1, 3, 4))), optimizer)
    assert found(doctor) == {}
    train(model, optimizer)
    doctor.close()
    assert found(doctor) == {NOBODYS: Severity.WARN}
    assert [row[1:] for row in told(tmp_path)] == [("appeared", NOBODYS, "warn")]
    assert told(tmp_path)[0][0] > STEPS


def test_gradients_of_an_earlier_training_are_none_of_this_one() -> None:
    model = row()
    loss_of(model, next(batches(1))).backward()
    optimizer = AdamW(all_but(model, "2."), lr=1e-3)
    doctor = quiet(model, optimizer)
    train(nn.Sequential(*(model[i] for i in (0, 1, 3, 4))), optimizer)
    doctor.close()
    assert model[2].weight.grad.any()
    assert found(doctor) == {}


def by_hand(model: nn.Sequential) -> Callable[[], None]:
    @torch.no_grad()
    def move() -> None:
        for parameter in model[2].parameters():
            parameter.sub_(parameter.grad, alpha=1e-2)

    return move


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"fused": True}, {"foreach": False}])
def test_an_optimizer_that_begins_later_takes_it_back(options: Any, tmp_path: Path) -> None:
    model = row()
    first = AdamW(all_but(model, "2."), lr=1e-3)
    doctor = quiet(model, first, tmp_path)
    train(model, first)
    assert found(doctor) == {NOBODYS: Severity.WARN}
    later = AdamW(model[2].parameters(), lr=1e-2, **options)
    train(model, first, later, steps=AGAIN if "fused" in options else STEPS)
    assert found(doctor) == {}
    doctor.close()
    assert [what for _, what, *_ in told(tmp_path)] == ["appeared", "ended"]


def test_updates_written_by_hand_take_it_back_and_weights_loaded_once_do_not() -> None:
    model = row()
    optimizer = AdamW(all_but(model, "2."), lr=1e-3)
    doctor = quiet(model, optimizer)
    train(model, optimizer)
    model.load_state_dict(copy.deepcopy(model.state_dict()))
    train(model, optimizer)
    assert found(doctor) == {NOBODYS: Severity.WARN}
    move = by_hand(model)
    for batch in batches():
        model.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
        move()
    doctor.close()
    assert found(doctor) == {}


def test_a_part_moved_by_others_stays_so_when_the_table_is_built_anew() -> None:
    model = row()
    optimizer = AdamW(all_but(model, "2."), lr=1e-3)
    doctor = quiet(model, optimizer)
    train(model, optimizer, SGD(model[2].parameters(), lr=1e-2))
    gc.collect()
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3))]})
    train(model, optimizer)
    doctor.close()
    assert NOBODYS not in found(doctor)
