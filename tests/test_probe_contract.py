"""Every family of optimizers keeps the contract, and an optimizer nobody knows harms nothing."""

import importlib
import importlib.util
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from optimizers.built import Built, every, plain_step
from small_training import (
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
from torch.optim import SGD, Adam, AdamW, Optimizer

from optdoctor import optimizers
from optdoctor.channels import Axis, channel
from optdoctor.live.doctor import Doctor
from optdoctor.optimizers import innermost, probe_of, probes, settings_of
from optdoctor.optimizers.probe import Probe

SIXTEEN = (torch.bfloat16, torch.float16)
NUM_OPTIMIZERS = 40
"""Kinds of optimizers, at least, that are built and watched here."""
each_built = pytest.mark.parametrize("built", every(), ids=lambda built: built.name)
every_probe = pytest.mark.parametrize(
    "probe", probes(), ids=lambda probe: "-".join((probe.family, *probe.matches[:1]))
)


@dataclass
class Run:
    """A training with one of them."""

    model: nn.Module
    optimizer: Any
    """As its user holds it."""
    doctor: Doctor | None
    moved: list[dict[str, torch.Tensor]]
    """What each step changed, in float64."""


def run_of(built: Built, steps: int, *, watched: bool, dtype: torch.dtype | None = None) -> Run:
    if not built.available:
        pytest.skip(f"{built.package} is not installed")
    seed()
    model = (built.model() if built.model else net()).to(dtype or built.dtype)
    optimizer = built.make(model)
    doctor = quiet(model, optimizer) if watched else None
    run = Run(model, optimizer, doctor, [])
    for batch in batches(steps):
        before = {n: p.detach().clone() for n, p in model.named_parameters()}

        def loss(batch: Any = batch) -> torch.Tensor:
            value = loss_of(model, batch)
            if doctor is not None:
                doctor.log(loss=value)
            return value

        built.step(optimizer, loss)
        run.moved.append(
            {n: p.detach().double() - before[n].double() for n, p in model.named_parameters()}
        )
    if doctor is not None:
        doctor.close()
    return run


def test_at_least_forty_kinds_of_optimizers_are_built_here() -> None:
    kinds = {built.name.partition(",")[0] for built in every() if built.available}
    assert len(kinds) >= NUM_OPTIMIZERS, sorted(kinds)


@each_built
def test_the_run_is_the_same_bit_for_bit_and_no_entry_of_the_state_is_made(built: Built) -> None:
    watched, alone = (run_of(built, 4, watched=watched) for watched in (True, False))
    assert fingerprint(watched.model, watched.optimizer) == fingerprint(
        alone.model, alone.optimizer
    )
    assert watched.doctor is not None
    assert failures(watched.doctor) == []


@each_built
def test_the_update_measured_is_the_difference_of_weights(built: Built) -> None:
    run = run_of(built, 4, watched=True)
    assert run.doctor is not None
    tensors = run.doctor.runs[0].trace.tensors
    measured = rows(run.doctor, "update_rms")
    assert list(measured) == [1, 2, 3, 4]
    for row, moved in zip(measured.values(), run.moved, strict=True):
        for tensor, value in zip(tensors, row, strict=True):
            rms = moved[tensor.name].square().mean().sqrt().item()
            if tensor.in_optimizer and math.isfinite(rms):
                assert value == pytest.approx(rms, rel=1e-5, abs=1e-12), tensor.name


@each_built
def test_what_its_rule_asks_for_is_what_was_made(built: Built) -> None:
    run = run_of(built, 4, watched=True)
    assert run.doctor is not None
    optimizer = innermost(run.optimizer)
    probe = probe_of(optimizer)
    known = [probe.knows(settings_of(optimizer, group)) for group in optimizer.param_groups]
    realized = list(rows(run.doctor, "update_realized").values())
    if probe.foretell is None:
        assert not realized
        pytest.skip(f"not foretold: {probe.unforetold}")
    if not any(known):
        assert not realized
        return
    values = np.concatenate(realized) if realized else np.array([])
    values = values[np.isfinite(values)]
    assert values.size, "it was never compared"
    assert np.abs(values - 1).max() < 1e-3


@pytest.mark.parametrize(
    "built",
    [built for built in every() if built.package == "torch" and built.step is plain_step],
    ids=lambda built: built.name,
)
@pytest.mark.parametrize("dtype", SIXTEEN, ids=str)
def test_sixteen_bits_harm_neither_the_run_nor_the_doctor(built: Built, dtype: torch.dtype) -> None:
    try:
        alone = run_of(built, 3, watched=False, dtype=dtype)
    except (RuntimeError, ValueError, NotImplementedError) as error:
        pytest.skip(f"it cannot: {error}")
    run = run_of(built, 3, watched=True, dtype=dtype)
    assert run.doctor is not None
    assert fingerprint(run.model, run.optimizer) == fingerprint(alone.model, alone.optimizer)
    assert failures(run.doctor) == []
    assert "tensors-changed" not in events(run.doctor), "dtypes of its state were foretold"


@every_probe
def test_every_name_that_it_matches_is_a_real_optimizer(probe: Probe) -> None:
    for name in probe.matches:
        module, _, qualified = name.rpartition(".")
        if importlib.util.find_spec(module.partition(".")[0]) is None:
            continue
        try:
            found = getattr(importlib.import_module(module), qualified)
        except (ImportError, AttributeError):
            continue  # of another release
        assert issubclass(found, Optimizer)
        real = f"{found.__module__}.{found.__qualname__}"
        assert real in probe.matches, "it would never match"


@each_built
def test_its_facts_are_run_channels_with_finite_numbers(built: Built) -> None:
    run = run_of(built, 1, watched=False)
    optimizer = innermost(run.optimizer)
    probe = probe_of(optimizer)
    assert probe.matches, "nobody knows it"
    for group in optimizer.param_groups:
        for name, value in probe.facts(settings_of(optimizer, group)).items():
            assert channel(name).axis is Axis.RUN
            assert math.isfinite(value)


def test_the_registry_holds_one_family_per_file_and_the_fallback_is_last() -> None:
    helpers = {"__init__", "probe", "settings", "elements", "quantized", "arithmetic", "untraced"}
    files = {p.stem for p in Path(optimizers.__file__).parent.glob("*.py")} - helpers
    assert {probe.family for probe in probes()} == files
    assert [probe.family for probe in probes() if not probe.matches] == ["other"]
    assert probes()[-1].family == "other"
    matches = [name for probe in probes() for name in probe.matches]
    assert len(matches) == len(set(matches))


class Sign(Optimizer):
    """Made up here: no betas, no momentum, a rate that may be None."""

    def __init__(self, params: Any, **defaults: Any) -> None:
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            rate = 1e-3 if group.get("lr") is None else float(group["lr"])
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter -= rate * parameter.grad.sign()
                    self.remember(parameter)

    def remember(self, parameter: torch.Tensor) -> None:
        pass


class Counting(Sign):
    """Keys that are no strings, and entries that belong to no tensor."""

    def remember(self, parameter: torch.Tensor) -> None:
        self.state[parameter][0] = parameter.clone()
        self.state["total_step"] = 7
        self.state[3] = None


class Strange(Sign):
    """State under Adam's names that is no moment."""

    def remember(self, parameter: torch.Tensor) -> None:
        self.state[parameter] = {"exp_avg": "text", "exp_avg_sq": [parameter], "step": "one"}


class Subclass(AdamW):
    """A subclass of a known one that keeps its state in another way."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter -= group["lr"] * parameter.grad
                self.state[parameter] = {"exp_avg": 1.0, "exp_avg_sq": torch.zeros(1)}
        self.state["total"] = 3


class WithoutBetas(Adam):
    """A subclass of a known one whose groups lack what the known one has."""

    def __init__(self, params: Any) -> None:
        Optimizer.__init__(self, params, {"lr": 1e-3})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter -= 1e-3 * parameter.grad


UNKNOWN = {
    "made up": lambda ps: Sign(ps, lr=1e-3),
    "without a rate": lambda ps: Sign(ps),
    "rate None": lambda ps: Sign(ps, lr=None, weight_decay=None, momentum="much"),
    "rate in a tensor": lambda ps: Sign(ps, lr=torch.tensor(1e-3)),
    "keys that are numbers": lambda ps: Counting(ps, lr=1e-3),
    "state under known names": lambda ps: Strange(ps, lr=1e-3),
    "subclass with other state": lambda ps: Subclass(ps, lr=1e-3),
    "subclass without betas": WithoutBetas,
}


@pytest.mark.parametrize("kind", UNKNOWN)
@pytest.mark.parametrize("begun", [False, True], ids=["fresh", "with state"])
def test_an_unknown_optimizer_is_measured_from_outside(kind: str, begun: bool) -> None:
    def trained(watched: bool) -> tuple[nn.Module, Optimizer, Any]:
        model = net()
        optimizer = UNKNOWN[kind](list(model.parameters()))
        if begun:
            train(model, optimizer, 1)
        doctor = quiet(model, optimizer) if watched else None
        train(model, optimizer, 4, doctor)
        if doctor is not None:
            doctor.close()
        return model, optimizer, doctor

    model, optimizer, doctor = trained(True)
    assert fingerprint(model, optimizer) == fingerprint(*trained(False)[:2])
    assert failures(doctor) == []
    assert len(rows(doctor, "loss")) == 4
    assert all((row > 0).all() for row in rows(doctor, "update_rms").values())
    has_rate = any(np.isfinite(row).any() for row in rows(doctor, "tensor_lr").values())
    assert has_rate is (kind not in ("without a rate", "rate None"))


def test_an_optimizer_that_creates_state_at_once_does_not_look_resumed(tmp_path: Path) -> None:
    for _ in range(2):
        model = net()
        optimizer = torch.optim.Adagrad(model.parameters(), lr=1e-2)
        assert optimizer.state, "Adagrad holds state before its first step"
        doctor = quiet(model, optimizer, tmp_path)
        train(model, optimizer, 3, doctor)
        doctor.close()
        assert events(doctor)[0] == "start"
        assert list(rows(doctor, "loss")) == [1, 2, 3]
    assert (tmp_path / "earlier-1").is_dir()


def test_an_optimizer_that_counts_its_steps_goes_on_with_their_number() -> None:
    model = net()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    train(model, optimizer, 6)
    doctor = quiet(model, optimizer)
    train(model, optimizer, 2, doctor)
    assert list(rows(doctor, "update_rms")) == [7, 8]


def test_the_optimizer_inside_of_accelerates_is_the_one_watched() -> None:
    model = net()
    inner = AdamW(model.parameters(), lr=1e-3)
    prepared, wrapped = Accelerator(cpu=True).prepare(model, inner)
    assert wrapped is not inner
    assert isinstance(wrapped, Optimizer)
    assert innermost(wrapped) is inner
    doctor = quiet(prepared, wrapped)
    train(prepared, wrapped, 3, doctor)
    doctor.close()
    assert list(rows(doctor, "update_rms")) == [1, 2, 3]


@pytest.mark.parametrize(
    "thing", [None, "adam", nn.Linear(1, 1), [], object()], ids=lambda thing: type(thing).__name__
)
def test_what_is_no_optimizer_is_refused_by_name(thing: Any) -> None:
    with pytest.raises(TypeError, match=f"{type(thing).__name__} holds no torch.optim.Optimizer"):
        innermost(thing)


def test_a_wrapper_around_nothing_is_refused() -> None:
    class Wrapper:
        optimizer = None

    with pytest.raises(TypeError, match="Wrapper holds no"):
        innermost(Wrapper())


def test_a_wrapper_of_itself_is_refused_in_finite_time() -> None:
    class Circle:
        @property
        def optimizer(self) -> "Circle":
            return self

    with pytest.raises(TypeError, match="Circle holds no"):
        innermost(Circle())


def test_an_optimizer_is_its_own_innermost() -> None:
    optimizer = SGD(net().parameters(), lr=1.0)
    assert innermost(optimizer) is optimizer
