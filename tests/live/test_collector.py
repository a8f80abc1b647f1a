"""What a sample says of small trainings, and when it says nothing."""

import math

import numpy as np
import pytest
import torch
from small_training import Make, bits, net, seed, train
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from twin import Said, Watched, finite, flat, twin

from optdoctor.live.collector import TENSOR_CHANNELS, Collector
from optdoctor.live.tensors import track
from optdoctor.optimizers import probe_of
from optdoctor.trace import SAMPLED

Sample = dict[str, dict[str, float]]
"""{channel: {tensor: value}}, NaN = not measured."""


def collector_of(model: nn.Module, optimizer: Optimizer) -> tuple[Collector, list[str]]:
    probe = probe_of(optimizer)
    tracked = track(model, optimizer, probe)
    return Collector(optimizer, probe, tracked), [info.name for info in tracked.tensors]


def one_step(collector: Collector, names: list[str], optimizer: Optimizer) -> tuple[float, Sample]:
    """(the norm, the sample) of one step with the gradients that lie there."""
    collector.before()
    optimizer.step()
    (reading,) = collector.after(1)
    values, tensors = reading.values, reading.tensors
    assert tensors.keys() <= set(TENSOR_CHANNELS)
    sample = {name: dict.fromkeys(names, math.nan) for name in TENSOR_CHANNELS}
    for name, row in tensors.items():
        assert row.dtype == np.float32
        sample[name] = dict(zip(names, row.tolist(), strict=True))
    return values.get("grad_norm_used", math.nan), sample


def of_one(
    weights: torch.Tensor, gradient: torch.Tensor, make: Make, steps: int = 1
) -> tuple[float, dict[str, float]]:
    """The last of some steps of a model that is a single tensor."""
    model = nn.Module()
    model.w = nn.Parameter(weights.clone())
    optimizer = make([model.w])
    collector, names = collector_of(model, optimizer)
    for _ in range(steps):
        model.w.grad = gradient.clone()
        norm, sample = one_step(collector, names, optimizer)
    return norm, {channel: values["w"] for channel, values in sample.items()}


