"""On a device our hooks read no number: the training would wait for all that it was asked for."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from small_training import quiet, rows
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from optdoctor.live import incoming as live_incoming
from optdoctor.live import norms, sentinel, witness
from optdoctor.live import run as live_run
from optdoctor.live.doctor import Doctor

NUM_LAYERS = 150
"""Each with a weight and a bias: 300 tensors."""
WAITING = ("_local_scalar_dense", "item", "nonzero", "is_nonzero", "equal", "masked_select")
"""Operations whose result the host must wait for."""
READING = ("item", "tolist", "numpy", "cpu", "__float__", "__int__", "__bool__", "__index__")
"""Methods that read, of which some are invisible to a dispatch mode."""


class Waits(TorchDispatchMode):
    """Notes operations that would wait for a device."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in WAITING:
            self.seen.append(name)
        return func(*args, **(kwargs or {}))


@contextmanager
def nothing_read(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names of what reads a number meanwhile."""
    with monkeypatch.context() as patch, Waits() as mode:
        for name in READING:
            method = getattr(Tensor, name)

            def reading(self: Tensor, *args: Any, _n: str = name, _m: Any = method) -> Any:
                mode.seen.append(f"Tensor.{_n}")
                return _m(self, *args)

            patch.setattr(Tensor, name, reading)
        yield mode.seen


@pytest.fixture
def as_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody takes the host for a place where numbers can be read at once."""
    for module in (sentinel, live_run, witness):
        monkeypatch.setattr(module, "is_host", lambda device: False)


def hooks(optimizer: torch.optim.Optimizer) -> tuple[Callable[..., None], Callable[..., None]]:
    (before,), (after,) = (
        tuple(held.values())
        for held in (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
    )
    return before, after


def watched(make: Callable[[Any], torch.optim.Optimizer]) -> tuple[Doctor, Any, list[Tensor]]:
    """A doctor of 300 tensors after its dense first samples, with gradients in place."""
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(NUM_LAYERS)])
    optimizer = make(model.parameters())
    doctor = quiet(model, optimizer, interval=100_000)
    parameters = [*model.parameters()]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    for _ in range(2):
        optimizer.step()
    return doctor, optimizer, parameters


MAKES: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3),
    "rate is a tensor": lambda p: torch.optim.AdamW(p, lr=torch.tensor(1e-3), foreach=False),
    "capturable": lambda p: torch.optim.Adam(p, lr=torch.tensor(1e-3), fused=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
}


