"""Each logged value reaches the update it belongs to, whatever the order of the loop."""

import math

import pytest
import torch
from small_training import net, quiet, rows

from optdoctor.live.rows import Crossing, HostRow, Row, Rows


def to_host(several: list[Row]) -> list[HostRow]:
    """Across in one go."""
    crossing = Crossing()
    crossing.send(several)
    ((arrived, _),) = crossing.arrived(wait=True)
    return arrived


def finished(*parts: list[Row]) -> list[tuple[int, dict[str, float]]]:
    return to_host([row for part in parts for row in part])


def test_a_loss_logged_before_the_step_belongs_to_the_update_being_made() -> None:
    rows = Rows(0)
    rows.log({"loss": 3.0})
    first = rows.update({"lr": 0.1})
    rows.log({"loss": 2.0})
    second = rows.update({"lr": 0.2})
    assert rows.order == "before"
    assert finished(first) == [(1, {"loss": 3.0, "lr": 0.1})]
    assert finished(second) == [(2, {"loss": 2.0, "lr": 0.2})]
    assert rows.flush() == []


def test_a_loss_logged_after_the_step_belongs_to_the_update_just_made() -> None:
    rows = Rows(0)
    first = rows.update({"lr": 0.1})
    rows.log({"loss": 3.0})
    second = rows.update({"lr": 0.2})
    rows.log({"loss": 2.0})
    assert rows.order == "after"
    assert first == []
    assert finished(second) == [(1, {"lr": 0.1, "loss": 3.0})]
    assert finished(rows.flush()) == [(2, {"lr": 0.2, "loss": 2.0})]


def test_the_order_is_learnt_once() -> None:
    rows = Rows(0)
    rows.log({"loss": 3.0})
    rows.update({})
    rows.update({})  # an update without a loss changes nothing
    rows.log({"loss": 1.0})
    assert finished(rows.update({})) == [(3, {"loss": 1.0})]


def test_the_first_step_may_be_any() -> None:
    rows = Rows(41)
    rows.log({"loss": 3.0})
    assert finished(rows.update({})) == [(42, {"loss": 3.0})]
    assert rows.last == 42


@pytest.mark.parametrize("before", [True, False])
def test_micro_batches_of_one_update_are_averaged(before: bool) -> None:
    rows, out = Rows(0), []
    for update in (10.0, 20.0):
        if not before:
            out += rows.update({"lr": 0.5})
        for micro in range(4):
            rows.log({"loss": update + micro, "metric:a": float(micro)})
        if before:
            out += rows.update({"lr": 0.5})
    out += rows.flush()
    assert finished(out) == [
        (1, {"loss": 11.5, "metric:a": 1.5, "lr": 0.5}),
        (2, {"loss": 21.5, "metric:a": 1.5, "lr": 0.5}),
    ]


@pytest.mark.parametrize("before", [True, False])
def test_an_evaluation_belongs_to_the_last_finished_update(before: bool) -> None:
    rows, out = Rows(0), []
    rows.log({"eval_loss": 9.0})  # before any update
    for step in (1.0, 2.0):
        if before:
            rows.log({"loss": step})
        out += rows.update({})
        if not before:
            rows.log({"loss": step})
        rows.log({"eval_loss": step / 4, "metric:accuracy": step / 8})
    out += rows.flush()
    merged: dict[int, dict[str, float]] = {}
    for step, values in finished(out):
        assert not merged.setdefault(step, {}).keys() & values.keys(), "told twice"
        merged[step] |= values
    assert merged == {
        0: {"eval_loss": 9.0},
        1: {"loss": 1.0, "eval_loss": 0.25, "metric:accuracy": 0.125},
        2: {"loss": 2.0, "eval_loss": 0.5, "metric:accuracy": 0.25},
    }


def test_a_nan_loss_whose_update_never_came_is_kept_at_the_update_being_made() -> None:
    rows = Rows(0)
    rows.log({"loss": 1.0})
    rows.update({})
    rows.log({"loss": math.nan})  # the loop breaks here
    ((step, values),) = finished(rows.flush())
    assert step == 2
    assert math.isnan(values["loss"])


def test_a_loss_before_any_update_is_kept_too() -> None:
    rows = Rows(0)
    rows.log({"loss": math.inf})
    assert finished(rows.flush()) == [(1, {"loss": math.inf})]


def test_flushing_twice_gives_nothing_twice() -> None:
    rows = Rows(0)
    rows.update({"lr": 1.0})
    rows.log({"loss": 1.0})
    assert rows.flush()
    assert rows.flush() == []


def test_values_on_a_device_stay_there_until_they_are_wanted() -> None:
    rows = Rows(0)
    rows.log({"loss": torch.tensor(1.0)})
    rows.log({"loss": torch.tensor(2.0, dtype=torch.float64)})
    rows.log({"loss": 6.0})
    out = rows.update({"lr": torch.tensor(0.5, dtype=torch.float16)})
    ((_, values),) = out
    assert all(isinstance(value, torch.Tensor) for value in values.values())
    assert finished(out) == [(1, {"loss": 3.0, "lr": 0.5})]


def test_many_tensors_cross_in_one_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    transfers = []
    to_list = torch.Tensor.tolist
    monkeypatch.setattr(
        torch.Tensor, "tolist", lambda self: transfers.append(self.shape) or to_list(self)
    )
    many = [
        (i, {"loss": torch.tensor(float(i)), "metric:a": torch.tensor([0.5])}) for i in range(9)
    ]
    assert to_host(many)[8] == (8, {"loss": 8.0, "metric:a": 0.5})
    assert transfers == [torch.Size([18])]


def test_losses_on_a_device_wait_for_the_next_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    def trained(on_device: bool) -> tuple[list[int], dict[int, float]]:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        doctor = quiet(model, optimizer, interval=8)
        run, known = doctor.runs[0], []
        for i in range(20):
            # As `Doctor.log` hands it over where the device is no CPU.
            run.log({"loss": torch.tensor(i / 4) if on_device else i / 4})
            optimizer.step()
            known.append(len(rows(doctor, "loss")))
        doctor.close()
        return known, rows(doctor, "loss")

    on_host, wanted = trained(on_device=False)
    on_device, losses = trained(on_device=True)
    assert losses == wanted == {i + 1: i / 4 for i in range(20)}
    assert on_host == list(range(1, 21))
    assert on_device == [1] * 8 + [9] * 8 + [17] * 4, "transfers happen at samples only"


def test_not_more_than_256_losses_wait_on_their_device() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    doctor = quiet(model, optimizer, interval=10_000)
    waiting = []
    for i in range(700):
        doctor.runs[0].log({"loss": torch.tensor(i / 4)})
        optimizer.step()
        waiting.append(i + 1 - len(rows(doctor, "loss")))
    assert max(waiting) == 255
    doctor.close()
    assert len(rows(doctor, "loss")) == 700


def test_losses_on_a_device_are_copies() -> None:
    model = net()
    doctor = quiet(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loss = torch.tensor(2.0)
    doctor.log(loss=loss)
    loss.fill_(5.0)  # as a compiled model writes the next loss to the same place
    doctor.runs[0].optimizer.step()
    doctor.close()
    assert rows(doctor, "loss") == {1: 2.0}