KINDS: dict[str, Make] = {
    "AdamW": lambda ps: AdamW(ps, lr=3e-3),
    "AdamW fused": lambda ps: AdamW(ps, lr=3e-3, fused=True),
    "Adam amsgrad": lambda ps: Adam(ps, lr=0.1, betas=(0.5, 0.6), amsgrad=True),
    "SGD": lambda ps: SGD(ps, lr=0.1, momentum=0.9, weight_decay=0.1),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_every_channel_equals_its_twin(kind: str, dtype: torch.dtype) -> None:
    model = net(dtype)
    names = list(dict(model.named_parameters()))
    optimizer = KINDS[kind]([{"params": list(model.parameters())[:3], "lr": 0.05}])
    optimizer.add_param_group({"params": list(model.parameters())[3:]})
    collector, _ = collector_of(model, optimizer)
    with np.errstate(all="ignore"):
        train(model, optimizer, 4)
        watched = Watched(optimizer)
        norm, sample = one_step(collector, names, optimizer)
        arounds = watched.arounds()
        wanted = {name: twin(arounds[id(p)]) for name, p in model.named_parameters()}
    gradients = np.concatenate([flat(p.grad) for p in model.parameters()])
    assert norm == pytest.approx(np.sqrt(np.sum(finite(gradients) ** 2)), rel=1e-6)
    for name, values in wanted.items():
        for channel in TENSOR_CHANNELS:
            expected = values.get(channel, Said(math.nan)).value
            assert sample[channel][name] == pytest.approx(expected, rel=2e-6, nan_ok=True), (
                channel,
                name,
            )


def test_the_twin_covers_every_channel() -> None:
    model = net(torch.bfloat16)
    optimizer = KINDS["AdamW"](list(model.parameters()))
    train(model, optimizer, 1)
    watched = Watched(optimizer)
    train(model, optimizer, 1)
    said = twin(watched.arounds()[id(model.head.weight)])
    before_clipping = {"grad_rms_raw", "grad_nonfinite_raw"}
    assert said.keys() == set(TENSOR_CHANNELS) - before_clipping


@pytest.mark.parametrize(
    "make",
    [
        lambda ps: Adam(ps, lr=1e-2, eps=1e-3),
        lambda ps: Adam(ps, lr=1e-2, eps=1e-3, fused=True),
        lambda ps: Adam(ps, lr=1e-2, eps=1e-3, betas=(0.5, 0.6), amsgrad=True),
    ],
    ids=["Adam", "fused", "amsgrad"],
)
def test_the_effective_rate_is_what_adam_really_moved_per_unit_of_its_mean(make: Make) -> None:
    seed()
    model = nn.Module()
    model.w = nn.Parameter(torch.randn(50, dtype=torch.float64))
    optimizer = make([model.w])
    collector, names = collector_of(model, optimizer)
    for step in range(6):
        before = model.w.detach().clone()
        model.w.grad = torch.randn(50, dtype=torch.float64) / (1 + step**2)
        _, sample = one_step(collector, names, optimizer)
        moved = (before - model.w.detach()) / optimizer.state[model.w]["exp_avg"]
        assert sample["effective_lr"]["w"] == pytest.approx(moved.mean().item(), rel=0.01)


def test_the_norm_used_is_the_one_after_clipping() -> None:
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    collector, names = collector_of(model, optimizer)
    train(model, optimizer, 1)
    raw = nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    norm, _ = one_step(collector, names, optimizer)
    clipped = torch.cat([p.grad.reshape(-1) for p in model.parameters()]).norm()
    assert norm == pytest.approx(clipped.item(), rel=1e-6)
    assert norm < 0.011 < raw


def test_what_is_not_measured_is_nan() -> None:
    model = net()
    model.idle, model.frozen = nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False)
    model.outside = nn.Linear(2, 2)
    inside = [p for name, p in model.named_parameters() if not name.startswith("outside")]
    optimizer = AdamW(inside, lr=0.1)
    collector, names = collector_of(model, optimizer)
    model.outside.weight.grad = torch.ones(2, 2)
    train(model, optimizer, 1)
    _, sample = one_step(collector, names, optimizer)
    measured = {
        name: {c for c in TENSOR_CHANNELS if not math.isnan(sample[c][name])} for name in names
    }
    others = {"grad_rms_raw", "grad_nonfinite_raw", "moment2_unchanged"}
    assert measured["head.weight"] == set(TENSOR_CHANNELS) - others
    assert measured["outside.weight"] == set()
    assert measured["frozen.weight"] == {"param_rms", "tensor_lr", "update_rms"}
    assert sample["update_rms"]["frozen.weight"] == 0
    assert measured["idle.weight"] == {
        "param_rms", "tensor_lr", "update_rms", "update_nonfinite", "update_ratio", "update_to_lr"
    }  # fmt: skip


def test_a_channel_that_nothing_could_measure_is_not_in_the_sample() -> None:
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    collector, _ = collector_of(model, optimizer)
    train(model, optimizer, 1)
    collector.before()
    (reading,) = collector.after(2)
    assert "moment2_rms" not in reading.tensors


@pytest.mark.parametrize(("size", "given"), [(2e-6, True), (5e-7, False)])
def test_the_update_ratio_is_not_given_for_weights_as_good_as_zero(
    size: float, given: bool
) -> None:
    _, said = of_one(torch.full((4,), size), torch.ones(4), lambda ps: SGD(ps, lr=1e-8))
    assert math.isnan(said["update_ratio"]) is not given


@pytest.mark.parametrize(("rate", "share"), [(1e-12, 1.0), (0.0, math.nan), (1.0, 0.0)])
def test_unchanged_elements_are_told_unless_the_rate_is_zero(rate: float, share: float) -> None:
    gradient = torch.tensor([1.0, 1.0, 0.0])  # the last has no reason to move
    _, said = of_one(torch.ones(3), gradient, lambda ps: SGD(ps, lr=rate))
    assert said["update_unchanged"] == pytest.approx(share, nan_ok=True)


def test_elements_that_are_not_finite_are_counted_and_left_out_of_statistics() -> None:
    gradient = torch.tensor([3.0, -4.0, math.nan, math.inf, -math.inf])
    norm, said = of_one(torch.ones(5), gradient, lambda ps: SGD(ps, lr=1.0))
    assert said["grad_nonfinite"] == said["update_nonfinite"] == 3
    assert said["grad_absmax"] == 4
    assert said["grad_rms"] == said["update_rms"] == pytest.approx(math.sqrt(12.5))
    assert said["param_rms"] == pytest.approx(math.sqrt((4 + 25) / 2))
    assert norm == pytest.approx(5)


