"""Development families: healthy made-up runs of many kinds, for placing the limits of rules.

Each draws its own parameters, so that a family is a kind of run and not one curve. The kinds are
those of `curve_families`, which gives single losses, with learning rates, norms and evaluations.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from curves.runs import (
    Family,
    Run,
    constant_rate,
    cosine_rate,
    linear_rate,
    rate_size,
    remembering,
    time,
    trained,
    warm,
    white,
)

Rng = np.random.Generator


def _power_law(n: int, rng: Rng) -> Run:
    end, fall = rng.uniform(1.5, 3.0), rng.uniform(1.5, 5.0)
    clean = end + fall * np.arange(1, n + 1) ** -rng.uniform(0.25, 0.6)
    return trained(clean, rng, noise=rng.uniform(0.01, 0.06), lr=constant_rate(n, rng))


def _exponential(n: int, rng: Rng) -> Run:
    clean = rng.uniform(0.1, 0.8) + rng.uniform(1, 3) * np.exp(-rng.uniform(3, 9) * time(n))
    return trained(clean, rng, noise=rng.uniform(0.02, 0.08), lr=constant_rate(n, rng))


def _linear(n: int, rng: Rng) -> Run:
    clean = rng.uniform(2, 4) * (1 - rng.uniform(0.2, 0.7) * time(n))
    return trained(clean, rng, noise=rng.uniform(0.01, 0.05), lr=linear_rate(n, rng))


def _two_phases(n: int, rng: Rng) -> Run:
    t = time(n)
    fast, slow = rng.uniform(1, 3) * np.exp(-40 * t), rng.uniform(0.4, 1.2) * np.exp(-3 * t)
    clean = rng.uniform(1, 2) + fast + slow
    return trained(clean, rng, noise=rng.uniform(0.01, 0.05), lr=constant_rate(n, rng))


def _shelf_then_drop(n: int, rng: Rng) -> Run:
    end, fall = rng.uniform(0.2, 0.9), rng.uniform(1.2, 2.3)
    drop = 1 + np.exp(rng.uniform(15, 40) * (time(n) - rng.uniform(0.3, 0.7)))
    clean = end + fall / drop + rng.uniform(0.5, 1.5) * np.exp(-80 * time(n))
    return trained(clean, rng, noise=rng.uniform(0.01, 0.04), lr=constant_rate(n, rng))


def _epoch_staircase(n: int, rng: Rng) -> Run:
    epochs = int(rng.integers(4, 11))  # the loss falls at each new sight of the data
    epoch = np.floor(time(n) * (epochs - 1e-9))
    clean = rng.uniform(1.5, 3) * rng.uniform(0.72, 0.92) ** epoch
    lr = cosine_rate(n, rng, floor=0.0)
    return trained(clean, rng, noise=rng.uniform(0.01, 0.05), lr=lr, epoch_rows=n / epochs)


def _cosine(n: int, rng: Rng) -> Run:
    fall = np.cumsum(np.arange(1, n + 1) ** -0.7 * (1.02 + np.cos(np.pi * time(n))))
    clean = rng.uniform(3.5, 5) - rng.uniform(1.2, 2.4) * fall / fall[-1]
    return trained(clean, rng, noise=rng.uniform(0.01, 0.04), lr=cosine_rate(n, rng))


def _warmup_stable_decay(n: int, rng: Rng) -> Run:
    start = rng.uniform(0.75, 0.9)
    late = np.clip((time(n) - start) / (1 - start), 0, 1)
    clean = 2.2 + 2 * np.arange(1, n + 1) ** -rng.uniform(0.25, 0.45) - rng.uniform(0.1, 0.3) * late
    lr = rate_size(rng) * warm(n, rng) * (1 - 0.98 * late)
    return trained(clean, rng, noise=rng.uniform(0.01, 0.04), lr=lr)


def _step_schedule(n: int, rng: Rng) -> Run:
    t, first, second = time(n), rng.uniform(0.3, 0.45), rng.uniform(0.6, 0.75)
    clean = rng.uniform(1.1, 1.8) + np.exp(-12 * t)
    for start, size in ((first, rng.uniform(0.2, 0.4)), (second, rng.uniform(0.05, 0.15))):
        clean -= size * (t > start) * (1 - np.exp(-40 * np.maximum(t - start, 0)))
    lr = rate_size(rng) * 0.1 ** ((t > first).astype(float) + (t > second))
    return trained(clean, rng, noise=rng.uniform(0.02, 0.06), lr=lr)


def _warm_restarts(n: int, rng: Rng) -> Run:
    cycles = int(rng.integers(2, 6))
    part = (time(n) * cycles * (1 - 1e-9)) % 1
    wave = (1 + np.cos(np.pi * part)) / 2
    clean = 1.5 + 2.5 * np.arange(1, n + 1) ** -0.4 + rng.uniform(0.05, 0.25) * wave
    lr = rate_size(rng) * (0.01 + 0.99 * wave)
    run = trained(clean, rng, noise=rng.uniform(0.01, 0.04), lr=lr)
    return replace(run, telling=frozenset({"lr"}))


def _mixup(n: int, rng: Rng) -> Run:
    clean = rng.uniform(1.5, 2.2) + rng.uniform(1.5, 3) * np.arange(1, n + 1) ** -0.45
    shocks = np.log1p(rng.uniform(0.2, 0.4) * rng.uniform(-1, 1, n))
    lr = cosine_rate(n, rng, floor=0.01)
    shift = -rng.uniform(0.3, 0.9)
    return trained(clean, rng, noise=1.0, lr=lr, shocks=shocks, eval_shift=shift)


def _small_batches(n: int, rng: Rng) -> Run:
    clean = rng.uniform(0.6, 1.4) + rng.uniform(1.5, 2.5) * np.arange(1, n + 1) ** -0.4
    return trained(clean, rng, noise=rng.uniform(0.2, 0.6), lr=constant_rate(n, rng))


def _heavy_tails(n: int, rng: Rng) -> Run:
    clean = 2.0 + rng.uniform(2, 4) * np.arange(1, n + 1) ** -0.4
    shocks = rng.standard_t(rng.uniform(2.6, 4), n)
    return trained(
        clean, rng, noise=rng.uniform(0.02, 0.05), lr=constant_rate(n, rng), shocks=shocks
    )


def _blips(n: int, rng: Rng) -> Run:
    clean = rng.uniform(1.5, 3) + 3 * np.arange(1, n + 1) ** -0.4
    noise = rng.uniform(0.01, 0.04)
    shocks = white(n, rng)
    shocks[rng.choice(n, int(rng.integers(3, 9)), replace=False)] += rng.uniform(0.15, 0.5) / noise
    return trained(clean, rng, noise=noise, lr=constant_rate(n, rng), shocks=shocks)


def _resumed(n: int, rng: Rng) -> Run:
    run, joint, back = _power_law(n, rng), int(rng.uniform(0.3, 0.7) * n), int(n * 0.04)
    order = np.append(np.arange(joint), np.arange(joint - back, n - back))  # repeats some steps
    norm = run.grad_norm
    return replace(
        run,
        loss=run.loss[order],
        clean=run.clean[order],
        grad_norm=norm if norm is None else norm[order],
        facts={**run.facts, "resumed_from": joint},
    )


def _fine_tune(n: int, rng: Rng) -> Run:
    gain, speed = rng.uniform(0.1, 0.4), rng.uniform(15, 60)
    clean = (
        rng.uniform(1.0, 2.2) + gain * np.exp(-speed * time(n)) - rng.uniform(0.03, 0.1) * time(n)
    )
    lr = linear_rate(n, rng) if rng.random() < 0.5 else cosine_rate(n, rng, floor=0.0)
    return trained(clean, rng, noise=rng.uniform(0.02, 0.12), lr=lr)


def _near_zero(n: int, rng: Rng) -> Run:
    clean = 10 ** rng.uniform(-5, -3) + rng.uniform(0.5, 2.5) * np.exp(
        -rng.uniform(9, 16) * time(n)
    )
    return trained(clean, rng, noise=rng.uniform(0.3, 0.7), lr=constant_rate(n, rng))


def _level_noise(n: int, rng: Rng) -> Run:
    clean = rng.uniform(0.3, 0.8) + rng.uniform(1, 3) * np.exp(-rng.uniform(3, 7) * time(n))
    noise = rng.uniform(0.01, 0.03) * (clean[0] / clean) ** rng.uniform(0.4, 0.9)
    return trained(clean, rng, noise=noise, lr=constant_rate(n, rng))


def _negative(n: int, rng: Rng) -> Run:
    fall = rng.uniform(3, 7)
    clean = 2.0 - fall * (1 - np.exp(-rng.uniform(3, 6) * time(n)))
    return trained(
        clean, rng, noise=rng.uniform(0.01, 0.04) * fall, lr=constant_rate(n, rng), additive=True
    )


def _long_flat_tail(n: int, rng: Rng) -> Run:
    clean = rng.uniform(0.4, 1.0) + rng.uniform(1, 3) * np.exp(-rng.uniform(15, 40) * time(n))
    return trained(clean, rng, noise=rng.uniform(0.02, 0.08), lr=constant_rate(n, rng))


def _slow_noise(n: int, rng: Rng) -> Run:
    clean = 1.8 + rng.uniform(1.5, 3) * np.arange(1, n + 1) ** -0.4
    shocks = remembering(n, rng, rng.uniform(0.7, 0.93))
    noise = rng.uniform(0.02, 0.05)
    return trained(clean, rng, noise=noise, lr=constant_rate(n, rng), shocks=shocks)


def _two_step_cycle(n: int, rng: Rng) -> Run:
    clean = rng.uniform(0.3, 0.6) + rng.uniform(1.5, 2.5) * np.exp(-rng.uniform(4, 7) * time(n))
    noise = rng.uniform(0.01, 0.05)
    swing = rng.uniform(1, 3) * (-1.0) ** np.arange(n) * np.minimum(3 * time(n), 1)
    shocks = rng.standard_normal(n) + swing
    return trained(clean, rng, noise=noise, lr=constant_rate(n, rng), shocks=shocks)


def _loss_scaler(n: int, rng: Rng) -> Run:
    """A scaler that searches for its scale, and later doubles it until it overflows."""
    run, wait = _power_law(n, rng), int(rng.integers(100, 300))
    scale, left_out = np.empty(n), np.zeros(n)
    now, bound, calm = 65536.0, 2.0 ** rng.integers(10, 15), 0
    for i in range(n):
        scale[i] = now
        calm += 1
        if now > bound:
            left_out[i], now, calm = 1, now / 2, 0
        elif calm == wait:
            now, calm = 2 * now, 0
    norm = np.where(left_out > 0, np.inf, run.grad_norm)
    return replace(run, grad_norm=norm, loss_scale=scale, step_skipped=left_out)


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
        "warm restarts": _warm_restarts,
        "mixup": _mixup,
        "small batches": _small_batches,
        "heavy tails": _heavy_tails,
        "blips": _blips,
        "resumed": _resumed,
        "fine-tune": _fine_tune,
        "near zero": _near_zero,
        "noise by level": _level_noise,
        "negative": _negative,
        "long flat tail": _long_flat_tail,
        "slow noise": _slow_noise,
        "two-step cycle": _two_step_cycle,
        "loss scaler": _loss_scaler,
    }
)
"""(steps, generator) -> a run that calls for no alarm."""
