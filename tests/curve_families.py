"""Healthy loss curves of many families, and the views of them that logs give: for curve rules."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Family = Callable[[int, np.random.Generator], Floats]


def _time(n: int) -> Floats:
    return np.arange(1, n + 1) / n


def _noisy(clean: Floats, rng: np.random.Generator, noise: float) -> Floats:
    return clean * np.exp(noise * rng.standard_normal(clean.size))


def _power_law(n: int, rng: np.random.Generator) -> Floats:
    return _noisy(2.0 + 3.0 * np.arange(1, n + 1) ** -0.4, rng, 0.03)


def _exponential(n: int, rng: np.random.Generator) -> Floats:
    return _noisy(0.4 + 2.0 * np.exp(-5 * _time(n)), rng, 0.05)


def _linear(n: int, rng: np.random.Generator) -> Floats:
    return _noisy(3.0 - 1.5 * _time(n), rng, 0.03)


def _two_phases(n: int, rng: np.random.Generator) -> Floats:
    return _noisy(1.5 + 2 * np.exp(-40 * _time(n)) + np.exp(-3 * _time(n)), rng, 0.03)


def _shelf_then_drop(n: int, rng: np.random.Generator) -> Floats:
    return _noisy(0.5 + 2.1 / (1 + np.exp(30 * (_time(n) - 0.6))), rng, 0.02)


def _epoch_staircase(n: int, rng: np.random.Generator) -> Floats:
    epoch = np.floor(_time(n) * 7.999)  # the loss falls at each second sight of the data
    return _noisy(3.0 * 0.85**epoch, rng, 0.02)


def _cosine(n: int, rng: np.random.Generator) -> Floats:
    fall = np.cumsum(np.arange(1, n + 1) ** -0.7 * (1 + np.cos(np.pi * _time(n))))
    return _noisy(4.5 - 2.2 * fall / fall[-1], rng, 0.02)


def _warmup_stable_decay(n: int, rng: np.random.Generator) -> Floats:
    late = np.maximum(_time(n) - 0.8, 0)
    return _noisy(2.4 + 2 * np.arange(1, n + 1) ** -0.35 - 1.2 * late, rng, 0.02)


def _step_schedule(n: int, rng: np.random.Generator) -> Floats:
    t = _time(n)
    late = 0.35 * (t > 1 / 3) + 0.12 * (t > 2 / 3)
    return _noisy(1.4 + np.exp(-12 * t) - late * (1 - np.exp(-40 * (t % (1 / 3)))), rng, 0.04)


def _mixup(n: int, rng: np.random.Generator) -> Floats:
    return (2.0 + 2.5 * np.arange(1, n + 1) ** -0.5) * (1 + 0.35 * rng.uniform(-1, 1, n))


def _small_batches(n: int, rng: np.random.Generator) -> Floats:
    return _noisy(1.0 + 2.0 * np.arange(1, n + 1) ** -0.4, rng, 0.4)


def _heavy_tails(n: int, rng: np.random.Generator) -> Floats:
    clean = 2.0 + 3.0 * np.arange(1, n + 1) ** -0.4
    return np.asarray(clean * np.exp(0.04 * rng.standard_t(3, n)), np.float64)


def _blips(n: int, rng: np.random.Generator) -> Floats:
    loss = _power_law(n, rng)
    loss[rng.choice(n, 6, replace=False)] *= 1.6
    return loss


def _fine_tune(n: int, rng: np.random.Generator) -> Floats:
    return _noisy(1.95 + 0.35 * np.exp(-30 * _time(n)) - 0.08 * _time(n), rng, 0.03)


def _near_zero(n: int, rng: np.random.Generator) -> Floats:
    return _noisy(1e-4 + 2.0 * np.exp(-14 * _time(n)), rng, 0.6)


def _negative(n: int, rng: np.random.Generator) -> Floats:
    return np.asarray(2.0 - 5.0 * (1 - np.exp(-4 * _time(n))) + 0.1 * rng.standard_normal(n))


def _slow_noise(n: int, rng: np.random.Generator) -> Floats:
    drive, slow = 0.02 * rng.standard_normal(n), np.zeros(n)
    for i in range(1, n):
        slow[i] = 0.9 * slow[i - 1] + drive[i]
    return np.asarray((1.8 + 2.5 * np.arange(1, n + 1) ** -0.4) * np.exp(slow), np.float64)


def _long_flat_tail(n: int, rng: np.random.Generator) -> Floats:
    return _noisy(0.7 + 2.0 * np.exp(-25 * _time(n)), rng, 0.05)


def _two_step_cycle(n: int, rng: np.random.Generator) -> Floats:
    swing = 0.06 * (-1.0) ** np.arange(n) * np.minimum(3 * _time(n), 1)
    return _exponential(n, rng) * np.exp(swing)


def _resumed(n: int, rng: np.random.Generator) -> Floats:
    loss = _power_law(n, rng)
    loss[n // 2 :] = loss[n // 2 - n // 20 : n - n // 20]
    return loss


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "power law": _power_law,
        "exponential": _exponential,
        "linear": _linear,
        "two phases": _two_phases,
        "shelf then drop": _shelf_then_drop,
        "epoch staircase": _epoch_staircase,
        "cosine": _cosine,
        "warm-up, stable, decay": _warmup_stable_decay,
        "step schedule": _step_schedule,
        "mixup": _mixup,
        "small batches": _small_batches,
        "heavy tails": _heavy_tails,
        "blips": _blips,
        "fine-tune": _fine_tune,
        "near zero": _near_zero,
        "negative": _negative,
        "slow noise": _slow_noise,
        "long flat tail": _long_flat_tail,
        "two-step cycle": _two_step_cycle,
        "resumed": _resumed,
    }
)
"""(rows, generator) -> [rows]: a run that calls for no alarm."""


def _smoothed(loss: Floats) -> Floats:
    mean = np.empty_like(loss)
    mean[0] = loss[0]
    for i in range(1, loss.size):
        mean[i] = 0.9 * mean[i - 1] + 0.1 * loss[i]
    return mean


VIEWS: Mapping[str, Callable[[Floats], Floats]] = MappingProxyType(
    {
        "every row": lambda loss: loss,
        "every tenth": lambda loss: loss[::10],
        "moving average": _smoothed,
        "means of ten": lambda loss: loss[: loss.size // 10 * 10].reshape(-1, 10).mean(axis=1),
        "two digits": lambda loss: np.round(loss, 2),
    }
)
"""What a log keeps of a curve."""
