"""What 16 bits do to moments and weights, in numbers that were first measured by hand.

Each is read from the doctor's channels in a real run of `torch.optim` and compared with the number
measured without the doctor: within 5 %, shares within 2 points. Where a number depends on a setting
(the weights' size, the place of the second moment between two powers of two) the test says which.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import SGD, AdamW

import optdoctor
from optdoctor.trace import Trace

HALF, BRAIN, SINGLE = torch.float16, torch.bfloat16, torch.float32
KINDS: Mapping[str, dict[str, bool]] = {
    "loop": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}
"""How AdamW goes over its tensors: fused in float32, the others in the precision of the weights."""
UNFUSED = ("loop", "foreach")
SIZE = 4096
"""As many elements as shares are taken from: they are counted in full here."""

Gradient = Callable[[int, Tensor], Tensor]
"""(updates made, weights) -> gradient."""


def near(number: float) -> Any:
    return pytest.approx(number, rel=0.05)


def share(number: float) -> Any:
    return pytest.approx(number, abs=0.02)


def watched(
    weights: Tensor, make: Callable[..., Any], gradient: Gradient, steps: int = 1, interval: int = 1
) -> Trace:
    """The trace of updates of one tensor, every `interval`-th of them sampled, from the first."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Module()
    model.w = nn.Parameter(weights.clone())
    optimizer = make([model.w])
    with optdoctor.watch(model, optimizer, out=None, sinks=(), interval=interval) as doctor:
        for step in range(steps):
            model.w.grad = gradient(step, model.w.detach()).to(weights.dtype)
            optimizer.step()
    trace = doctor.runs[0].trace
    assert [e.text for e in trace.events if e.kind == "doctor-failed"] == []
    return trace


def rows(trace: Trace, channel: str) -> dict[int, float]:
    """{step: value}."""
    series = trace.series[channel]
    return dict(zip(series.steps.tolist(), series.values[:, 0].tolist(), strict=True))


def last(trace: Trace, channel: str) -> float:
    """NaN where it was not measured at the last sample."""
    if channel not in trace.series:
        return float("nan")
    return rows(trace, channel).get(trace.steps[1], float("nan"))


def adam(lr: float = 1e-2, beta2: float = 0.999, **options: Any) -> Callable[..., AdamW]:
    options = {"weight_decay": 0.0, **options}
    return lambda p: AdamW(p, lr=lr, betas=(0.9, beta2), **options)


def constant(size: float) -> Gradient:
    return lambda step, w: torch.full_like(w, size)


def filled(number: float, dtype: torch.dtype) -> Tensor:
    return torch.full((SIZE,), number, dtype=dtype)


# Case M3: the second moment of a gradient that shrinks


@pytest.mark.parametrize(
    ("dtype", "kind", "before", "after"),
    [
        (SINGLE, "foreach", 0.182, 0.0246),
        (SINGLE, "fused", 0.182, 0.0246),
        (BRAIN, "foreach", 0.196, 0.196),
        (BRAIN, "fused", 0.184, 0.184),
    ],
)
def test_a_bfloat16_second_moment_stays_where_a_thousandfold_gradient_left_it(
    dtype, kind, before, after
):
    def gradient(step: int, w: Tensor) -> Tensor:
        return torch.randn(w.shape) * (1 if step < 201 else 1e-3)

    trace = watched(filled(0, dtype), adam(1e-3, **KINDS[kind]), gradient, 2201, interval=200)
    found, rates = rows(trace, "moment2_rms"), rows(trace, "effective_lr")
    assert found[201] == near(before)
    assert found[2201] == near(after)
    if dtype is BRAIN:
        assert last(trace, "moment2_unchanged") == 1
        # (0.196 / 0.0246)^0.5 times the rate of the twin, at the same bias correction
        assert rates[2201] == near(1e-3 * ((1 - 0.999**2201) / after) ** 0.5)
    else:
        assert "moment2_unchanged" not in trace.series


