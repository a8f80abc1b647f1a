"""What a trial showed: losses side by side, and whether they differ by more than chance."""

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

BLOCKS = 5
"""The last half of steps is cut into so many: means of blocks depend on each other less than
losses of neighbouring steps do."""
T_LEAST = 4.604
"""Of Student's t with BLOCKS - 1 degrees of freedom: 1 in 100 is beyond, on both sides together."""
BEYOND = 3.0
"""Robust deviations above where all began, from which a candidate counts as diverged."""
LEAST = 10
"""Steps below which nothing is judged: blocks of one loss."""
ROUNDING = 1e-6
"""Relative difference that is none."""
WIDTH, NAME = 80, 34

Judged = Literal["untreated", "helped", "harmed", "no difference", "refused", "not told"]

SHORT = (
    "A trial of {} steps tells of the short term only: a smaller rate almost always looks better"
    " there, and what pays later can look worse."
)


@dataclass(frozen=True)
class Outcome:
    """What became of one candidate."""

    name: str
    losses: tuple[float, ...] = ()
    refused: str = ""
    """Why it was not tried, or not to the end; "" where it was."""
    final: float = math.nan
    """Mean loss of the last fifth of steps, without the most extreme fifth of these on either
    side."""
    diverged: bool = False
    """Whether its loss is not finite in the end, or stands clearly above where all began."""
    difference: float = math.nan
    """Mean of its losses minus those of the untreated at the same steps, in the last half."""
    chance: float = math.nan
    """How large that may be by chance: 99 in 100 differences of nothing are smaller."""
    verdict: Judged = "not told"


@dataclass(frozen=True)
class Trial:
    """What a trial showed. `print` it to read it."""

    candidates: tuple[Outcome, ...]
    """The untreated run first."""
    steps: int
    noise: float
    """Standard error of the mean of so many losses of the untreated run as are compared."""
    paired: bool
    """Whether all were given the same batches by the trial itself."""
    batches: Iterator[Any] | None = field(default=None, compare=False, repr=False)
    """The batches of the trial and then the rest, for the training to go on with."""

    @property
    def helped(self) -> tuple[Outcome, ...]:
        """Those with a lower loss than the untreated run, the lowest first."""
        found = [one for one in self.candidates if one.verdict == "helped"]
        return tuple(sorted(found, key=lambda one: one.final))

    @property
    def harmed(self) -> tuple[Outcome, ...]:
        """Those with a higher one."""
        return tuple(one for one in self.candidates if one.verdict == "harmed")

    @property
    def best(self) -> Outcome:
        """The one that helped most; the untreated run where none did."""
        return (*self.helped, self.candidates[0])[0]

    @property
    def summary(self) -> str:
        """One sentence."""
        told = [f"{one.name} {_in_words(one)}" for one in self.candidates[1:]]
        untreated = f"untreated ends at a loss of {self.candidates[0].final:.4g}"
        return f"a trial of {self.steps} steps: {'; '.join([untreated, *told])}"

    def __str__(self) -> str:
        batches = "the same batches" if self.paired else "batches of step_fn's own"
        lines = [f"trial of {self.steps} steps on {batches}"]
        lines.append(f"{'':{NAME}} {'loss at end':>11}  {'against untreated':>17}")
        for one in self.candidates:
            lines += _lines(one)
        helped = ", ".join(one.name for one in self.helped) or "none"
        harmed = ", ".join(one.name for one in self.harmed) or "none"
        last = f"helped: {helped}; did harm: {harmed}."
        if math.isfinite(self.noise):
            last += f" The untreated mean is uncertain by {self.noise:.2g}."
        for text in (last, SHORT.format(self.steps)):
            lines += textwrap.wrap(text, WIDTH)
        return "\n".join(lines)


def judged(outcomes: Sequence[Outcome]) -> tuple[tuple[Outcome, ...], float]:
    """(the same with their numbers and verdicts, noise of the untreated run, which is first)."""
    losses = np.array(outcomes[0].losses)
    spread, half = _spread(losses), len(losses) - len(losses) // 2
    noise = spread / math.sqrt(half) if half else math.nan
    ceiling = _ceiling(losses, spread)
    untreated = replace(_measured(outcomes[0], ceiling), verdict="untreated")
    told = [_judged(_measured(one, ceiling), untreated, noise) for one in outcomes[1:]]
    return (untreated, *told), noise


