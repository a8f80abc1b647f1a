"""Families held apart until their exam of 2026-11-30, development since: healthy made-up runs."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from curves.runs import (
    Family,
    Floats,
    Run,
    constant_rate,
    cosine_rate,
    linear_rate,
    rate_size,
    time,
    trained,
    warm,
    white,
)

Rng = np.random.Generator


def _falling(n: int, rng: Rng, low: float = 1.5, high: float = 3.0) -> Floats:
    """[n]: a loss that falls in one of several ways."""
    t, end, fall = time(n), rng.uniform(low, high), rng.uniform(1, 3)
    shapes = (
        (1 + rng.uniform(20, 200) * t) ** -rng.uniform(0.3, 0.8),
        np.exp(-rng.uniform(2, 8) * t),
        1 / (1 + rng.uniform(3, 20) * t),
    )
    return np.asarray(end + fall * shapes[int(rng.integers(3))], np.float64)


def _epoch_running_mean(n: int, rng: Rng) -> Run:
    """A progress bar's loss: the mean since the epoch began."""
    epochs = int(rng.integers(3, 12))
    run = trained(
        _falling(n, rng), rng, noise=rng.uniform(0.03, 0.15), lr=constant_rate(n, rng),
        epoch_rows=n / epochs,
    )  # fmt: skip
    starts = np.unique((np.arange(epochs) * n / epochs).astype(int))
    parts = [np.cumsum(p) / np.arange(1, len(p) + 1) for p in np.split(run.loss, starts[1:])]
    facts = dict(run.facts)
    if rng.random() < 0.5:
        facts["loss_form"] = "running mean"
    return replace(run, loss=np.concatenate(parts), facts=facts)


def _batch_size_ramp(n: int, rng: Rng) -> Run:
    growth = 2.0 ** np.floor(time(n) * rng.integers(2, 5))  # noise falls with the root of it
    noise = rng.uniform(0.05, 0.15) / np.sqrt(growth)
    return trained(_falling(n, rng), rng, noise=noise, lr=constant_rate(n, rng))


def _curriculum(n: int, rng: Rng) -> Run:
    """Harder data from a joint on: the loss jumps, and falls below its former level."""
    clean, joint = _falling(n, rng), int(rng.uniform(0.3, 0.5) * n)
    since = np.maximum(np.arange(n) - joint, 0) / (n - joint)
    jump, pace = rng.uniform(0.05, 0.2), rng.uniform(5, 10)
    late = np.where(np.arange(n) >= joint, jump * np.exp(-pace * since) - 0.15 * since, 0.0)
    return trained(
        clean * np.exp(late), rng, noise=rng.uniform(0.02, 0.05), lr=constant_rate(n, rng)
    )


def _inverse_square_root(n: int, rng: Rng) -> Run:
    steps, warmup = np.arange(1, n + 1), rng.uniform(0.02, 0.1) * n
    lr = rate_size(rng) * np.minimum(steps / warmup, np.sqrt(warmup / steps))
    passed = np.cumsum(lr) / lr.sum()
    clean = rng.uniform(2, 3.5) + rng.uniform(2, 4) * np.exp(-rng.uniform(3, 6) * passed)
    return trained(clean, rng, noise=rng.uniform(0.02, 0.05), lr=lr)


def _denoising(n: int, rng: Rng) -> Run:
    """Noise of a random time step in each batch, and almost no fall after the first."""
    clean = rng.uniform(0.03, 0.15) * (
        1 + rng.uniform(3, 8) * np.exp(-rng.uniform(60, 120) * time(n))
    )
    clean *= 1 - rng.uniform(0.02, 0.1) * time(n)
    return trained(clean, rng, noise=rng.uniform(0.15, 0.45), lr=constant_rate(n, rng))


def _two_exponentials(n: int, rng: Rng) -> Run:
    t = time(n)
    fast = rng.uniform(1, 2) * np.exp(-rng.uniform(25, 60) * t)
    slow = rng.uniform(0.3, 1) * np.exp(-rng.uniform(1.5, 4) * t)
    return trained(
        rng.uniform(0.3, 1.5) + fast + slow, rng, noise=rng.uniform(0.01, 0.06),
        lr=cosine_rate(n, rng),
    )  # fmt: skip


def _late_drop(n: int, rng: Rng) -> Run:
    start = rng.uniform(0.8, 0.92)
    late = np.clip((time(n) - start) / (1 - start), 0, 1)
    clean = _falling(n, rng) * (1 - rng.uniform(0.05, 0.2) * late)
    lr = rate_size(rng) * warm(n, rng) * np.where(late > 0, 1 - 0.95 * late, 1.0)
    return trained(clean, rng, noise=rng.uniform(0.01, 0.05), lr=lr)


