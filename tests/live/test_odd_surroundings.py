"""What surrounds a training: modes, devices, directories, processes; hooks that watch anew."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_training import Net, events, failures, net, quiet, rows, seed, train
from torch import nn

from optdoctor.live.doctor import Doctor
from optdoctor.live.guard import DEEPEST, Guard
from optdoctor.live.norms import SMALL, HostNorms
from optdoctor.live.rows import Rows
from optdoctor.live.schedule import Schedule
from optdoctor.live.tensors import is_sharded


def adam(model: nn.Module, **settings: Any) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), **{"lr": 1e-2, **settings})


def two_groups(model: Net) -> torch.optim.AdamW:
    """The main group is the second one, of which the rate is 1e-3."""
    given = list(model.parameters())
    return torch.optim.AdamW([{"params": given[:1], "lr": 1e-4}, {"params": given[1:]}])


def test_groups_that_are_merged_make_the_table_anew() -> None:
    model = net()
    optimizer = two_groups(model)
    doctor = quiet(model, optimizer)
    train(model, optimizer, 2)
    first, second = optimizer.param_groups
    first["params"] = first["params"] + second["params"]
    del optimizer.param_groups[1]
    train(model, optimizer, 2)
    doctor.close()
    assert failures(doctor) == []
    assert {t.group for t in doctor.runs[0].trace.tensors} == {0}
    assert rows(doctor, "lr") == {1: 1e-3, 2: 1e-3, 3: 1e-4, 4: 1e-4}
    assert events(doctor).count("tensors-changed") == 1


def test_a_parameter_that_changes_its_group_is_seen_at_the_next_update() -> None:
    model = net()
    optimizer = two_groups(model)
    doctor = quiet(model, optimizer, interval=100)
    train(model, optimizer, 2)
    first, second = optimizer.param_groups
    first["params"].append(second["params"].pop())
    train(model, optimizer, 2)
    doctor.close()
    assert failures(doctor) == []
    trace = doctor.runs[0].trace
    assert [t.group for t in trace.tensors] == [0, 1, 1, 1, 1, 1, 0]
    assert [e.step for e in trace.events if e.kind == "tensors-changed"] == [3]


def test_groups_that_are_merged_within_a_step_end_nothing() -> None:
    model = net()
    optimizer = two_groups(model)
    doctor = quiet(model, optimizer)

    def merge(*_: object) -> None:
        if len(optimizer.param_groups) > 1:
            optimizer.param_groups[0]["params"] += optimizer.param_groups.pop()["params"]

    optimizer.register_step_pre_hook(merge)  # after the doctor's
    train(model, optimizer, 3)
    assert failures(doctor) == []
    assert doctor.runs[0].step == 3


@pytest.mark.parametrize("before", [0, 2])
def test_without_groups_updates_are_counted(before: int) -> None:
    model = net()
    optimizer = adam(model)
    if not before:
        optimizer.param_groups.clear()
    doctor = quiet(model, optimizer)
    train(model, optimizer, before)
    optimizer.param_groups.clear()
    train(model, optimizer, 2)
    assert failures(doctor) == []
    assert doctor.runs[0].step == before + 2


def test_a_step_in_inference_mode_leaves_no_buffer_that_cannot_be_written_to() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    doctor = quiet(model, optimizer)
    for mode in (torch.inference_mode, torch.no_grad) * 2:
        with mode():
            for parameter in model.parameters():
                parameter.grad = torch.randn(parameter.shape)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
    doctor.close()
    assert failures(doctor) == []
    assert len(rows(doctor, "grad_norm")) == 4


@pytest.mark.parametrize("width", [8, 9000])
def test_a_foreign_default_device_is_none_of_the_doctors(width: int) -> None:
    seed()
    model = nn.Sequential(nn.Linear(8, width), nn.Linear(width, 3))
    optimizer = adam(model)
    doctor = quiet(model, optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(2, 8)).sum().backward()
        doctor.log(loss=1.0)
        doctor.log(loss=torch.ones((), requires_grad=True))
        with torch.device("meta"):
            optimizer.step()
    assert failures(doctor) == []
    assert np.isfinite(list(rows(doctor, "update_realized").values())).all()


def test_a_foreign_default_device_is_none_of_the_norms_and_means() -> None:
    big, loss = torch.ones(SMALL + 1), torch.ones(())
    rows = Rows(0)
    with torch.device("meta"):
        assert HostNorms([], [big]).each == pytest.approx([big.norm().item()])
        rows.log({"loss": loss})
        rows.log({"loss": 3.0})
        ((_, values),) = rows.flush()
    assert float(values["loss"]) == 2.0


def test_a_hook_may_watch_anew_within_the_step() -> None:
    model = net()
    optimizer = adam(model)
    doctors: list[Doctor] = [quiet(model, optimizer)]
    handle = optimizer.register_step_post_hook(
        lambda *_: doctors.append(quiet(model, optimizer)) if len(doctors) < 4 else None
    )
    optimizer.register_step_post_hook(lambda *_: None)  # torch walks on
    train(model, optimizer, 5)
    assert [doctor.runs[0].step for doctor in doctors] == [1, 2, 3, 5]
    assert [failures(doctor) for doctor in doctors] == [[]] * 4
    handle.remove()
    doctors[-1].close()
    assert len(optimizer._optimizer_step_pre_hooks) == 0
    assert len(optimizer._optimizer_step_post_hooks) == 1


def test_a_hook_may_close_the_doctor_within_the_step() -> None:
    model = net()
    optimizer = adam(model)
    doctor = quiet(model, optimizer)
    for _ in range(2):
        optimizer.register_step_post_hook(lambda *_: doctor.close() and None)
    train(model, optimizer, 2)
    assert doctor.runs[0].step == 1
    later = quiet(model, optimizer)
    train(model, optimizer, 2)
    assert later.runs[0].step == 4
    later.close()
    assert len(optimizer._optimizer_step_pre_hooks) == 0
    assert len(optimizer._optimizer_step_post_hooks) == 2


def test_the_record_stays_where_it_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    monkeypatch.chdir(here)
    model = net()
    optimizer = adam(model)
    doctor = quiet(model, optimizer, Path("run"))
    train(model, optimizer, 2)
    os.chdir(there)
    train(model, optimizer, 20)
    doctor.close()
    assert failures(doctor) == []
    assert not list(there.iterdir())
    assert (here / "run" / "report.html").exists()


SHARDED = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
import optdoctor

rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))
torch.manual_seed(0)
model = nn.Linear(4, 6, bias=False)
model.weight = nn.Parameter(distribute_tensor(model.weight.detach(), mesh, [Shard(0)]))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
doctor = optdoctor.watch(model, optimizer, out=None, interval=1, sinks=())
model.weight.grad = torch.ones_like(model.weight)
optimizer.step()
doctor.close()
run = doctor.runs[0]
print([e.text for e in run.trace.events if e.kind in ("gap", "doctor-failed")])
print(run.trace.facts["world_size"], run.trace.series["grad_norm_used"].values.tolist())
dist.destroy_process_group()
"""