# float16: underflow and overflow at the first update


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("size", "stored"), [(0.0076, 5.96e-8), (0.0055, 5.96e-8), (0.0054, 0)])
def test_a_float16_second_moment_is_zero_below_a_gradient_of_0_0055(kind, size, stored):
    trace = watched(filled(0, HALF), adam(**KINDS[kind]), constant(size))
    assert last(trace, "moment2_min") == last(trace, "moment2_max") == near(stored)
    assert last(trace, "moment2_zero") == (stored == 0)
    assert last(trace, "moment2_subnormal") == (stored > 0)
    assert last(trace, "moment1_rms") == near(0.1 * size)


@pytest.mark.parametrize("kind", UNFUSED)
@pytest.mark.parametrize("size", [0.005, 0.0])
def test_a_float16_second_moment_of_zero_breaks_the_weights(kind, size):
    """m / 0 is infinite, and 0 / 0, of an element without a gradient, NaN: epsilon is 0 too."""
    trace = watched(filled(0, HALF), adam(**KINDS[kind]), constant(size))
    assert last(trace, "update_nonfinite") == SIZE
    assert np.isnan(last(trace, "update_rms"))


def test_a_fused_float16_update_is_whole_and_its_second_moment_lost():
    given = adam(**KINDS["fused"])
    trace = watched(filled(0, HALF), given, constant(0.005), 2)
    assert rows(trace, "update_rms")[1] == near(1e-2)
    assert rows(trace, "update_nonfinite") == {1: 0, 2: 0}
    assert rows(trace, "moment2_zero") == {1: 1, 2: 1}
    # v starts again from 0: g^2 / 1000 corrected by 2 updates instead of 1
    assert rows(trace, "update_rms")[2] == near(1e-2 * 2**0.5)
    assert last(watched(filled(0, HALF), given, constant(0.0)), "update_rms") == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_float16_second_moment_overflows_and_freezes_its_weights(kind):
    """Fused, the update in which it overflows is whole: it was divided by what was not rounded."""
    whole, frozen = (
        watched(filled(0, HALF), adam(**KINDS[kind]), constant(size), 2) for size in (300, 30_000)
    )
    assert rows(whole, "moment2_max")[1] == near(90)
    assert rows(whole, "moment2_saturated") == {1: 0, 2: 0}
    assert rows(whole, "update_rms") == {1: near(1e-2), 2: near(1e-2)}
    assert rows(frozen, "moment2_saturated") == {1: 1, 2: 1}
    assert rows(frozen, "update_rms") == {1: near(1e-2) if kind == "fused" else 0, 2: 0}
    assert rows(frozen, "update_unchanged") == {1: kind != "fused", 2: 1}
    assert rows(frozen, "update_nonfinite") == {1: 0, 2: 0}


# Tiny gradients in float32 and bfloat16


@pytest.mark.parametrize(
    ("dtype", "size", "zero", "subnormal"),
    [
        (BRAIN, 1e-16, 0, 0),
        (BRAIN, 1e-18, 0, 1),
        (BRAIN, 2.3e-19, 0, 1),  # (1 - beta2) g^2 against half of 9.2e-41: g = 2.1e-19
        (BRAIN, 2.0e-19, 1, 0),
        (BRAIN, 1e-20, 1, 0),
        (SINGLE, 4e-18, 0, 0),  # against 1.18e-38: g = 3.4e-18
        (SINGLE, 3e-18, 0, 1),
        (SINGLE, 1e-19, 0, 1),
        (SINGLE, 1e-21, 0, 1),
        (SINGLE, 1e-22, 1, 0),
    ],
)
def test_a_second_moment_is_zero_only_for_gradients_beyond_any_use(dtype, size, zero, subnormal):
    trace = watched(filled(0, dtype), adam(), constant(size))
    assert last(trace, "moment2_zero") == zero
    assert last(trace, "moment2_subnormal") == subnormal
    assert last(trace, "grad_rms") == near(size)


