"""Families held apart: healthy made-up runs of kinds that development does not know.

No limit is set on them and nobody looks at them while limits are being set; only
`scripts/validate_curves.py --held` runs them, and writes each look down. They are the second set:
the first one is in `opened.py`.
"""

from collections.abc import Mapping
from dataclasses import replace
from statistics import NormalDist
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
    remembering,
    time,
    trained,
    warm,
    white,
)

Rng = np.random.Generator


def _learnt(n: int, rng: Rng, low: float = 1.2, high: float = 2.8) -> Floats:
    """[n]: a loss that falls in one of several ways, and to the end of the run."""
    t, end, fall = time(n), rng.uniform(low, high), rng.uniform(1, 2.5)
    shapes = (
        (1 + rng.uniform(30, 300) * t) ** -rng.uniform(0.25, 0.6),
        np.exp(-rng.uniform(8, 20) * t ** rng.uniform(0.5, 0.8)),
        1 - rng.uniform(0.15, 0.3) * np.log1p(rng.uniform(10, 25) * t),
    )
    return np.asarray(end + fall * shapes[int(rng.integers(3))], np.float64)


def _since(n: int, at: float) -> Floats:
    """[n]: the share of the run that has passed since the share `at` was over."""
    return np.maximum(time(n) - at, 0)


def _longer_sequences(n: int, rng: Rng) -> Run:
    """The context doubles at each of a few joints, and with more of it bytes are easier."""
    clean = _learnt(n, rng)
    joints = np.sort(rng.uniform(0.1, 0.8, int(rng.integers(2, 5))))
    for joint in joints:
        clean = clean * (1 - rng.uniform(0.01, 0.03) * (1 - np.exp(-60 * _since(n, joint))))
    noise = rng.uniform(0.02, 0.05) * 0.85 ** np.searchsorted(joints, time(n))
    return trained(clean, rng, noise=noise, lr=cosine_rate(n, rng))


def _gradual_unfreezing(n: int, rng: Rng) -> Run:
    """From each joint on one more layer learns: the loss falls anew, and norms are larger."""
    joints = np.sort(rng.uniform(0.15, 0.6, 2))
    clean = rng.uniform(0.8, 1.5) + rng.uniform(0.5, 1.2) * np.exp(-rng.uniform(10, 25) * time(n))
    for joint in joints:
        clean -= rng.uniform(0.08, 0.2) * (1 - np.exp(-rng.uniform(6, 15) * _since(n, joint)))
    run = trained(clean, rng, noise=rng.uniform(0.02, 0.07), lr=linear_rate(n, rng))
    norm = run.grad_norm
    larger = rng.uniform(1.1, 1.5) ** np.searchsorted(joints, time(n))
    return replace(run, grad_norm=None if norm is None else norm * larger)


def _distillation(n: int, rng: Rng) -> Run:
    """The temperature is lowered at each epoch, and the divergence from the teacher with it."""
    epochs = int(rng.integers(5, 12))
    colder = np.floor(time(n) * (epochs - 1e-9)) / epochs
    clean = _learnt(n, rng, 0.3, 1.0) * np.exp(-rng.uniform(0.1, 0.5) * colder)
    return trained(
        clean, rng, noise=rng.uniform(0.02, 0.06), lr=cosine_rate(n, rng), epoch_rows=n / epochs
    )


def _hinge(n: int, rng: Rng) -> Run:
    """Means of a few hinges: later on many batches cost nothing at all."""
    batch = int(rng.choice([8, 16, 32]))
    margin = rng.uniform(1.8, 2.6) * (1 - np.exp(-rng.uniform(5, 12) * time(n)))
    each = np.maximum(0, 1 - margin[:, None] - 0.8 * rng.standard_normal((n, batch)))
    clean = np.maximum(0, 1 - margin[:, None] - 0.8 * _normal_grid()).mean(1)
    run = trained(clean, rng, noise=0.1, lr=constant_rate(n, rng))
    return replace(run, loss=each.mean(1))


def _normal_grid() -> Floats:
    """[400]: the middles of as many equal parts of a standard normal distribution."""
    return np.array([NormalDist().inv_cdf((i + 0.5) / 400) for i in range(400)])


def _easy_batches(n: int, rng: Rng) -> Run:
    noise, shocks = rng.uniform(0.02, 0.06), white(n, rng)
    hit = rng.choice(n, max(int(n * rng.uniform(0.01, 0.03)), 4), replace=False)
    shocks[hit] -= rng.uniform(0.2, 0.8, len(hit)) / noise
    return trained(_learnt(n, rng), rng, noise=noise, lr=constant_rate(n, rng), shocks=shocks)