@pytest.mark.parametrize("kind", MAKES)
@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.usefixtures("as_on_a_device")
def test_an_idle_step_waits_for_nothing(
    kind: str, clips: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    doctor, optimizer, parameters = watched(MAKES[kind])
    before, after = hooks(optimizer)
    loss = torch.tensor(2.0)
    optimizer.found_inf = torch.tensor(0.0)
    with nothing_read(monkeypatch) as seen:
        for _ in range(3):
            doctor.runs[0].log({"loss": loss.clone()})
            if clips:
                doctor.runs[0].before_clip(parameters)
                doctor.runs[0].after_clip(parameters)
            before(optimizer, (), {})
            after(optimizer, (), {})
    assert seen == []
    doctor.close()
    assert rows(doctor, "grad_norm" if clips else "grad_norm_used")[5] > 0
    assert rows(doctor, "lr")[5] == pytest.approx(optimizer.param_groups[0]["lr"])


@pytest.mark.parametrize("kind", MAKES)
@pytest.mark.usefixtures("as_on_a_device")
def test_a_sampled_step_waits_for_nothing_but_what_has_arrived(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    doctor, optimizer, parameters = watched(MAKES[kind])
    run = doctor.runs[0]
    on_their_way: list[Any] = []
    monkeypatch.setattr(run._collector, "_host", False)
    # Nothing arrives meanwhile, as from a device that is busy.
    monkeypatch.setattr(run._collector._transfer, "arrived", lambda wait=False: on_their_way)
    monkeypatch.setattr(run._incoming._crossing, "arrived", lambda wait=False: [])
    before, after = hooks(optimizer)
    with nothing_read(monkeypatch) as seen:
        run._schedule.changed()
        run.log({"loss": torch.tensor(2.0)})
        run.before_clip(parameters)
        run.after_clip(parameters)
        before(optimizer, (), {})
        after(optimizer, (), {})
    assert run._collector is not None
    assert run._collector._transfer._on_their_way
    assert [name for name in seen if name != "Tensor.cpu"] == []
    doctor.close()


def test_the_test_sees_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    number = torch.tensor(1.0)
    with nothing_read(monkeypatch) as seen:
        float(number)
        number.tolist()
        torch.nonzero(number)
        torch.equal(number, number)
    assert {"_local_scalar_dense", "Tensor.tolist", "nonzero", "equal"} <= {*seen}


@pytest.mark.usefixtures("as_on_a_device")
def test_a_rate_on_a_device_is_kept_as_it_was() -> None:
    model = nn.Linear(2, 2)
    rate = torch.tensor(0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, foreach=False)
    doctor = quiet(model, optimizer, interval=100)
    for _ in range(4):
        optimizer.step()
        rate *= 0.5  # as schedulers do
    doctor.close()
    assert rows(doctor, "lr") == {1: 0.5, 2: 0.25, 3: 0.125, 4: 0.0625}


@pytest.mark.parametrize("interval", [1, 100])
@pytest.mark.parametrize("logs_first", [False, True])
@pytest.mark.usefixtures("as_on_a_device")
def test_an_update_whose_mark_stays_on_its_device_is_known_for_skipped_later(
    interval: int, logs_first: bool
) -> None:
    model = nn.Linear(3, 3)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    doctor = quiet(model, optimizer, interval=interval)
    run = doctor.runs[0]
    for i in range(1, 9):
        bad = i in (4, 7)
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, torch.inf if bad else 1.0)
        optimizer.found_inf, optimizer.grad_scale = torch.tensor(float(bad)), torch.tensor(1.0)
        if logs_first:
            run.log({"loss": torch.tensor(i / 4)})
        optimizer.step()
        if not logs_first:
            run.log({"loss": torch.tensor(i / 4)})
    doctor.close()
    assert rows(doctor, "step_skipped") == {4: 1.0, 7: 1.0}
    assert [e.step for e in run.trace.events if e.kind == "step-skipped"] == [4, 7]
    made = {1, 2, 3, 5, 6, 8}
    assert rows(doctor, "grad_norm_used").keys() == rows(doctor, "lr").keys() == made
    assert rows(doctor, "loss") == {i: i / 4 for i in range(1, 9)}
    assert rows(doctor, "grad_rms").keys() == (made if interval == 1 else {1})
    assert "first_nonfinite_step" not in run.trace.series


def test_a_norm_is_right_whatever_its_size() -> None:
    torch.manual_seed(0)
    for size in (1e-24, 1e-12, 1.0, 1e12, 1e24):
        tensors = [torch.randn(n) * size for n in (3, 5000, 40_000)]
        found = norms.HostNorms(tensors[:2], tensors[2:])
        wanted = [float(tensor.double().norm()) for tensor in tensors]
        assert found.each == pytest.approx(wanted, rel=1e-6, abs=0)
        assert found.square**0.5 == pytest.approx(
            sum(w * w for w in wanted) ** 0.5, rel=1e-6, abs=0
        )


def test_the_norm_of_many_elements_loses_no_digits() -> None:
    torch.manual_seed(0)
    tensor = torch.rand(3_000_000)
    wanted = float(tensor.double().norm())
    assert norms.HostNorms([], [tensor]).square ** 0.5 == pytest.approx(wanted, rel=1e-6, abs=0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_only_the_gradient_with_a_bad_element_has_a_norm_that_is_not_finite(bad: float) -> None:
    tensors = [torch.ones(3), torch.ones(7), torch.zeros(5), torch.ones(20_000)]
    for i, tensor in enumerate(tensors):
        kept, tensor[1] = float(tensor[1]), bad
        found = norms.HostNorms(tensors[:3], tensors[3:]).each
        assert [k for k, norm in enumerate(found) if not abs(norm) < float("inf")] == [i]
        tensor[1] = kept


def test_rows_wait_for_one_entry_and_are_there_when_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    doctor = quiet(model, optimizer, interval=100_000)
    entries = []
    kept = doctor.runs[0].journal.rows
    monkeypatch.setattr(
        doctor.runs[0].journal, "rows", lambda rows: entries.append(len(rows)) or kept(rows)
    )
    monkeypatch.setattr(live_incoming, "WAIT_S", 1e9)
    for i in range(600):
        doctor.log(loss=float(i % 7))
        optimizer.step()
    assert live_incoming.DRAIN in entries
    assert len(entries) <= 30, "at samples, at examinations and where many wait"
    assert len(rows(doctor, "loss")) == 600


@pytest.mark.parametrize("zero", [True, False])
def test_a_backward_pass_waits_for_nothing(
    zero: bool, as_on_a_device: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 9)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    doctor = quiet(model, optimizer, interval=100_000)
    several = 8
    for number in range(several):
        if zero:
            optimizer.zero_grad(set_to_none=False)
        loss = model(torch.ones(2, 4)).square().mean()
        with nothing_read(monkeypatch) as seen:
            loss.backward()
            if number > 2:
                optimizer.step()
        assert seen == []
        if number <= 2:
            optimizer.step()
    doctor.close()
    assert list(rows(doctor, "gradients_kept").values()) == [float(not zero)] * (several - 1)
