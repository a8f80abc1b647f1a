"""Trainings that are not one optimizer over one fixed set of dense float32 tensors."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_training import batches as plain_batches
from small_training import events, failures, fingerprint, loss_of, quiet, rows, seed
from torch import Tensor, nn

from optdoctor.live.doctor import Doctor
from optdoctor.readers.run_record import read_folder

STEPS = 30
Training = Callable[[Callable[..., Doctor | None]], tuple[nn.Module, list[Any], Doctor | None]]
"""A training: it calls `watch(model, optimizers)` once, which gives a doctor or none."""


def twice(training: Training) -> Doctor:
    """Trains alone and watched; both end with the same bits, and nothing failed in the doctor."""
    seed()
    model, optimizers, _ = training(lambda *args, **options: None)
    alone = fingerprint(model, optimizers)
    seed()
    model, optimizers, doctor = training(lambda m, o, **options: quiet(m, o, **options))
    watched = fingerprint(model, optimizers)
    assert doctor is not None
    doctor.close()
    assert watched.keys() == alone.keys()
    assert [name for name in alone if watched[name] != alone[name]] == []
    assert failures(doctor) == []
    return doctor


def log(doctor: Doctor | None, **values: Any) -> None:
    if doctor is not None:
        doctor.log(**values)


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    yield from plain_batches(STEPS)


class Words(nn.Module):
    """An embedding and a head."""

    def __init__(self, *, sparse: bool = False, tied: bool = False, width: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, width, sparse=sparse)
        self.middle = nn.Linear(width, width)
        self.head = nn.Linear(width, 11, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.middle(self.embed(words)).tanh())


def steps(
    model: nn.Module, optimizer: Any, doctor: Doctor | None, between: Callable[[int], None] = int
) -> None:
    for i, batch in enumerate(batches()):
        between(i)
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        log(doctor, loss=loss)
        optimizer.step()


@pytest.mark.parametrize("logs_first", [True, False])
def test_an_optimizer_for_each_parameter_stepped_within_backward(logs_first: bool) -> None:
    losses = []

    def training(watch: Any) -> Any:
        model = nn.Sequential(*[nn.Linear(6, 6) for _ in range(8)])
        parameters = [*model.parameters()]
        optimizers = {p: torch.optim.AdamW([p], lr=1e-2) for p in parameters}
        doctor = watch(model, [*optimizers.values()])

        def step(parameter: Tensor) -> None:
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(step)
        losses.clear()
        for i in range(STEPS):
            inputs = torch.randn(4, 6, generator=torch.Generator().manual_seed(i))
            loss = (model(inputs) - inputs).square().mean()
            losses.append(loss.item())
            if logs_first:
                log(doctor, loss=loss)
            loss.backward()
            if not logs_first:
                log(doctor, loss=loss)
        return model, [*optimizers.values()], doctor

    doctor = twice(training)
    assert len(doctor.runs) == 16
    for number, run in enumerate(doctor.runs):
        assert run.step == STEPS
        assert rows(doctor, "loss", number) == dict(enumerate(losses, 1))
        own = rows(doctor, "update_rms", number)
        assert len(own) == STEPS
        assert np.isfinite(own[STEPS]).sum() == 1, "each measures its own parameter only"
        assert np.nonzero(np.isfinite(own[STEPS]))[0].tolist() == [number]


def test_two_optimizers_that_take_turns() -> None:
    def training(watch: Any) -> Any:
        maker, critic = nn.Linear(3, 5), nn.Linear(5, 1)
        model = nn.ModuleDict({"maker": maker, "critic": critic})
        optimizers = [
            torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.9)),
            torch.optim.RMSprop(maker.parameters(), lr=1e-3),
        ]
        doctor = watch(model, optimizers)
        for i in range(STEPS):
            noise = torch.randn(4, 3, generator=torch.Generator().manual_seed(i))
            critic_loss = critic(maker(noise).detach()).square().mean()
            optimizers[0].zero_grad()
            critic_loss.backward()
            log(doctor, loss=critic_loss, run=0)
            optimizers[0].step()
            if i % 5 == 4:
                loss = -critic(maker(noise)).mean()
                optimizers[1].zero_grad()
                loss.backward()
                log(doctor, loss=loss, run=1)
                optimizers[1].step()
        return model, optimizers, doctor

    doctor = twice(training)
    assert [run.step for run in doctor.runs] == [STEPS, STEPS // 5]
    assert [len(rows(doctor, "loss", i)) for i in (0, 1)] == [STEPS, STEPS // 5]
    assert [run.trace.facts["optimizer"] for run in doctor.runs] == ["Adam", "RMSprop"]


def test_groups_with_settings_of_their_own() -> None:
    def training(watch: Any) -> Any:
        model = Words()
        optimizer = torch.optim.AdamW(
            [
                {"params": model.embed.parameters(), "lr": 1e-3, "betas": (0.8, 0.9), "eps": 1e-6},
                {"params": model.middle.parameters(), "lr": 1e-2, "weight_decay": 0.0},
                {"params": model.head.parameters(), "lr": torch.tensor(1e-4), "foreach": False},
            ]
        )
        doctor = watch(model, optimizer)
        steps(model, optimizer, doctor)
        return model, [optimizer], doctor

    doctor = twice(training)
    rates = rows(doctor, "tensor_lr")[STEPS]
    assert rates == pytest.approx([1e-3, 1e-2, 1e-2, 1e-4])
    assert np.isfinite(rows(doctor, "effective_lr")[STEPS]).all()


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_a_rate_that_is_a_tensor_and_changes_in_place(kind: str) -> None:
    def training(watch: Any) -> Any:
        model, rate = Words(), torch.tensor(1e-2)
        make = torch.optim.AdamW if kind == "adamw" else torch.optim.SGD
        optimizer = make(model.parameters(), lr=rate, foreach=False)
        doctor = watch(model, optimizer)
        steps(model, optimizer, doctor, lambda i: rate.mul_(0.9))
        return model, [optimizer], doctor

    doctor = twice(training)
    assert rows(doctor, "lr")[10] == pytest.approx(1e-2 * 0.9**10, rel=1e-5)


def test_frozen_and_tied_weights() -> None:
    def training(watch: Any) -> Any:
        model = Words(tied=True)
        model.middle.requires_grad_(False)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        doctor = watch(model, optimizer)
        steps(model, optimizer, doctor)
        return model, [optimizer], doctor

    doctor = twice(training)
    tensors = doctor.runs[0].trace.tensors
    assert [t.name for t in tensors] == ["embed.weight", "middle.weight", "middle.bias"]
    assert tensors[0].tied_to == "head.weight"
    assert [t.trainable for t in tensors] == [True, False, False]
    assert (rows(doctor, "update_rms")[STEPS] == 0).tolist() == [False, True, True]


@pytest.mark.parametrize("kind", ["SGD", "SparseAdam"])
def test_sparse_gradients(kind: str) -> None:
    def training(watch: Any) -> Any:
        model = Words(sparse=True)
        make = getattr(torch.optim, kind)
        sparse = make(model.embed.parameters(), lr=1e-2)
        dense = torch.optim.Adam([*model.middle.parameters(), *model.head.parameters()])
        doctor = watch(model, [sparse, dense])
        for batch in batches():
            for optimizer in (sparse, dense):
                optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            log(doctor, loss=loss)
            for optimizer in (sparse, dense):
                optimizer.step()
        return model, [sparse, dense], doctor

    doctor = twice(training)
    assert len(rows(doctor, "grad_norm_used")) == STEPS
    assert np.isfinite(rows(doctor, "update_rms")[STEPS][0])


def test_gradients_that_are_missing_at_some_steps() -> None:
    def training(watch: Any) -> Any:
        model = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        doctor = watch(model, optimizer)
        for i in range(STEPS):
            optimizer.zero_grad()
            loss = model[i % 3](torch.ones(2, 4)).square().mean()
            loss.backward()
            log(doctor, loss=loss)
            optimizer.step()
        return model, [optimizer], doctor

    doctor = twice(training)
    for step, row in rows(doctor, "grad_rms").items():
        active = 2 * ((step - 1) % 3)
        assert np.nonzero(np.isfinite(row))[0].tolist() == [active, active + 1]
    assert len(rows(doctor, "grad_norm_used")) == STEPS


def test_complex_parameters() -> None:
    class Waves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.phase = nn.Parameter(torch.randn(5, dtype=torch.complex64))
            self.scale = nn.Parameter(torch.randn(5))

    def training(watch: Any) -> Any:
        model = Waves()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        doctor = watch(model, optimizer)
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = (model.phase * model.scale - 1).abs().square().mean()
            loss.backward()
            log(doctor, loss=loss)
            optimizer.step()
        return model, [optimizer], doctor

    doctor = twice(training)
    assert np.isfinite(rows(doctor, "update_rms")[STEPS]).all()
    assert len(rows(doctor, "grad_norm_used")) == STEPS


def test_unfreezing_in_mid_run() -> None:
    def training(watch: Any) -> Any:
        model = Words()
        model.embed.requires_grad_(False)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        doctor = watch(model, optimizer)

        def unfreeze(i: int) -> None:
            if i == 10:
                model.embed.requires_grad_(True)

        steps(model, optimizer, doctor, unfreeze)
        return model, [optimizer], doctor

    doctor = twice(training)
    of_embed = {step: row[0] for step, row in rows(doctor, "update_rms").items()}
    assert of_embed[10] == 0
    assert of_embed[12] > 0
    assert doctor.runs[0].trace.tensors[0].trainable


def test_a_group_that_joins_in_mid_run() -> None:
    def training(watch: Any) -> Any:
        model = Words()
        optimizer = torch.optim.AdamW(model.middle.parameters(), lr=1e-2)
        doctor = watch(model, optimizer, interval=1000)

        def join(i: int) -> None:
            if i == 10:
                optimizer.add_param_group({"params": model.embed.parameters(), "lr": 1e-3})

        steps(model, optimizer, doctor, join)
        return model, [optimizer], doctor

    doctor = twice(training)
    assert events(doctor).count("tensors-changed") == 1
    assert list(rows(doctor, "update_rms")) == [1, 11]
    assert np.isfinite(rows(doctor, "update_rms")[11][0])


def test_an_embedding_that_is_resized_in_mid_run() -> None:
    def training(watch: Any) -> Any:
        model = Words()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        doctor = watch(model, optimizer, interval=1000)

        def resize(i: int) -> None:
            if i != 10:
                return
            old, model.embed = model.embed, nn.Embedding(20, 8)
            with torch.no_grad():
                model.embed.weight[:11] = old.weight
            optimizer.state.pop(old.weight, None)
            given = optimizer.param_groups[0]["params"]
            given[[id(p) for p in given].index(id(old.weight))] = model.embed.weight

        steps(model, optimizer, doctor, resize)
        return model, [optimizer], doctor

    doctor = twice(training)
    trace = doctor.runs[0].trace
    assert [t.shape for t in trace.tensors if t.name == "embed.weight"] == [(11, 8), (20, 8)]
    assert list(rows(doctor, "update_rms")) == [1, 11]


def cast(model: nn.Module, optimizer: Any) -> None:
    model.to(torch.bfloat16)
    optimizer.load_state_dict(optimizer.state_dict())


@pytest.mark.parametrize("loads", [False, True], ids=["weights", "weights and state"])
def test_a_cast_in_mid_run_is_sampled_at_the_next_update(loads: bool) -> None:
    def training(watch: Any) -> Any:
        model = Words()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
        doctor = watch(model, optimizer, interval=1000)

        def change(i: int) -> None:
            if i == 10:
                cast(model, optimizer) if loads else model.to(torch.bfloat16)
                if not loads:
                    for state in optimizer.state.values():
                        state["momentum_buffer"] = state["momentum_buffer"].to(torch.bfloat16)

        steps(model, optimizer, doctor, change)
        return model, [optimizer], doctor

    doctor = twice(training)
    run = doctor.runs[0]
    assert list(rows(doctor, "update_rms"))[:2] == [1, 11]
    changed = [e for e in run.trace.events if e.kind == "tensors-changed"]
    assert [e.step for e in changed] == [11]
    assert "bfloat16" in changed[0].text
    assert {t.dtype for t in run.trace.tensors} == {"bfloat16"}


def test_a_state_that_is_cast_while_it_is_loaded_is_sampled_at_the_next_update() -> None:
    def training(watch: Any) -> Any:
        model = Words().to(torch.bfloat16)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, foreach=False)
        for parameter in model.parameters():  # float32 means of bfloat16 weights, as some keep
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros(parameter.shape)
        doctor = watch(model, optimizer, interval=1000)

        def load(i: int) -> None:
            if i == 10:  # torch casts what it loads to the dtype of the weights
                optimizer.load_state_dict(optimizer.state_dict())

        steps(model, optimizer, doctor, load)
        return model, [optimizer], doctor

    doctor = twice(training)
    run = doctor.runs[0]
    assert list(rows(doctor, "update_rms")) == [1, 11]
    assert [e.step for e in run.trace.events if e.kind == "tensors-changed"] == [11]
    assert {t.state_dtype for t in run.trace.tensors} == {"bfloat16"}


def test_one_parameter_that_is_cast_alone_is_found_within_a_turn() -> None:
    def training(watch: Any) -> Any:
        model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(20)])
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        doctor = watch(model, optimizer, interval=1000)
        for i in range(STEPS):
            if i == 10:
                model[13].bias.data = model[13].bias.data.double()
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
            log(doctor, loss=1.0)
            optimizer.step()
        return model, [optimizer], doctor

    doctor = twice(training)
    (change,) = [e for e in doctor.runs[0].trace.events if e.kind == "tensors-changed"]
    assert 11 <= change.step <= 21


class Careful(torch.optim.AdamW):
    """Its step calls that of its base: torch calls the hooks for both where both are wrapped."""

    fails = False

    def step(self, closure: Any = None) -> Any:
        if self.fails:
            raise MemoryError
        return super().step(closure)


def test_a_step_within_a_step_is_one_update() -> None:
    torch.optim.AdamW([nn.Parameter(torch.zeros(1))])  # makes torch wrap the step of the base

    def training(watch: Any) -> Any:
        model = Words()
        optimizer = Careful(model.parameters(), lr=1e-2)
        doctor = watch(model, optimizer)

        def fail(i: int) -> None:
            if i == 10:
                optimizer.fails = True
                with pytest.raises(MemoryError):
                    optimizer.step()
                optimizer.fails = False

        steps(model, optimizer, doctor, fail)
        return model, [optimizer], doctor

    doctor = twice(training)
    assert doctor.runs[0].step == STEPS
    assert len(rows(doctor, "loss")) == STEPS
    assert len(rows(doctor, "update_rms")) >= STEPS - 1


def test_the_dtypes_of_gradients_and_of_each_moment_are_known_and_recorded(tmp_path: Path) -> None:
    model = Words().to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, foreach=False)
    with quiet(model, optimizer, tmp_path) as doctor:
        optimizer.zero_grad()
        loss_of(model, next(batches())).backward()
        optimizer.step()
    tensors = doctor.runs[0].trace.tensors
    assert {(t.dtype, t.grad_dtype, t.moment1_dtype, t.state_dtype) for t in tensors} == {
        ("bfloat16",) * 4
    }
    assert events(doctor).count("tensors-changed") == 0, "a first state is no change"
    assert read_folder(tmp_path).tensors == tensors