def _lengths_in_order(n: int, rng: Rng) -> Run:
    """Each epoch goes from short texts to long ones, which the log of epochs tells."""
    epochs, noise = int(rng.integers(4, 10)), rng.uniform(0.03, 0.07)
    swing = noise * rng.uniform(0.5, 1.2) * (2 * (time(n) * epochs * (1 - 1e-9) % 1) - 1)
    shocks = rng.standard_normal(n) - swing / noise
    run = trained(
        _learnt(n, rng), rng, noise=noise, lr=linear_rate(n, rng), shocks=shocks,
        epoch_rows=n / epochs,
    )  # fmt: skip
    return replace(run, telling=frozenset({"epoch"}))


def _repeated_batches(n: int, rng: Rng) -> Run:
    """Each batch is used a few times in a row, and costs a little less each time."""
    times, noise = int(rng.integers(2, 5)), rng.uniform(0.02, 0.06)
    batches = np.repeat(rng.standard_normal(n // times + 1), times)[:n]
    known = rng.uniform(0.2, 0.8) * (np.arange(n) % times - (times - 1) / 2)
    shocks = batches - known + 0.2 * rng.standard_normal(n)
    return trained(_learnt(n, rng), rng, noise=noise, lr=constant_rate(n, rng), shocks=shocks)


def _annealed_divergence(n: int, rng: Rng) -> Run:
    """A divergence whose weight grows slowly, while the sum goes on falling."""
    t, fall = time(n), rng.uniform(1.5, 3)
    weight = np.minimum(t / rng.uniform(0.4, 0.5), 1)
    clean = rng.uniform(1, 2) + fall * np.exp(-rng.uniform(2.5, 4) * t)
    clean += rng.uniform(0.08, 0.14) * fall * weight
    return trained(clean, rng, noise=rng.uniform(0.02, 0.05), lr=constant_rate(n, rng))


def _in_bfloat16(n: int, rng: Rng) -> Run:
    """The loss is a number of eight bits: 2.31, 2.33, 2.34."""
    run = trained(_learnt(n, rng), rng, noise=rng.uniform(0.005, 0.03), lr=cosine_rate(n, rng))
    mantissa, exponent = np.frexp(run.loss)
    return replace(run, loss=np.ldexp(np.round(mantissa * 256) / 256, exponent))


def _two_late_decays(n: int, rng: Rng) -> Run:
    t, clean = time(n), _learnt(n, rng)
    first, second = rng.uniform(0.76, 0.82), rng.uniform(0.88, 0.92)
    for start, size in ((first, rng.uniform(0.05, 0.12)), (second, rng.uniform(0.01, 0.03))):
        clean = clean * (1 - size * (1 - np.exp(-60 * _since(n, start))))
    lr = rate_size(rng) * warm(n, rng) * 0.1 ** ((t > first).astype(float) + (t > second))
    return trained(clean, rng, noise=rng.uniform(0.02, 0.06), lr=lr)


def _early_tail(n: int, rng: Rng) -> Run:
    """Most of the fall within a hundredth of the run, and a tail of 1/t."""
    clean = rng.uniform(1.5, 3) * (1 - rng.uniform(0.02, 0.08) * time(n))
    clean += rng.uniform(3, 7) / (1 + rng.uniform(200, 600) * time(n))
    return trained(clean, rng, noise=rng.uniform(0.02, 0.06), lr=cosine_rate(n, rng))


def _restarted_polynomial(n: int, rng: Rng) -> Run:
    """A polynomial schedule that starts once more, after which the loss is a little higher."""
    t, joint, power = time(n), rng.uniform(0.4, 0.55), rng.uniform(1, 2)
    late = t > joint
    part = np.where(late, (t - joint) / (1 - joint), t / joint)
    lr = rate_size(rng) * np.where(late, 0.6, 1.0) * (0.03 + 0.97 * (1 - part) ** power)
    rises = rng.uniform(0.005, 0.03) * np.where(late, (1 - part) ** power, 0)
    run = trained(
        _learnt(n, rng) * (1 + rises), rng, noise=rng.uniform(0.015, 0.04), lr=lr * warm(n, rng)
    )
    return replace(run, telling=frozenset({"lr"}))


def _walking_noise(n: int, rng: Rng) -> Run:
    """Noise that grows and shrinks by up to a factor of two or so, and slowly."""
    size = remembering(n, rng, np.exp(-1 / (0.1 * n)))
    noise = rng.uniform(0.02, 0.05) * np.exp(0.4 * np.clip(size, -2, 2))
    return trained(_learnt(n, rng), rng, noise=noise, lr=constant_rate(n, rng))


def _alternating_noise(n: int, rng: Rng) -> Run:
    """Every other row stands for one micro-batch alone, and is the noisier one."""
    noise = rng.uniform(0.01, 0.03) * np.where(np.arange(n) % 2, 1.0, rng.uniform(1.5, 3))
    return trained(_learnt(n, rng), rng, noise=noise, lr=constant_rate(n, rng))


def _hard_example(n: int, rng: Rng) -> Run:
    """A small table with one large residual, which some batch of each epoch holds."""
    epochs, noise = int(n / rng.uniform(30, 60)), rng.uniform(0.1, 0.2)
    shocks = white(n, rng)
    hit = (np.arange(epochs) * n / epochs + rng.uniform(0, n / epochs, epochs)).astype(int)
    shocks[hit] += rng.uniform(0.2, 0.35) / noise
    clean = rng.uniform(0.3, 0.6) + rng.uniform(0.3, 0.8) * np.exp(-rng.uniform(3, 8) * time(n))
    return trained(
        clean, rng, noise=noise, lr=constant_rate(n, rng), shocks=shocks, epoch_rows=n / epochs
    )


def _annealed_dropout(n: int, rng: Rng) -> Run:
    """Dropout falls to none: training begins above evaluation and ends at it."""
    clean, noise = _learnt(n, rng), rng.uniform(0.02, 0.06)
    dropped = rng.uniform(0.1, 0.4) * np.maximum(1 - time(n) / rng.uniform(0.6, 1), 0)
    run = trained(clean * (1 + dropped), rng, noise=noise, lr=cosine_rate(n, rng))
    jitter = 0.003 * rng.standard_normal(len(run.eval_steps))
    gap = rng.uniform(0, 0.03)
    return replace(run, eval_loss=clean[run.eval_steps - 1] * np.exp(gap + jitter))


def _other_averaging(n: int, rng: Rng) -> Run:
    """After a while the log shows means of the last rows in place of single ones."""
    run = trained(_learnt(n, rng), rng, noise=rng.uniform(0.03, 0.08), lr=constant_rate(n, rng))
    window, joint = int(rng.integers(5, 20)), int(rng.uniform(0.3, 0.7) * n)
    sums = np.cumsum(np.append(0, run.loss))
    means = (sums[window:] - sums[:-window]) / window  # of the rows from 0, from 1, ...
    loss = run.loss.copy()
    loss[joint:] = means[joint - window + 1 :]
    return replace(run, loss=loss)


def _better_data(n: int, rng: Rng) -> Run:
    """The last part of a pretraining reads chosen texts, while the rate falls to 0."""
    joint = rng.uniform(0.75, 0.9)
    since = _since(n, joint)
    clean = _learnt(n, rng) * np.where(since > 0, 1 - rng.uniform(0.04, 0.15), 1.0)
    clean *= 1 - rng.uniform(0.02, 0.06) * since / (1 - joint)
    lr = rate_size(rng) * warm(n, rng) * (1 - since / (1 - joint) * 0.99)
    return trained(clean, rng, noise=rng.uniform(0.01, 0.05), lr=lr)


GENERATED: Mapping[str, Family] = MappingProxyType(
    {
        "longer sequences": _longer_sequences,
        "gradual unfreezing": _gradual_unfreezing,
        "distillation": _distillation,
        "hinge": _hinge,
        "easy batches": _easy_batches,
        "lengths in order": _lengths_in_order,
        "repeated batches": _repeated_batches,
        "annealed divergence": _annealed_divergence,
        "loss in bfloat16": _in_bfloat16,
        "two late decays": _two_late_decays,
        "early tail": _early_tail,
        "restarted polynomial": _restarted_polynomial,
        "walking noise": _walking_noise,
        "alternating noise": _alternating_noise,
        "hard example": _hard_example,
        "annealed dropout": _annealed_dropout,
        "other averaging": _other_averaging,
        "better data": _better_data,
    }
)
"""(steps, generator) -> a run that calls for no alarm."""
