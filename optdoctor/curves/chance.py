"""The loss of a model that knows nothing: the logarithm of the number of classes."""

import math
from typing import NamedTuple

import numpy as np

from optdoctor.curves.flatness import SIGNIFICANT, late_fall
from optdoctor.curves.level import Curve

USUAL_CLASSES = (2, 3, 10, 100, 1000)
"""Numbers of classes that are guessed where nobody told the number. The logarithm of 4 is what the
two halves of a discriminator's loss add up to in a good run."""
USUAL_VOCABULARIES = (
    *(30_522, 32_000, 32_768, 49_152, 50_257, 50_304),
    *(65_536, 100_277, 128_256, 151_936, 256_000),
)
"""Sizes of the vocabularies of BERT, Llama, Mistral, SmolLM, GPT-2 (and padded), RWKV, cl100k,
Llama 3, Qwen and Gemma."""
BETTER = 0.001
"""Share below chance from which a loss that is surely below it is better than chance, if barely;
and how closely a guessed number has to be met in a log that begins in mid-run."""
NO_GAIN = 1.15
"""Most that a run that ends at chance began above it, unless it fell there in its first rows."""
FIRST_ROWS, FIRST_SHARE = 5, 0.02
"""Rows, or share of them, whichever is more, within which a net that dies has fallen to chance. A
loss that falls for longer has learned something, and ends at any level."""
RESTLESS = 0.01
"""Distance from the level, in logarithms beside four deviations of a row, that has left it."""


class Chance(NamedTuple):
    """A loss that stands at chance in its last half, or began there and was never below it."""

    classes: int
    told: bool
    """Whether the number was told; it is guessed otherwise."""
    name: str
    """`ln 10`."""
    loss: float
    level: float
    """Median loss of the last half."""
    start: float
    """Median of the first three losses."""
    what: str
    share: float
    """The share that was judged, of `what`."""
    barely: bool
    """Whether it is surely below chance, if by little."""
    row: int
    """The first row from which it stood there; in the first tenth only where it fell there."""
    fell: int
    """Rows in which it fell there from far above; 0 where it began near by."""


def candidates(told: object, unit: str) -> list[tuple[int, bool, str, float]]:
    """(classes, told, `ln 10`, chance) for the told number of classes, or for all usual ones."""
    numbers: tuple[int, ...] = (*USUAL_CLASSES, *USUAL_VOCABULARIES)
    known = type(told) is int and 2 <= told < 2**53
    if type(told) is int and known:
        numbers = (told,)
    base, log = (math.log(2), "log2") if unit == "bits" else (1.0, "ln")
    return [(n, known, f"{log} {n}", math.log(n) / base) for n in numbers]


def nearest(level: float, told: object, unit: str, share: float) -> tuple[int, bool, str, float]:
    """The candidate nearest to a level; of 0 classes where all are farther off than `share`."""
    found = min(candidates(told, unit), key=lambda one: abs(level / one[3] - 1))
    return found if abs(level / found[3] - 1) <= share else (0, False, "", 0.0)


def at_chance(line: Curve, told: object, unit: str, share: float, flat: float) -> Chance | None:
    """Chance that a curve stands at to `share`, while its last half falls by less than `flat`.

    Or at which it began, and below which no block ever was by more than `share`. Or to which it
    fell within its first rows and where it stands since; a guessed number to `BETTER` then.
    """
    half, groups = line.losses.size // 2, np.array_split(line.losses, line.blocks.size)
    level, start = float(np.median(line.losses[half:])), float(np.median(line.losses[:3]))
    lowest = float(min(np.median(group) for group in groups))
    late = late_fall(line, line.blocks.size // 2)
    throughout = late_fall(line, max(line.blocks.size // 10, 1))
    last = max(2, line.blocks.size // 13)
    ending = float(np.median(np.concatenate(groups[-last:])))
    error = line.block_error / math.sqrt(line.blocks.size / 2)
    far = np.abs(np.log(np.maximum(line.losses, 1e-300)) - np.log(max(level, 1e-300)))
    outside, tenth = far > RESTLESS + 4 * line.noise, line.steps.size // 10
    row = max(tenth, min(int(np.flatnonzero(outside).max(initial=-1)) + 1, half))
    fell = int(np.flatnonzero(outside[: max(tenth, FIRST_ROWS + 1)]).max(initial=-1)) + 1
    at_once = throughout < flat and 0 < fell <= max(FIRST_ROWS, FIRST_SHARE * line.steps.size)
    for classes, known, name, chance in sorted(
        candidates(told, unit), key=lambda one: abs(level / one[3] - 1)
    ):
        off, below = abs(level / chance - 1), 1 - lowest / chance
        began_far = start > NO_GAIN * chance
        if level > NO_GAIN * chance or (began_far and not at_once):
            continue
        if 1 - ending / chance > share + SIGNIFICANT * line.block_error / math.sqrt(last):
            continue  # it learned in the end
        began = min(abs(float(line.losses[0]) / chance - 1), abs(start / chance - 1))
        stood = late if known or began <= share else throughout  # a slow fall ends at any level
        if began_far:
            if round(off, 4) > (share if known else min(share, BETTER)):
                continue
            what, judged = f"off {name} in the last half", off
        elif round(off, 4) <= share and stood < flat:
            what, judged = f"off {name} in the last half", off
        elif round(max(began, below), 4) <= share:
            what, judged = f"below {name} at its lowest", below
        else:
            continue
        barely = 1 - level / chance > max(BETTER, SIGNIFICANT * error)
        where, rows = (fell, fell) if began_far else (row, 0)
        return Chance(classes, known, name, chance, level, start, what, judged, barely, where, rows)
    return None


def never_better(line: Curve, told: object, unit: str) -> tuple[float, float, int] | None:
    """(level, chance, first row of the last half), where the number of classes is told and neither
    the last half nor the last quarter has a median below chance by more than `BETTER`, in a run
    that did not begin far above it: however restless, it knows nothing in the end."""
    known = [one for one in candidates(told, unit) if one[1]]
    if not known:
        return None
    chance, half, quarter = known[0][3], line.losses.size // 2, 3 * line.losses.size // 4
    level, late = float(np.median(line.losses[half:])), float(np.median(line.losses[quarter:]))
    start = float(np.median(line.losses[:3]))
    if not max(level, start) <= NO_GAIN * chance or min(level, late) < (1 - BETTER) * chance:
        return None
    return level, chance, half
