"""Tensors that lie in one unit and yet are not alike, or cannot be measured: all others are."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

import optdoctor
from optdoctor.live.changes import Changes
from optdoctor.live.doctor import Doctor
from optdoctor.live.gaps import Gaps
from optdoctor.live.parts import held_alike
from optdoctor.live.tensors import track
from optdoctor.optimizers import probe_of
from optdoctor.optimizers.adam import layout
from optdoctor.optimizers.probe import Layout
from optdoctor.optimizers.quantized import blockwise, blockwise_moment


def watched(tensors: Iterable[nn.Parameter], optimizer: Optimizer) -> Doctor:
    """Every update is sampled."""
    return optdoctor.watch(nn.ParameterList(tensors), optimizer, out=None, interval=1, sinks=())


def weights(*shapes: tuple[int, ...]) -> list[nn.Parameter]:
    """Normal, seeded."""
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


def step(optimizer: Optimizer, gradients: Callable[[Tensor], Tensor] = torch.ones_like) -> None:
    """One update with such gradients."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad:
                parameter.grad = gradients(parameter)
    optimizer.step()


def last(doctor: Doctor, channel: str) -> Any:
    """[P] of the update just made; None where there is none."""
    run = doctor.runs[0]
    series = run.trace.series.get(channel)
    if series is None or series.steps[-1] != run.step:
        return None
    return np.asarray(series.values)[-1]


def told(doctor: Doctor, kind: str) -> list[str]:
    """Texts of the events of a kind."""
    return [event.text for event in doctor.runs[0].trace.events if event.kind == kind]


def fails(doctor: Doctor) -> list[str]:
    """What went wrong in the doctor, or was left out."""
    return told(doctor, "doctor-failed") + told(doctor, "gap")


class Mixed(AdamW):
    """Holds moments of one of its tensors in another dtype."""

    dtype = torch.float16

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Moments of ones: 0.1 and 0.001 after the first update."""
        for k, parameter in enumerate(self.param_groups[0]["params"]):
            held = {"dtype": self.dtype} if k == 1 else {}
            self.state[parameter] = {
                "step": torch.ones(()),
                "exp_avg": torch.full_like(parameter, 0.125, **held),
                "exp_avg_sq": torch.full_like(parameter, 1e-9 if k != 1 else 0.25, **held),
            }
            parameter.sub_(1e-3)


def test_moments_of_several_dtypes_in_one_unit_keep_their_values() -> None:
    tensors = weights((8, 8), (8, 8), (8, 8))
    doctor = watched(tensors, optimizer := Mixed(tensors))
    for _ in range(2):
        step(optimizer)
        assert last(doctor, "moment2_rms") == pytest.approx([1e-9, 0.25, 1e-9], rel=1e-3)
    assert told(doctor, "doctor-failed") == []


def test_moments_in_a_dtype_without_arithmetic_are_left_out_of_that_tensor_alone() -> None:
    tensors = weights((8, 8), (8, 8), (8, 8))
    optimizer = Mixed(tensors)
    optimizer.dtype = torch.float8_e4m3fn
    doctor = watched(tensors, optimizer)
    for _ in range(2):
        step(optimizer)
        assert last(doctor, "moment1_rms") == pytest.approx([0.125, np.nan, 0.125], nan_ok=True)
        assert last(doctor, "grad_rms") == pytest.approx([1, 1, 1])
    assert told(doctor, "doctor-failed") == []


class OneStep(AdamW):
    """Has a step of its own, which sets counts as `counts` says."""

    counts: tuple[Any, ...] = (torch.ones(()),)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Moves weights by little."""
        for k, parameter in enumerate(self.param_groups[0]["params"]):
            self.state[parameter] = {
                "step": self.counts[k % len(self.counts)],
                "exp_avg": torch.full_like(parameter, 0.125),
                "exp_avg_sq": torch.full_like(parameter, 0.25),
            }
            parameter.sub_(1e-3)


