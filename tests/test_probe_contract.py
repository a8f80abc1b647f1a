"""Every family of optimizers keeps the contract, and an optimizer nobody knows harms nothing."""

import importlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from small_training import events, failures, fingerprint, net, quiet, rows, train
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from optdoctor import optimizers
from optdoctor.channels import Axis, channel
from optdoctor.live.tensors import steps_in_state
from optdoctor.optimizers import Probe, innermost, probe_of, probes

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
every_probe = pytest.mark.parametrize("probe", probes(), ids=lambda probe: probe.family)


@every_probe
def test_the_update_measured_is_the_difference_of_weights(probe: Probe) -> None:
    model = net()
    optimizer = probe.make(list(model.parameters()))
    before: list[dict[str, torch.Tensor]] = []
    optimizer.register_step_pre_hook(
        lambda *_: before.append({n: p.detach().clone() for n, p in model.named_parameters()})
    )
    after: list[dict[str, torch.Tensor]] = []
    optimizer.register_step_post_hook(
        lambda *_: after.append({n: p.detach().clone() for n, p in model.named_parameters()})
    )
    doctor = quiet(model, optimizer)
    train(model, optimizer, 5, doctor)
    assert failures(doctor) == []
    names = [tensor.name for tensor in doctor.runs[0].trace.tensors]
    measured = rows(doctor, "update_rms")
    assert list(measured) == [1, 2, 3, 4, 5]
    for step, row in measured.items():
        for name, value in zip(names, row, strict=True):
            moved = after[step - 1][name].double() - before[step - 1][name].double()
            assert value == pytest.approx(moved.square().mean().sqrt().item(), rel=1e-5)


@every_probe
def test_every_name_that_it_matches_is_a_real_optimizer(probe: Probe) -> None:
    for name in probe.matches:
        module, _, qualified = name.rpartition(".")
        found = getattr(importlib.import_module(module), qualified)
        assert issubclass(found, Optimizer)
        assert f"{found.__module__}.{found.__qualname__}" == name, "it would never match"


@every_probe
def test_the_optimizer_that_it_makes_is_its_own(probe: Probe) -> None:
    assert probe_of(probe.make(list(net().parameters()))) is probe


@every_probe
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_dtype_of_its_state_is_foretold(probe: Probe, dtype: torch.dtype) -> None:
    model = net(dtype)
    optimizer = probe.make(list(model.parameters()))
    doctor = quiet(model, optimizer)
    foretold = [t.state_dtype for t in doctor.runs[0].trace.tensors]
    fact = doctor.runs[0].trace.facts.get("state_dtype")
    train(model, optimizer, 1, doctor)
    assert [t.state_dtype for t in doctor.runs[0].trace.tensors] == foretold
    assert doctor.runs[0].trace.facts.get("state_dtype") == fact
    assert "tensors-changed" not in events(doctor)
    moments = [probe.moments(state) for state in optimizer.state.values()]
    held = [m.second if m.second is not None else m.first for m in moments]
    assert [str(t.dtype) for t in held if t is not None] == [f"torch.{d}" for d in foretold if d]


@every_probe
def test_its_moments_have_the_shape_of_their_tensor_and_count_updates(probe: Probe) -> None:
    model = net()
    optimizer = probe.make(list(model.parameters()))
    assert steps_in_state(optimizer, probe) is None
    train(model, optimizer, 5)
    for parameter, state in optimizer.state.items():
        moments = probe.moments(state)
        for moment in (moments.first, moments.second, moments.divisor):
            assert moment is None or moment.shape == parameter.shape
        assert moments.step is None or float(moments.step) == 5
        assert probe.moments({}) == optimizers.Moments()


@every_probe
def test_its_facts_are_run_channels_with_finite_numbers(probe: Probe) -> None:
    optimizer = probe.make(list(net().parameters()))
    facts = probe.facts(optimizer.param_groups[0])
    assert facts
    for name, value in facts.items():
        assert channel(name).axis is Axis.RUN
        assert math.isfinite(value)


def test_the_registry_holds_one_family_per_file_and_the_fallback_is_last() -> None:
    files = {p.stem for p in Path(optimizers.__file__).parent.glob("*.py")} - {"__init__"}
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


@pytest.mark.parametrize("thing", [None, "adam", nn.Linear(1, 1), [], object()], ids=repr)
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