def _two_sided_outliers(n: int, rng: Rng) -> Run:
    noise, shocks = rng.uniform(0.02, 0.05), white(n, rng)
    hit = rng.choice(n, max(n // 60, 4), replace=False)
    shocks[hit] += rng.choice([-1, 1], len(hit)) * rng.uniform(0.1, 0.5, len(hit)) / noise
    return trained(_falling(n, rng), rng, noise=noise, lr=constant_rate(n, rng), shocks=shocks)


def _large_sums(n: int, rng: Rng) -> Run:
    clean = 10 ** rng.uniform(3.5, 5) * _falling(n, rng, 0.3, 1.5)
    return trained(clean, rng, noise=rng.uniform(0.05, 0.2), lr=constant_rate(n, rng))


def _noisy_cosine(n: int, rng: Rng) -> Run:
    lr = cosine_rate(n, rng, floor=0.0)
    passed = np.cumsum(lr) / lr.sum()
    clean = rng.uniform(0.5, 2) + rng.uniform(1, 2.5) * np.exp(-rng.uniform(2, 5) * passed)
    return trained(clean, rng, noise=rng.uniform(0.15, 0.35), lr=lr)


def _long_warmup(n: int, rng: Rng) -> Run:
    """The rate rises for a fifth to two fifths of the run, and the loss waits for it."""
    warmup = rng.uniform(0.2, 0.4)
    lr = rate_size(rng) * np.minimum(time(n) / warmup, 1)
    passed = np.cumsum(lr) / lr.sum()
    clean = rng.uniform(0.5, 2) + rng.uniform(1.5, 3) * np.exp(-rng.uniform(5, 12) * passed)
    return trained(clean, rng, noise=rng.uniform(0.01, 0.05), lr=lr)


def _task_mixture(n: int, rng: Rng) -> Run:
    """Each batch is of one of two tasks, whose losses stand apart."""
    apart = rng.uniform(0.1, 0.4)
    shocks = apart * (rng.random(n) < rng.uniform(0.3, 0.7)) + 0.03 * rng.standard_normal(n)
    shocks -= shocks.mean()
    return trained(_falling(n, rng), rng, noise=1.0, lr=constant_rate(n, rng), shocks=shocks)


def _cyclic_rate(n: int, rng: Rng) -> Run:
    """A triangular rate, in whose wake the loss swings a little."""
    part = (time(n) * int(rng.integers(3, 9))) % 1
    wave = 1 - np.abs(2 * part - 1)
    clean = _falling(n, rng) * np.exp(rng.uniform(0.01, 0.06) * (wave - 1))
    lr = rate_size(rng) * (0.1 + 0.9 * wave)
    run = trained(clean, rng, noise=rng.uniform(0.01, 0.05), lr=lr)
    return replace(run, telling=frozenset({"lr"}))


def _growing_accumulation(n: int, rng: Rng) -> Run:
    """More micro-batches at two joints: less noise, and smaller gradient norms."""
    parts = np.searchsorted(np.sort(rng.uniform(0.2, 0.8, 2)), time(n))
    noise = rng.uniform(0.08, 0.2) * 0.5**parts
    run = trained(_falling(n, rng), rng, noise=noise, lr=constant_rate(n, rng))
    norm = run.grad_norm
    return replace(run, grad_norm=None if norm is None else norm * 0.7**parts)


def _smoothed_labels(n: int, rng: Rng) -> Run:
    """A floor that label smoothing leaves in training, and that evaluation does not have."""
    floor = rng.uniform(0.8, 1.4)
    clean = floor + rng.uniform(2, 5) * np.exp(-rng.uniform(5, 12) * time(n))
    run = trained(
        clean, rng, noise=rng.uniform(0.01, 0.04), lr=linear_rate(n, rng),
        eval_shift=-rng.uniform(0.2, 0.6),
    )  # fmt: skip
    return replace(
        run, facts={**run.facts, "losses_comparable": "no"} if rng.random() < 0.5 else run.facts
    )


def _lengths_of_documents(n: int, rng: Rng) -> Run:
    """Skewed noise: a few batches of hard, short texts."""
    shape = rng.uniform(1.5, 4)
    shocks = (rng.gamma(shape, size=n) - shape) / np.sqrt(shape)
    noise = rng.uniform(0.03, 0.09)
    return trained(_falling(n, rng), rng, noise=noise, lr=cosine_rate(n, rng), shocks=shocks)


def _contrastive(n: int, rng: Rng) -> Run:
    """From the logarithm of the batch, over a shelf, slowly down to a small loss."""
    start, place = np.log(2.0 ** rng.integers(5, 12)), rng.uniform(0.03, 0.15)
    shelf = 1 / (1 + np.exp(rng.uniform(40, 80) * (time(n) - place)))
    slow = (time(n) / place + 1) ** -rng.uniform(0.5, 0.9)
    clean = start * (0.3 * shelf + 0.7 * slow) + 0.02
    return trained(clean, rng, noise=rng.uniform(0.02, 0.08), lr=cosine_rate(n, rng, 0.0))


def _overshoot(n: int, rng: Rng) -> Run:
    """The loss rises in the first steps, while the rate is warmed up, and falls from there."""
    t = time(n)
    bump = rng.uniform(0.1, 0.5) * (t / 0.02) * np.exp(1 - t / 0.02)
    return trained(
        _falling(n, rng) * np.exp(bump), rng, noise=rng.uniform(0.02, 0.06), lr=cosine_rate(n, rng)
    )


OPENED: Mapping[str, Family] = MappingProxyType(
    {
        "epoch running mean": _epoch_running_mean,
        "batch-size ramp": _batch_size_ramp,
        "curriculum": _curriculum,
        "inverse square root": _inverse_square_root,
        "denoising": _denoising,
        "two exponentials": _two_exponentials,
        "late drop": _late_drop,
        "two-sided outliers": _two_sided_outliers,
        "large sums": _large_sums,
        "noisy cosine": _noisy_cosine,
        "long warm-up": _long_warmup,
        "task mixture": _task_mixture,
        "cyclic rate": _cyclic_rate,
        "growing accumulation": _growing_accumulation,
        "smoothed labels": _smoothed_labels,
        "lengths of documents": _lengths_of_documents,
        "contrastive": _contrastive,
        "overshoot": _overshoot,
    }
)
"""(steps, generator) -> a run that calls for no alarm."""