def test_of_sharded_weights_it_is_told_whose_part_is_measured(tmp_path: Path) -> None:
    both = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", SHARDED, str(rank), str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for rank in range(2)
    ]
    for told in [process.communicate(timeout=60)[0] for process in both]:
        gaps, numbers = told.splitlines()
        assert "the part that this process holds" in gaps
        assert gaps.count("'") == 2
        assert numbers == f"2 [{12**0.5}]"


def test_a_plain_tensor_is_not_sharded() -> None:
    assert not is_sharded(torch.ones(2))


def test_numbers_of_numpy_are_numbers() -> None:
    told = []
    for number in (float, np.float32):
        model = net()
        settings = {"lr": number(2**-7), "eps": number(2**-20), "weight_decay": number(0.5)}
        optimizer = adam(model, **settings)
        doctor = quiet(model, optimizer)
        train(model, optimizer, 3)
        assert failures(doctor) == []
        names = ("lr", "tensor_lr", "effective_lr", "update_realized", "moment2_below_eps")
        told.append([np.array([*rows(doctor, name).values()]).tolist() for name in names])
        told[-1].append([doctor.runs[0].trace.facts[name] for name in ("eps", "weight_decay")])
    assert told[0] == told[1]


def test_what_an_interrupt_leaves_in_the_guard_is_bounded() -> None:
    guard = Guard(Schedule(), lambda part, error: None)
    for _ in range(3 * DEEPEST):
        guard("log")  # interrupted before it was entered
    with guard("step"):
        pass
    assert len(guard._parts) < DEEPEST
    assert len(guard._inner_s) < DEEPEST
