"""Every channel of a sample against a slow and obvious twin in numpy float64."""

import math
from collections.abc import Iterable

import numpy as np
import pytest
import torch
from small_training import Make, bits, net, seed, train
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

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


def flat(tensor: torch.Tensor) -> list[float]:
    return tensor.detach().double().reshape(-1).tolist()


def finite(values: Iterable[float]) -> list[float]:
    return [x for x in values if math.isfinite(x)]


def rms(values: Iterable[float]) -> float:
    kept = finite(values)
    return math.sqrt(sum(x * x for x in kept) / len(kept)) if kept else math.nan


def twin(
    old: torch.Tensor,
    parameter: nn.Parameter,
    optimizer: Optimizer,
    group: int,
    v_before: torch.Tensor | None = None,
) -> dict[str, float]:
    """What a sample says of one small tensor, element by element."""
    settings, state = optimizer.param_groups[group], optimizer.state.get(parameter, {})
    before, after, gradient = flat(old), flat(parameter), flat(parameter.grad)
    moves = [b - a for a, b in zip(before, after, strict=True)]
    pulled = [(b, a) for b, a, g in zip(before, after, gradient, strict=True) if g != 0]
    said = {
        "grad_rms": rms(gradient),
        "grad_absmax": max((abs(g) for g in finite(gradient)), default=math.nan),
        "grad_nonfinite": len(gradient) - len(finite(gradient)),
        "param_rms": rms(after),
        "update_rms": rms(moves),
        "update_nonfinite": len(moves) - len(finite(moves)),
        "tensor_lr": float(settings["lr"]),
    }
    said["update_ratio"] = said["update_rms"] / said["param_rms"]
    said["update_to_lr"] = said["update_rms"] / said["tensor_lr"]
    said["update_unchanged"] = sum(a == b for a, b in pulled) / len(pulled)
    if "exp_avg_sq" not in state:
        said["effective_lr"] = said["update_rms"] / said["grad_rms"]
        pull = [g + settings["weight_decay"] * b for g, b in zip(gradient, before, strict=True)]
        buffer = state.get("momentum_buffer")
        asked = [settings["lr"] * d for d in (pull if buffer is None else flat(buffer))]
        if buffer is not None:
            said["moment1_rms"] = rms(buffer_values := flat(buffer))
            assert buffer_values
        return said | {"update_realized": realized(moves, asked)}
    first, second = flat(state["exp_avg"]), flat(state["exp_avg_sq"])
    dividing = flat(state.get("max_exp_avg_sq", state["exp_avg_sq"]))
    (beta1, beta2), t = settings["betas"], float(state["step"])
    lr, eps = float(settings["lr"]), settings["eps"]
    decay = settings["weight_decay"] if settings["decoupled_weight_decay"] else 0
    c1, c2 = 1 - beta1**t, 1 - beta2**t
    rates = [ratio(lr * math.sqrt(c2), c1 * (math.sqrt(v) + eps * math.sqrt(c2))) for v in dividing]
    asked = [
        lr * decay * w + lr * ratio(m / c1, math.sqrt(v / c2) + eps)
        for w, m, v in zip(before, first, dividing, strict=True)
    ]
    limits = torch.finfo(parameter.dtype)
    ratios = [ratio(abs(m / c1), math.sqrt(v / c2)) for m, v in zip(first, second, strict=True)]
    decayed = flat(old * (1 - lr * decay))
    said |= {
        "moment1_rms": rms(first),
        "moment2_rms": rms(second),
        "moment2_min": min(finite(second), default=math.nan),
        "moment2_max": max(finite(second), default=math.nan),
        "moment2_zero": share(v == 0 and m != 0 for m, v in zip(first, second, strict=True)),
        "moment2_subnormal": share(0 < v < limits.tiny for v in second),
        "moment2_saturated": share(not v <= limits.max / 2 for v in second),
        "moment2_below_eps": share(math.sqrt(v / c2) < eps for v in dividing),
        "moment_ratio": mean(x for x, v in zip(ratios, second, strict=True) if v > 0),
        "effective_lr": mean(rates),
        "update_realized": realized(moves, asked),
    }
    if decay and not (settings["fused"] and limits.bits < 32):
        pairs = zip(decayed, before, strict=True)
        said["decay_unchanged"] = share(a == b for a, b in pairs if b != 0)
    if v_before is not None and limits.bits < 32:
        pairs = zip(flat(v_before), second, gradient, strict=True)
        said["moment2_unchanged"] = share(a == b for a, b, g in pairs if g != 0)
    return said


def ratio(above: float, below: float) -> float:
    return above / below if below else math.copysign(math.inf, above) if above else math.nan


def realized(moves: Iterable[float], asked: Iterable[float]) -> float:
    """Over the elements of which both are finite."""
    pairs = [(a, b) for a, b in zip(moves, asked, strict=True) if math.isfinite(a + b)]
    return ratio(rms(a for a, _ in pairs), rms(b for _, b in pairs)) if pairs else math.nan


def mean(values: Iterable[float]) -> float:
    kept = finite(values)
    return sum(kept) / len(kept) if kept else math.nan


def share(hits: Iterable[bool]) -> float:
    kept = list(hits)
    return sum(kept) / len(kept) if kept else math.nan


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
        old = {name: p.detach().clone() for name, p in model.named_parameters()}
        held = {n: optimizer.state[p].get("exp_avg_sq") for n, p in model.named_parameters()}
        v_before = {n: None if v is None else v.clone() for n, v in held.items()}
        norm, sample = one_step(collector, names, optimizer)
    wanted = [
        twin(old[name], p, optimizer, int(i >= 3), v_before[name])
        for i, (name, p) in enumerate(model.named_parameters())
    ]
    squares = sum(g * g for p in model.parameters() for g in finite(flat(p.grad)))
    assert norm == pytest.approx(math.sqrt(squares), rel=1e-6)
    for name, values in zip(names, wanted, strict=True):
        for channel in TENSOR_CHANNELS:
            expected = values.get(channel, math.nan)
            expected = expected if math.isfinite(expected) else math.nan
            assert sample[channel][name] == pytest.approx(expected, rel=2e-6, nan_ok=True), (
                channel,
                name,
            )


def test_the_twin_covers_every_channel() -> None:
    model = net()
    optimizer = KINDS["AdamW"](list(model.parameters()))
    train(model, optimizer, 1)
    parameter = next(model.parameters())
    said = twin(parameter, parameter, optimizer, 0, parameter)
    assert said.keys() | {"moment2_unchanged"} == set(TENSOR_CHANNELS) - {
        "grad_rms_raw",
        "grad_nonfinite_raw",
    }


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
        (unit,) = collector._units
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
