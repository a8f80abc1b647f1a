"""Healthy configurations, all different: families in turn, and everything else drawn.

What is drawn is what people do: a constant rate is the lower one, weight decay has the size that
the optimizer is used with, micro-batches are small where they are added up.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from typing import Any
from zlib import crc32

import makers
import numpy as np
from setups import Family, Setup, families

Rng = np.random.Generator
Options = tuple[tuple[str, object], ...]
SEED, SEEDS, BASE = 2026, 3, 1_000
"""Of the draws; of the trainings there are `SEEDS`, from `BASE` times the base on."""
ADAPTIVE = ("adam", "adamw", "nadam", "adamw8bit")
DECAYS: Mapping[str, tuple[float, ...]] = {
    "sgd": (0.0, 1e-4, 1e-3),
    "sgd-plain": (0.0, 1e-4),
    "adam": (0.0, 1e-5),
    "nadam": (0.0, 1e-5),
    "rmsprop": (0.0, 1e-5),
    "adamw": (0.0, 0.01, 0.1),
    "adamw8bit": (0.0, 0.01, 0.1),
    "adafactor": (0.0, 0.01),
    "lion": (0.0, 0.1, 0.3),
    "muon": (0.0, 0.1),
    "schedulefree-adamw": (0.0, 0.01),
    "prodigy": (0.0, 0.01),
}
CLIPS = (None, None, 1.0, 5.0)
OPTIONS: Mapping[str, tuple[Options, ...]] = {
    "sgd": ((), (("nesterov", True),)),
    "adam": ((), (("amsgrad", True),)),
    "adamw": ((), (("betas", (0.9, 0.95)),), (("amsgrad", True),)),
    "rmsprop": ((), (("momentum", 0.5),)),
}
ADVERSARIAL: Options = (("betas", (0.5, 0.999)),)
"""Long momentum makes painter and critic circle each other."""


def draw(count: int, base: int = 0, among: Mapping[str, Family] | None = None) -> tuple[Setup, ...]:
    """`count` healthy runs, no two of one configuration, of `families()` unless others are given;
    another base is the same configurations with other seeds. What is drawn for a family does not
    hang on the other families."""
    streams = [_different(family, base) for family in (among or families()).values()]
    return tuple(next(stream) for _, stream in zip(range(count), cycle(streams), strict=False))


def _different(family: Family, base: int) -> Iterator[Setup]:
    rng, told = np.random.default_rng([SEED, crc32(family.name.encode())]), set()
    while True:
        one = _drawn(family, rng, base)
        if one.configuration not in told:
            told.add(one.configuration)
            yield one


def _drawn(family: Family, rng: Rng, base: int) -> Setup:
    optimizer = _one(tuple(family.rates), rng)
    full, half = family.precisions[:2]
    precision = _one((full, full, half, *family.precisions), rng)
    parts = _one((1, 1, 1, 1, 2, 4) if precision == full else (1, 1, 1, 2), rng)
    is_slow = precision == "float16-scaler"  # products of float16 are, on most processors
    schedule = _schedule(optimizer, rng)
    return Setup(
        family.name,
        optimizer,
        seed=base * BASE + int(rng.integers(SEEDS)),
        size=_one(("small",) if is_slow else ("small", "large"), rng),
        rate_factor=0.5 if schedule == "constant" else _one((0.5, 1.0), rng),
        schedule=schedule,
        batch_factor=0.5 if parts > 1 else _one((0.5, 1.0) if is_slow else (0.5, 1.0, 2.0), rng),
        precision=precision,
        clip=_one(CLIPS, rng),
        weight_decay=_one(DECAYS[optimizer], rng),
        accumulate=parts,
        optimizer_options=_options(family, optimizer, rng),
    )


def _schedule(optimizer: str, rng: Rng) -> str:
    """Schedule-free optimizers have none, and Prodigy finds its rate itself."""
    if optimizer == "schedulefree-adamw":
        return "constant"
    if optimizer == "prodigy":
        return _one(("constant", "cosine"), rng)
    return _one(tuple(makers.SCHEDULES), rng)


def _options(family: Family, optimizer: str, rng: Rng) -> Options:
    if family.loss_kind == "adversarial" and optimizer in ADAPTIVE:
        return ADVERSARIAL
    return _one(OPTIONS.get(optimizer, ((),)), rng)


def _one(several: Sequence[Any], rng: Rng) -> Any:
    return several[int(rng.integers(len(several)))]