@pytest.mark.parametrize(
    ("weight", "dtype", "size", "moved"),
    [
        (0.0, SINGLE, 1e-6, 1e-2 / 1.01),
        (0.0, SINGLE, 1e-8, 5e-3),
        (0.0, BRAIN, 1e-8, 5e-3),
        (1.0, BRAIN, 1e-8, 3.9e-3),  # 5e-3 asked for, and 2^-8 to the next number
        (0.0, SINGLE, 1e-12, 1e-6),
        (1.0, BRAIN, 1e-12, 0.0),
    ],
)
def test_epsilon_swallows_the_update_of_a_tiny_gradient(weight, dtype, size, moved):
    trace = watched(filled(weight, dtype), adam(), constant(size))
    asked = 1e-2 * size / (size + 1e-8)
    assert last(trace, "update_rms") == near(moved)
    assert last(trace, "effective_lr") == near(
        1e-2 / (0.1 * (size + 1e-8))
    )  # it multiplies m, 0.1 g
    assert last(trace, "update_realized") == near(moved / asked)
    assert last(trace, "moment2_below_eps") == (size < 1e-8)


# 16-bit second moments: what does not move


def loaded(v: Tensor, beta2: float, ratio: float) -> Trace:
    """One update by a gradient of sqrt(ratio * v), after a resume with that second moment."""

    def make(parameters: list[nn.Parameter]) -> AdamW:
        optimizer = adam(beta2=beta2, foreach=False)(parameters)
        optimizer.state[parameters[0]] = {
            "step": torch.tensor(1000.0),
            "exp_avg": torch.zeros_like(v),
            "exp_avg_sq": v.clone(),
        }
        return optimizer

    # A gradient of 2^-12 is none: its square is lost in v. One of 0 would not be counted.
    size = (ratio * v.float()).sqrt() if ratio else torch.full_like(v, 2**-12)
    return watched(torch.ones_like(v), make, lambda step, w: size)


def mantissas(dtype: torch.dtype) -> Tensor:
    """All numbers from 1 to 2."""
    count = round(1 / torch.finfo(dtype).eps)
    return (1 + torch.arange(count) / count).to(dtype)


@pytest.mark.parametrize(
    ("dtype", "beta2", "unchanged"),
    [
        (BRAIN, 0.999, 1.0),
        (BRAIN, 0.998, 0.95),
        (BRAIN, 0.995, 0.0),
        (BRAIN, 0.99, 0.0),
        (HALF, 0.9999, 1.0),
        (HALF, 0.999, 0.0),
    ],
)
def test_decay_of_a_16_bit_second_moment_is_lost_for_beta2_near_1(dtype, beta2, unchanged):
    trace = loaded(mantissas(dtype), beta2, ratio=0)
    assert last(trace, "moment2_unchanged") == share(unchanged)


@pytest.mark.parametrize(("ratio", "unchanged"), [(1, 1.0), (2, 0.95), (3, 0.305), (4, 0.0)])
def test_a_bfloat16_second_moment_grows_only_for_squares_several_times_as_large(ratio, unchanged):
    trace = loaded(mantissas(BRAIN), 0.999, ratio)
    assert last(trace, "moment2_unchanged") == share(unchanged)


@pytest.mark.parametrize(
    ("dtype", "kind", "beta2", "level"),
    [
        (SINGLE, "loop", 0.999, 0.95),
        (BRAIN, "loop", 0.999, 0.5),
        (BRAIN, "fused", 0.999, 0.25),
        (BRAIN, "loop", 0.99, 0.98),
        (BRAIN, "fused", 0.99, 0.80),
        (BRAIN, "loop", 0.95, 0.98),
        (BRAIN, "fused", 0.95, 0.96),
    ],
)
def test_a_bfloat16_second_moment_of_a_gradient_of_1_freezes_below_1(dtype, kind, beta2, level):
    given = adam(1e-3, beta2, **KINDS[kind])
    trace = watched(filled(0, dtype), given, constant(1), 3001, interval=500)
    assert last(trace, "moment2_rms") == near(level)
    assert last(trace, "effective_lr") == near(1e-3 * ((1 - beta2**3001) / level) ** 0.5)
    if dtype is BRAIN:
        assert last(trace, "moment2_unchanged") == 1


