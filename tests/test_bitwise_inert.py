"""Watching changes no bit: not of a weight, a gradient, the optimizer's state, or a generator."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_training import (
    Make,
    batches,
    events,
    failures,
    fingerprint,
    loss_of,
    net,
    quiet,
    rows,
    seed,
    train,
)
from torch import nn
from torch.optim import SGD, Adam, AdamW, SparseAdam
from torch.optim.lr_scheduler import CosineAnnealingLR

from optdoctor.live.doctor import Doctor

STEPS = 50
Watch = Callable[..., Doctor | None]
Training = Callable[[Watch], tuple[nn.Module, Any]]


def compared(training: Training, out: Path, **options: Any) -> Doctor:
    """Trains without and with a doctor; everything must be the same to the bit."""
    plain = fingerprint(*training(lambda *args, **more: None))
    doctors: list[Doctor] = []

    def watch(model: nn.Module, optimizer: Any, **more: Any) -> Doctor:
        doctors.append(quiet(model, optimizer, out, **{**options, **more}))
        return doctors[0]

    watched = fingerprint(*training(watch))
    assert {name for name in plain if plain[name] != watched.get(name)} == set()
    assert plain.keys() == watched.keys()
    (doctor,) = doctors
    doctor.close()
    assert failures(doctor) == []
    return doctor


def must_have_measured(doctor: Doctor, *channels: str, samples: int = STEPS) -> None:
    """A doctor that did nothing would be inert too."""
    assert len(rows(doctor, "loss")) >= STEPS
    for channel in ("grad_rms", "update_rms", "param_rms", *channels):
        assert len(rows(doctor, channel)) >= samples, channel


def plain_loop(make: Make, dtype: torch.dtype = torch.float32) -> Training:
    def training(watch: Watch) -> tuple[nn.Module, Any]:
        model = net(dtype)
        optimizer = make(list(model.parameters()))
        train(model, optimizer, STEPS, watch(model, optimizer))
        return model, optimizer

    return training


MOMENTS = ("moment1_rms", "moment2_zero", "effective_lr")
ADAM_KINDS: dict[str, Make] = {
    "AdamW foreach": lambda ps: AdamW(ps, lr=1e-2, foreach=True),
    "AdamW one by one": lambda ps: AdamW(ps, lr=1e-2, foreach=False),
    "AdamW fused": lambda ps: AdamW(ps, lr=1e-2, fused=True),
    "AdamW rate in a tensor": lambda ps: AdamW(ps, lr=torch.tensor(1e-2), foreach=False),
    "Adam amsgrad": lambda ps: Adam(ps, lr=1e-2, amsgrad=True, weight_decay=0.1),
}
OTHERS: dict[str, Make] = {
    "SGD momentum": lambda ps: SGD(ps, lr=1e-2, momentum=0.9),
    "SGD without state": lambda ps: SGD(ps, lr=1e-2),
}
if hasattr(torch.optim, "Adafactor"):  # torch 2.5
    OTHERS["Adafactor"] = lambda ps: torch.optim.Adafactor(ps, lr=1e-2)
if hasattr(torch.optim, "Muon"):  # torch 2.9
    OTHERS["Muon"] = lambda ps: torch.optim.Muon([p for p in ps if p.ndim == 2], lr=1e-2)


@pytest.mark.parametrize("kind", ADAM_KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_adam_trains_the_same(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    doctor = compared(plain_loop(ADAM_KINDS[kind], dtype), tmp_path)
    # Without fusing, float16 is NaN after the first step: its moments have no finite element.
    sick = dtype == torch.float16 and "fused" not in kind
    must_have_measured(doctor, *MOMENTS, samples=1 if sick else STEPS)


@pytest.mark.parametrize("kind", OTHERS)
def test_other_optimizers_train_the_same(kind: str, tmp_path: Path) -> None:
    must_have_measured(compared(plain_loop(OTHERS[kind]), tmp_path), "effective_lr")


def test_the_usual_schedule_of_samples_changes_nothing(tmp_path: Path) -> None:
    training = plain_loop(ADAM_KINDS["AdamW foreach"])
    doctor = compared(training, tmp_path, interval=None, sinks=("console",))
    must_have_measured(doctor, *MOMENTS, samples=3)


def test_lbfgs_with_its_closure_trains_the_same(tmp_path: Path) -> None:
    def training(watch: Watch) -> tuple[nn.Module, Any]:
        model = net()
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
        doctor = watch(model, optimizer)
        for batch in batches(STEPS):

            def closure(batch: Any = batch) -> torch.Tensor:
                optimizer.zero_grad()
                loss = loss_of(model, batch)
                loss.backward()
                if doctor is not None:
                    doctor.log(loss=loss)
                return loss

            optimizer.step(closure)
        return model, optimizer

    must_have_measured(compared(training, tmp_path))


def test_a_sparse_embedding_trains_the_same(tmp_path: Path) -> None:
    def training(watch: Watch) -> tuple[nn.Module, Any]:
        model = net()
        model.embed.sparse = True
        sparse = SparseAdam([model.embed.weight], lr=1e-2)
        dense = AdamW([p for n, p in model.named_parameters() if "embed" not in n], lr=1e-2)
        doctor = watch(model, [sparse, dense])
        for batch in batches(STEPS):
            sparse.zero_grad()
            dense.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            assert model.embed.weight.grad.is_sparse
            if doctor is not None:
                doctor.log(loss=loss)
            sparse.step()
            dense.step()
        return model, [sparse, dense]

    doctor = compared(training, tmp_path)
    must_have_measured(doctor)
    assert len(rows(doctor, "moment2_rms", run=1)) == STEPS


def test_accumulation_and_a_schedule_of_rates_train_the_same(tmp_path: Path) -> None:
    def training(watch: Watch) -> tuple[nn.Module, Any]:
        model = net()
        optimizer = AdamW(model.parameters(), lr=1e-2)
        schedule = CosineAnnealingLR(optimizer, STEPS)
        doctor = watch(model, optimizer)
        for i, batch in enumerate(batches(4 * STEPS)):
            loss = loss_of(model, batch)
            (loss / 4).backward()
            if doctor is not None:
                doctor.log(loss=loss)
            if i % 4 == 3:
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
                schedule.step()
                if i != 4 * STEPS - 1:
                    optimizer.zero_grad()
        return model, optimizer

    doctor = compared(training, tmp_path)
    must_have_measured(doctor, *MOMENTS)
    assert len(set(rows(doctor, "lr").values())) == STEPS


@pytest.mark.parametrize("fused", [False, True], ids=["unfused", "fused"])
@pytest.mark.parametrize("infinite_at", [(), (4, 5, 30)], ids=["without an inf", "with infs"])
def test_a_gradient_scaler_trains_the_same(
    fused: bool, infinite_at: tuple[int, ...], tmp_path: Path
) -> None:
    def training(watch: Watch) -> tuple[nn.Module, Any]:
        model = net()
        optimizer = AdamW(model.parameters(), lr=1e-2, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        doctor = watch(model, optimizer, scaler=scaler)
        for i, batch in enumerate(batches(STEPS)):
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            scaler.scale(loss * (float("inf") if i in infinite_at else 1)).backward()
            if doctor is not None:
                doctor.log(loss=loss)
            scaler.step(optimizer)
            scaler.update()
        return model, optimizer

    doctor = compared(training, tmp_path)
    must_have_measured(doctor, *MOMENTS, samples=STEPS - len(infinite_at))
    assert events(doctor).count("step-skipped") == len(infinite_at)


class Odd(nn.Module):
    """Tensors of every kind that an update can meet."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()
        self.net.head.weight = nn.Parameter(torch.randn(11, 8) / 3)
        self.net.embed.weight = self.net.head.weight
        self.unused = nn.Parameter(torch.randn(3))
        self.frozen = nn.Parameter(torch.randn(8), requires_grad=False)
        self.empty = nn.Parameter(torch.empty(0, 4))
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.complex = nn.Parameter(torch.randn(8, dtype=torch.complex64))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        gate = 1 + 0.1 * (self.complex * self.complex.conj()).real.sum() + self.frozen.sum() * 0.01
        return self.net(words) * gate * self.scale + self.empty.sum()