def _measured(one: Outcome, ceiling: float) -> Outcome:
    if one.refused:
        return one
    final = _final(np.array(one.losses))
    return replace(one, final=final, diverged=not math.isfinite(final) or final > ceiling)


def _judged(one: Outcome, untreated: Outcome, noise: float) -> Outcome:
    if one.refused:
        return replace(one, verdict="refused")
    difference, chance = _paired(np.array(one.losses), np.array(untreated.losses))
    one = replace(one, difference=difference, chance=chance)
    return replace(one, verdict=_verdict(one, untreated, noise))


def _verdict(one: Outcome, untreated: Outcome, noise: float) -> Judged:
    """The pairs differ beyond chance, and by more than the untreated mean is uncertain; and the end
    says the same as the last half. Who diverges while the other does not needs no statistics."""
    if len(one.losses) < LEAST:
        return "not told"
    finite, other = math.isfinite(one.final), math.isfinite(untreated.final)
    if not finite or not other:
        return "no difference" if finite == other else "helped" if finite else "harmed"
    least = max(noise, ROUNDING * abs(untreated.final))
    end = one.final - untreated.final
    if one.diverged != untreated.diverged and abs(end) > least:
        return "harmed" if one.diverged else "helped"
    if not abs(one.difference) > max(least, one.chance) or (one.difference < 0) != (end < 0):
        return "no difference"
    return "helped" if end < 0 else "harmed"


def _paired(losses: NDArray[Any], untreated: NDArray[Any]) -> tuple[float, float]:
    """(mean difference of the last half, what it may be by chance); NaN where one is not finite."""
    later = (losses - untreated)[len(untreated) // 2 :]
    if len(later) < BLOCKS or not np.isfinite(later).all():
        return math.nan, math.nan
    means = np.array([block.mean() for block in np.array_split(later, BLOCKS)])
    return float(later.mean()), float(T_LEAST * means.std(ddof=1) / math.sqrt(BLOCKS))


def _final(losses: NDArray[Any]) -> float:
    """Mean of the last fifth without the highest and lowest fifth of it."""
    last = np.sort(losses[-max(len(losses) // 5, 1) :])
    cut = len(last) // 5
    with np.errstate(invalid="ignore"):  # of infinities of both signs
        return float(last[cut : len(last) - cut].mean()) if np.isfinite(last).all() else math.nan


def _spread(losses: NDArray[Any]) -> float:
    """Robust deviation of one loss from its neighbours: a trend counts little."""
    change = np.diff(losses)
    change = change[np.isfinite(change)]
    if not len(change):
        return math.nan
    return 1.4826 * float(np.median(np.abs(change - np.median(change)))) / math.sqrt(2)


def _ceiling(untreated: NDArray[Any], spread: float) -> float:
    """The loss above which a candidate is worse off than where all began."""
    begin = untreated[: max(len(untreated) // 5, 1)]
    begin = begin[np.isfinite(begin)]
    if not len(begin) or not math.isfinite(spread):
        return math.inf
    return float(np.median(begin)) + BEYOND * spread + ROUNDING * abs(float(begin[0]))


def _in_words(one: Outcome) -> str:
    if one.refused:
        return f"was not tried, {one.refused}"
    end = "diverged" if one.diverged else f"ends at {one.final:.4g}"
    known = {"helped": "helped", "harmed": "did harm", "no difference": "made no clear difference"}
    return f"{known.get(one.verdict, 'cannot be judged by so few steps')} ({end})"


def _lines(one: Outcome) -> list[str]:
    name = one.name if len(one.name) <= NAME else one.name[: NAME - 2] + ".."
    if one.refused:
        indent = " " * 4
        return [
            name,
            *textwrap.wrap(one.refused, WIDTH, initial_indent=indent, subsequent_indent=indent),
        ]
    end = f"{one.final:11.4g}" if math.isfinite(one.final) else f"{'not finite':>11}"
    against = f"{one.difference:+.2g} +- {one.chance:.1g}" if math.isfinite(one.difference) else "-"
    told: list[str] = [one.verdict] * (one.verdict != "untreated") + ["diverged"] * one.diverged
    return [f"{name:{NAME}} {end}  {against:>17}  {', '.join(told)}".rstrip()]