@pytest.mark.parametrize(("dtype", "after"), [(SINGLE, 0.086), (BRAIN, 0.5)])
def test_a_frozen_second_moment_never_decays(dtype, after):
    """1000 updates of a gradient of 1, then 2000 of 0.01."""

    def gradient(step: int, w: Tensor) -> Tensor:
        return torch.full_like(w, 1 if step < 1001 else 0.01)

    trace = watched(filled(0, dtype), adam(1e-3, foreach=False), gradient, 3001, interval=500)
    assert last(trace, "moment2_rms") == near(after)
    if dtype is BRAIN:
        assert rows(trace, "moment2_rms")[1001] == near(after)


@pytest.mark.parametrize(
    ("dtype", "kind", "above", "later"),
    [(SINGLE, "loop", 1.0, 18), (BRAIN, "loop", 1.40, 109), (BRAIN, "fused", 1.14, 89)],
)
def test_a_bfloat16_second_moment_of_noise_is_too_high_and_stays_there(dtype, kind, above, later):
    """Against 1 - beta2^t, and after a tenfold smaller gradient against its square, 0.01."""

    def gradient(step: int, w: Tensor) -> Tensor:
        return torch.randn(w.shape) * (1 if step < 1501 else 0.1)

    given = adam(1e-3, **KINDS[kind])
    found = rows(watched(filled(0, dtype), given, gradient, 3001, interval=500), "moment2_rms")
    assert found[1501] / (1 - 0.999**1501) == near(above)
    assert found[3001] / 0.01 == near(later)