@pytest.mark.parametrize(
    "make",
    [
        lambda ps: AdamW(ps, lr=1e-2, foreach=True),
        lambda ps: AdamW(ps, lr=1e-2, foreach=False),
        lambda ps: SGD(ps, lr=1e-2, momentum=0.9),
    ],
    ids=["AdamW foreach", "AdamW one by one", "SGD"],
)
def test_tensors_of_every_kind_train_the_same(make: Make, tmp_path: Path) -> None:
    def training(watch: Watch) -> tuple[nn.Module, Any]:
        seed()
        model = Odd()
        stray = nn.Parameter(torch.ones(2))  # in the optimizer, not in the model
        optimizer = make([*model.parameters(), stray])
        doctor = watch(model, optimizer)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of conversions of complex numbers
            train(model, optimizer, STEPS, doctor)
        return model, optimizer

    doctor = compared(training, tmp_path)
    must_have_measured(doctor)
    tensors = doctor.runs[0].trace.tensors
    last = dict(zip([t.name for t in tensors], rows(doctor, "grad_rms")[STEPS], strict=True))
    assert last["complex"] > 0
    assert last["scale"] > 0
    assert {t.name: t.tied_to for t in tensors if t.tied_to} == {
        "net.embed.weight": "net.head.weight"
    }
    without_gradient = {name for name, value in last.items() if value != value}
    assert without_gradient == {"unused", "frozen", "empty", "group0.11"}