@pytest.mark.parametrize("kind", [SGD, OneStep], ids=["no states", "states"])
@pytest.mark.parametrize("filled", [False, True], ids=["small", "fills a block"])
def test_gradients_of_several_dtypes_in_one_unit_keep_their_values(
    filled: bool, kind: type[SGD | AdamW]
) -> None:
    tensors = weights(*[(64, 64)] * (64 if filled else 3))
    for tensor in tensors:
        tensor.grad_dtype = None  # type: ignore[attr-defined]
    doctor = watched(tensors, optimizer := kind(tensors, lr=0.1))
    step(optimizer, lambda p: torch.ones_like(p).half() if p is tensors[0] else p * 0 + 1e-9)
    assert last(doctor, "grad_rms") == pytest.approx([1.0] + [1e-9] * (len(tensors) - 1), rel=1e-3)
    assert told(doctor, "doctor-failed") == []


def test_quantized_and_plain_states_in_one_unit_are_read_as_what_they_are() -> None:
    bitsandbytes = pytest.importorskip("bitsandbytes")
    tensors = weights((128, 64), (128, 64))
    manager = bitsandbytes.optim.GlobalOptimManager.get_instance()
    manager.initialize()
    manager.register_parameters(tensors)
    manager.override_config(tensors[0], "optim_bits", 32)
    try:
        doctor = watched(tensors, optimizer := bitsandbytes.optim.Adam8bit(tensors))
        for _ in range(3):
            step(optimizer)
            m, v = last(doctor, "moment1_rms"), last(doctor, "moment2_rms")
            assert m[1] == pytest.approx(m[0], rel=0.02)
            assert v[1] == pytest.approx(v[0], rel=0.02)
            assert last(doctor, "update_realized") == pytest.approx([1, 1], abs=0.02)
    finally:
        manager.initialize()
    assert fails(doctor) == []


def test_what_a_rule_keeps_of_states_that_just_became_unlike_is_not_known() -> None:
    bitsandbytes = pytest.importorskip("bitsandbytes")
    tensors = weights((128, 64), (128, 64))
    doctor = watched(tensors, optimizer := bitsandbytes.optim.Adam8bit(tensors))
    for _ in range(3):
        step(optimizer, torch.randn_like)
    state = optimizer.state[tensors[0]]
    for key in ("state1", "state2"):
        state[key] = blockwise(key)(state, {})
    step(optimizer, torch.randn_like)
    assert last(doctor, "update_realized") is None
    step(optimizer, torch.randn_like)
    assert last(doctor, "moment1_rms")[0] == pytest.approx(last(doctor, "moment1_rms")[1], rel=0.2)
    assert told(doctor, "doctor-failed") == []


def test_one_layout_is_taken_for_all_only_where_states_are_held_alike() -> None:
    def plain(dtype: torch.dtype = torch.float32) -> dict[str, Any]:
        mean = torch.ones(4, dtype=dtype)
        return {"step": 1, "exp_avg": mean, "exp_avg_sq": mean}

    def alike(*states: dict[str, Any]) -> bool:
        return held_alike(states, layout(states[0], {}))

    assert alike(plain(), plain())
    assert not alike(plain(), plain(torch.float16))
    assert not alike(plain(), {**plain(), "more": 1})
    assert not alike(plain(), {"step": 1, "exp_avg": torch.ones(4), "other": 1})
    assert not alike(plain(), {**plain(), "exp_avg": None})
    codes = {"state1": torch.ones(4, dtype=torch.uint8), "state2": torch.ones(4)}
    floats = {"state1": torch.ones(4), "state2": torch.ones(4)}
    assert not held_alike([floats, codes], Layout(blockwise_moment(floats, "state1")))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bool, torch.float8_e4m3fn])
def test_a_parameter_without_arithmetic_is_not_measured_and_all_others_are(
    dtype: torch.dtype,
) -> None:
    tensors = weights((8, 8), (64, 64), (8, 8))
    tensors[1] = nn.Parameter(tensors[1].detach().to(dtype), requires_grad=False)
    doctor = watched(tensors, optimizer := AdamW(tensors))
    step(optimizer)
    assert np.isfinite(last(doctor, "param_rms")).tolist() == [True, False, True]
    assert np.isfinite(last(doctor, "update_realized")).tolist() == [True, False, True]
    assert fails(doctor) == []