SCALES = torch.logspace(0, 1 - 1 / 8, 8, base=2).repeat(SIZE // 8)
"""Sizes of gradients that put v at eight places between powers of two: shares depend on it."""


@pytest.mark.parametrize(
    ("beta2", "loop", "fused"),
    [
        (0.999, 0.92, 0.93),
        (0.995, 0.26, 0.31),
        (0.99, 0.18, 0.145),
        (0.98, 0.067, 0.068),
        (0.95, 0.027, 0.027),
    ],
)
@pytest.mark.parametrize("kind", ["loop", "fused"])
def test_how_many_second_moments_of_noise_stand_still(beta2, loop, fused, kind):
    """After 1500 updates; in float32 none do. Single places gave 0.90, 0.20, 0.15, 0.07, 0.03."""
    given = []

    def gradient(step: int, w: Tensor) -> Tensor:
        given.append((torch.randn(w.shape) * SCALES).to(BRAIN))
        return given[-1]

    made = adam(1e-3, beta2, **KINDS[kind])
    trace = watched(filled(0, BRAIN), made, gradient, 1501, interval=500)
    expected = recursion(given, beta2, fused=kind == "fused")
    found = last(trace, "moment2_unchanged")
    assert found == share({"loop": loop, "fused": fused}[kind])
    assert found == pytest.approx(expected, rel=0.05)


def recursion(gradients: list[Tensor], beta2: float, *, fused: bool) -> float:
    """Share of v that the last of the gradients leaves as it is, by the rule written out in numpy.

    Without fusing, v is rounded after the decay and again after the sum.
    """
    v = np.zeros(SIZE, np.float32)
    for gradient in gradients:
        g, old = gradient.float().numpy(), v
        decayed = old * np.float32(beta2)
        v = to_bfloat16(
            (decayed if fused else to_bfloat16(decayed)) + np.float32(1 - beta2) * g * g
        )
    return float((v == old).mean())


def to_bfloat16(numbers: NDArray[np.float32]) -> NDArray[np.float32]:
    """The nearest numbers of 8 significant bits, ties to even."""
    bits = numbers.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


# 16-bit weights: updates and decay that are lost


def signs(weights: Tensor) -> Tensor:
    return torch.randint(0, 2, weights.shape, generator=torch.Generator().manual_seed(1)) * 2 - 1


def moved_by(weights: Tensor, change: Tensor) -> Trace:
    """One step of SGD at rate 1 that asks for this change."""
    return watched(weights, lambda p: SGD(p, lr=1.0), lambda step, w: change.to(w.dtype))


def normal(size: float, dtype: torch.dtype) -> Tensor:
    return (torch.randn(SIZE, generator=torch.Generator().manual_seed(0)) * size).to(dtype)


@pytest.mark.parametrize(
    ("dtype", "relative", "lost"),
    [
        (BRAIN, 0.004, 0.0),
        (BRAIN, 0.003, 0.38),
        (BRAIN, 0.002, 0.97),
        (BRAIN, 0.001, 1.0),
        (HALF, 0.001, 0.0),
        (HALF, 2e-4, 0.997),
    ],
)
def test_an_update_small_beside_each_weight_is_lost(dtype, relative, lost):
    weights = normal(1, dtype)
    trace = moved_by(weights, relative * weights * signs(weights))
    assert last(trace, "update_unchanged") == share(lost)


@pytest.mark.parametrize(
    ("relative", "lost", "along"),
    [
        (0.01, 0.002, 1.08),
        (0.005, 0.12, 1.0),
        (0.003, 0.43, 0.57),
        (0.001, 0.70, 0.37),
        (5e-4, 0.84, 0.19),
        (1e-4, 0.96, 0.06),
    ],
)
def test_an_update_of_one_size_is_lost_for_large_weights(relative, lost, along):
    """Of weights from N(0, 0.02): for those from N(0, 1) other shares hold, 0.62 for 0.001.

    `along` is how much of what was asked for was made. In root mean square it would look better,
    0.69 where it is 0.37: those that move, move too far, to the next number.
    """
    quantiles = (torch.arange(1024, dtype=torch.float64) + 0.5) / 1024
    weights = (0.02 * 2**0.5 * torch.erfinv(2 * quantiles - 1)).to(BRAIN)
    change = (relative * weights.float().square().mean().sqrt() * signs(weights)).to(BRAIN)
    trace = moved_by(weights, change)
    assert last(trace, "update_unchanged") == share(lost)
    assert last(trace, "update_realized") == pytest.approx(along, abs=0.02)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("rate", "first", "fifth"),
    [(1e-3, 0.0, 0.07), (3e-4, 0.0, 0.22), (1e-4, 0.12, 0.53), (1e-5, 0.85, 0.94)],
)
def test_small_rates_do_not_move_bfloat16_weights(kind, rate, first, fifth):
    """AdamW with random gradients on weights from N(0, 0.02)."""
    trace = watched(
        normal(0.02, BRAIN), adam(rate, **KINDS[kind]), lambda step, w: torch.randn(w.shape), 5
    )
    found = rows(trace, "update_unchanged")
    assert (found[1], found[5]) == (share(first), share(fifth))


@pytest.mark.parametrize("kind", UNFUSED)
@pytest.mark.parametrize(
    ("product", "lost"), [(1e-5, 1.0), (1e-4, 1.0), (1e-3, 1.0), (2e-3, 0.96), (1e-2, 0.0)]
)
def test_weight_decay_of_bfloat16_weights_is_lost(kind, product, lost):
    """`product` is rate times weight decay: weights are multiplied by 1 minus it, and rounded."""
    given = adam(1e-3, weight_decay=1e3 * product, **KINDS[kind])
    trace = watched(normal(0.02, BRAIN), given, lambda step, w: torch.randn(w.shape))
    assert last(trace, "decay_unchanged") == share(lost)


def test_a_fused_float16_step_divides_by_more_than_its_state_holds() -> None:
    """v of 1e-3 squared is nothing in float16, and was 1e-9 in the float32 of the step."""
    trace = watched(filled(1.0, HALF), adam(1e-2, **KINDS["fused"]), constant(1e-3))
    assert last(trace, "moment2_zero") == 1
    assert "update_realized" not in trace.series, "what it divided by is gone"
