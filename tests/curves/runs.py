"""What one made-up or recorded training would have logged at every step."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NO_FLOATS, NO_INTS = np.empty(0), np.empty(0, np.int64)


@dataclass(frozen=True, eq=False)
class Run:
    """n steps of a training. Rows are steps 1 to n; evaluations stand at steps of their own."""

    loss: Floats  # [n]
    clean: Floats  # [n] the loss without the noise of batches
    lr: Floats | None = None  # [n]
    grad_norm: Floats | None = None  # [n] before clipping
    eval_steps: Ints = field(default_factory=lambda: NO_INTS)  # [m]
    eval_loss: Floats = field(default_factory=lambda: NO_FLOATS)  # [m]
    epoch_rows: float = 0.0
    """Steps of one epoch; 0 where the log does not tell."""
    loss_scale: Floats | None = None  # [n]
    step_skipped: Floats | None = None  # [n]
    facts: Mapping[str, float | int | str] = field(default_factory=dict)
    telling: frozenset[str] = frozenset()
    """Channels without which a log could not tell this healthy run from a sick one."""

    def __len__(self) -> int:
        return len(self.loss)


Family = Callable[[int, np.random.Generator], Run]
"""(steps, generator) -> a run that calls for no alarm."""


def time(n: int) -> Floats:
    """[n]: the share of the run that is over after each step."""
    return np.arange(1, n + 1) / n


def warm(n: int, rng: np.random.Generator) -> Floats:
    """[n]: a linear rise to 1 over up to 8 % of the steps."""
    return np.minimum(np.arange(1, n + 1) / max(rng.uniform(0, 0.08) * n, 1), 1.0)


def constant_rate(n: int, rng: np.random.Generator) -> Floats:
    """[n]: a constant learning rate, warmed up in two of three runs."""
    return np.asarray(rate_size(rng) * (warm(n, rng) if rng.random() < 2 / 3 else np.ones(n)))


def cosine_rate(n: int, rng: np.random.Generator, floor: float = 0.1) -> Floats:
    """[n]: a warmed-up cosine down to the share `floor`."""
    wave = (1 + np.cos(np.pi * time(n))) / 2
    return np.asarray(rate_size(rng) * warm(n, rng) * (floor + (1 - floor) * wave))


def linear_rate(n: int, rng: np.random.Generator) -> Floats:
    """[n]: warmed up, then linear to almost 0."""
    return np.asarray(rate_size(rng) * warm(n, rng) * (1 - time(n) + 1 / n))


def rate_size(rng: np.random.Generator) -> float:
    """A learning rate as people choose them."""
    return float(rng.choice([1e-4, 2e-4, 3e-4, 5e-4, 1e-3, 2e-3, 1e-2]))


def white(n: int, rng: np.random.Generator) -> Floats:
    """[n]: noise of unit spread; in one of five runs with a memory of a few steps."""
    if rng.random() < 0.8:
        return rng.standard_normal(n)
    return remembering(n, rng, rng.uniform(0.2, 0.6))


def remembering(n: int, rng: np.random.Generator, share: float) -> Floats:
    """[n]: noise of unit spread, each row holding `share` of the one before."""
    drive = np.sqrt(1 - share**2) * rng.standard_normal(n)
    rows, last = np.empty(n), float(rng.standard_normal())
    for i, push in enumerate(drive.tolist()):
        last = share * last + push
        rows[i] = last
    return rows


def trained(
    clean: Floats,
    rng: np.random.Generator,
    *,
    noise: float | Floats = 0.03,
    lr: Floats,
    shocks: Floats | None = None,
    additive: bool = False,
    eval_shift: float | None = None,
    epoch_rows: float = 0.0,
) -> Run:
    """A run around `clean` [n] with log-normal noise (normal where additive) of spread `noise`.

    Gradient norms are log-normal and share a part of the noise, so that a blip of the loss shows
    in them. The evaluation loss falls like the training loss, a little less.

    Args:
        shocks: [n] noise of unit spread to take in place of `white`.
        eval_shift: log of the evaluation loss over the training loss at the start.
    """
    n = len(clean)
    left = np.asarray((white(n, rng) if shocks is None else shocks) * noise, np.float64)
    loss = clean + left if additive else clean * np.exp(np.minimum(left, 5))
    shift = rng.uniform(-0.02, 0.06) if eval_shift is None else eval_shift
    eval_steps = np.unique(np.linspace(n / (m := int(rng.integers(10, 31))), n, m).astype(np.int64))
    return Run(
        loss=loss,
        clean=clean,
        lr=lr,
        grad_norm=norms(clean, left, rng, additive),
        eval_steps=eval_steps,
        eval_loss=_evaluated(clean, float(np.mean(noise)), rng, eval_steps, shift, additive),
        epoch_rows=epoch_rows or (n / rng.integers(2, 12) if rng.random() < 0.5 else 0.0),
        facts=MappingProxyType({"loss_kind": "falling"}),
    )


def norms(clean: Floats, left: Floats, rng: np.random.Generator, additive: bool) -> Floats:
    """[n]: log-normal gradient norms that share up to twice the noise `left` of the loss."""
    n = len(clean)
    size = 10 ** rng.uniform(-1, 1)
    slow = rng.uniform(-0.4, 0.2) * np.log(1 + 20 * time(n))
    own = rng.uniform(0.1, 0.35) * rng.standard_normal(n)
    shared = 0.0 if additive else rng.uniform(0.5, 2) * np.clip(left, -2, 2)
    early = rng.uniform(0, 1.5) * np.exp(-50 * time(n))
    return np.asarray(size * np.exp(slow + own + shared + early), np.float64)


def _evaluated(
    clean: Floats,
    noise: float,
    rng: np.random.Generator,
    steps: Ints,
    shift: float,
    additive: bool,
) -> Floats:
    at = clean[steps - 1]
    error = max(min(noise, 0.3) / np.sqrt(rng.integers(20, 200)), 5e-4)
    jitter = error * rng.standard_normal(len(steps))
    if additive:
        return np.asarray(at + shift + jitter, np.float64)
    lag = rng.uniform(0, 0.25) * (np.log(clean[0]) - np.log(at))
    return np.asarray(at * np.exp(shift + np.maximum(lag, 0) + jitter), np.float64)