@pytest.mark.parametrize("trained", [True, False])
def test_a_parameter_that_got_another_shape_is_measured_in_that(trained: bool) -> None:
    tensors = weights((4, 4), (64, 64))
    tensors[1].requires_grad_(trained)
    doctor = watched(tensors, optimizer := SGD(tensors, lr=0.0))
    step(optimizer)
    tensors[1].grad = None
    tensors[1].data = torch.full((16, 16), 2.0)
    step(optimizer)
    shapes = [info.shape for info in doctor.runs[0].trace.tensors]
    assert last(doctor, "param_rms")[shapes.index((16, 16))] == pytest.approx(2)
    assert fails(doctor) == []


def test_another_shape_is_seen_before_any_update_within_a_turn_and_before_each_sample() -> None:
    tensors = weights(*[(4, 4)] * 6)
    optimizer = AdamW(tensors)
    probe, model = probe_of(optimizer), nn.ParameterList(tensors)
    changes = Changes(model, optimizer, probe, track(model, optimizer, probe))
    assert not any(changes.seen(optimizer) for _ in range(4))
    assert not changes.seen_closely(optimizer)
    tensors[5].data = torch.ones(2, 2)
    assert any(changes.seen(optimizer) for _ in range(2))
    assert changes.seen_closely(optimizer)


@pytest.mark.parametrize(
    ("counts", "are_read"),
    [
        ((torch.ones(()),), True),
        ((torch.ones(1), torch.ones(())), True),
        ((torch.zeros(()),), False),
        ((0,), False),
        ((torch.ones(2),), False),
        ((torch.ones(2), torch.ones(())), False),
        ((1, torch.ones(())), False),
    ],
    ids=[
        "plain",
        "of two shapes",
        "zero",
        "number zero",
        "two numbers",
        "some two",
        "of two types",
    ],
)
def test_a_count_that_cannot_be_read_leaves_out_the_rates_alone(
    counts: tuple[Any, ...], are_read: bool
) -> None:
    tensors = weights((8, 8), (8, 8))
    optimizer = OneStep(tensors)
    optimizer.counts = counts
    doctor = watched(tensors, optimizer)
    step(optimizer)
    assert last(doctor, "moment2_rms") == pytest.approx([0.25, 0.25])
    assert (last(doctor, "effective_lr") is not None) == are_read
    assert told(doctor, "doctor-failed") == []
    assert not any("cannot be read" in text for text in told(doctor, "gap"))


def test_a_group_without_betas_leaves_out_the_rates_and_says_so_once() -> None:
    tensors = weights((8, 8), (64, 64))
    optimizer = OneStep(tensors)
    del optimizer.param_groups[0]["betas"]
    doctor = watched(tensors, optimizer)
    for _ in range(3):
        step(optimizer)
    assert last(doctor, "moment2_rms") == pytest.approx([0.25, 0.25])
    assert last(doctor, "effective_lr") is None
    assert told(doctor, "doctor-failed") == []
    assert len([text for text in told(doctor, "gap") if "KeyError: 'betas'" in text]) == 1


def test_an_epsilon_beyond_all_numbers_ends_no_sample() -> None:
    tensors = weights((8, 8))
    doctor = watched(tensors, optimizer := AdamW(tensors, eps=1e200))
    step(optimizer)
    assert last(doctor, "moment2_below_eps") == pytest.approx([1])
    assert told(doctor, "doctor-failed") == []


def test_what_is_left_out_is_counted_and_memory_that_ran_out_passes() -> None:
    gaps = Gaps()
    for _ in range(2):
        with gaps:
            raise ZeroDivisionError("so")
    assert gaps.news() == ("ZeroDivisionError: so",)
    assert gaps.news() == ()
    assert gaps.counted["ZeroDivisionError: so"] == 2
    with pytest.raises(MemoryError), gaps:
        raise MemoryError
    with pytest.raises(KeyboardInterrupt), gaps:
        raise KeyboardInterrupt


def test_a_state_that_the_first_update_makes_in_another_dtype_than_foretold_is_no_change() -> None:
    bitsandbytes = pytest.importorskip("bitsandbytes")
    (weight,) = weights((64, 64))
    optimizer = bitsandbytes.optim.AdamW8bit([weight], lr=1e-3)
    doctor = watched([weight], optimizer)
    for _ in range(3):
        step(optimizer)
    trace = doctor.runs[0].trace
    doctor.close()
    assert [event.kind for event in trace.events] == ["start"]
    assert trace.facts["moment2_form"] == "quantized"