def test_a_gradient_without_a_finite_element_has_no_size() -> None:
    norm, said = of_one(torch.ones(3), torch.full((3,), math.nan), lambda ps: SGD(ps, lr=1.0))
    assert said["grad_nonfinite"] == 3
    for nothing in (norm, said["grad_rms"], said["grad_absmax"], said["update_rms"]):
        assert math.isnan(nothing), "0 would say that the gradient vanished"


def test_norms_of_float16_do_not_overflow() -> None:
    gradient = torch.full((300,), 6e4, dtype=torch.float16)
    assert torch.isinf(gradient.norm()), "the naive way overflows"
    weights = torch.ones(300, dtype=torch.float16)
    norm, said = of_one(weights, gradient, lambda ps: SGD(ps, lr=1e-8))
    assert norm == pytest.approx(float(gradient[0]) * math.sqrt(300))
    assert said["grad_absmax"] == float(gradient[0])
    assert said["grad_rms"] == pytest.approx(float(gradient[0]), rel=1e-6)


def test_moments_that_overflowed_leave_the_finite_ones_as_extremes() -> None:
    gradient = torch.tensor([300.0, 10.0, 3e4], dtype=torch.float16)
    make: Make = lambda ps: AdamW(ps, lr=1e-3, eps=1e-4, fused=True)  # noqa: E731
    _, said = of_one(torch.ones(3, dtype=torch.float16), gradient, make)
    assert said["moment2_max"] == pytest.approx(90, rel=1e-2)
    assert said["moment2_min"] == pytest.approx(0.1, rel=1e-2)


def test_a_fused_float16_step_underflows_in_its_state_and_not_in_its_update() -> None:
    # (1 - 0.999) g^2 rounds to 0 below g = 5.5e-3; g = 0 counts as no fault.
    gradient = torch.tensor([0.01, 0.0077, 0.005, 0.001, 0.0], dtype=torch.float16)
    weights = torch.zeros(5, dtype=torch.float16)
    _, said = of_one(weights, gradient, lambda ps: AdamW(ps, lr=1e-3, fused=True))
    assert said["moment2_zero"] == pytest.approx(2 / 5)
    assert said["moment2_min"] == 0
    assert said["moment2_max"] == pytest.approx(1e-7, rel=0.3)
    assert said["update_nonfinite"] == 0
    assert said["update_rms"] == pytest.approx(1e-3 * math.sqrt(4 / 5), rel=0.01)


def test_an_unfused_float16_step_breaks_the_weights_at_once() -> None:
    gradient = torch.tensor([0.01, 0.005, 0.0], dtype=torch.float16)
    weights = torch.zeros(3, dtype=torch.float16)
    _, said = of_one(weights, gradient, lambda ps: AdamW(ps, lr=1e-3, foreach=False))
    assert said["grad_nonfinite"] == 0
    assert said["update_nonfinite"] == 2


def test_zeroed_moments_of_a_large_tensor_are_counted_in_full() -> None:
    size = 10 * SAMPLED
    gradient = torch.ones(size, dtype=torch.float16)
    gradient[::7] = 1e-3  # their squares vanish in float16
    exact = float((gradient < 1).sum()) / size
    _, said = of_one(torch.zeros(size).half(), gradient, lambda ps: AdamW(ps, lr=1e-3, fused=True))
    assert said["moment2_min"] == 0
    assert said["moment2_zero"] == pytest.approx(exact, rel=1e-6)


def test_the_same_tensor_gives_the_same_elements_and_no_generator_moves() -> None:
    def positions(name: str) -> list[int]:
        model = nn.Module()
        model.register_parameter(name, nn.Parameter(torch.zeros(3 * SAMPLED)))
        collector, _ = collector_of(model, SGD(model.parameters(), lr=1.0))
        (unit,) = collector._watched.units
        assert unit.index is not None
        return unit.index[0].tolist()

    seed(1)
    before = bits(torch.get_rng_state())
    first = positions("w")
    seed(2)
    torch.rand(5)
    assert positions("w") == first
    assert positions("other") != first
    assert len(first) == SAMPLED
    seed(1)
    assert bits(torch.get_rng_state()) == before
    positions("w")
    assert bits(torch.get_rng_state()) == before
