"""Settings of a run as numbers: a fact may be missing, and a damaged record may hold anything."""

from optdoctor.trace import Fact

LARGEST = 1e300
"""Beyond it products overflow."""
MOST = 2**53
"""Updates beyond which float64 cannot count."""


def positive(fact: Fact) -> float | None:
    """The number above 0 that this fact is; None where it is none."""
    if isinstance(fact, bool) or not isinstance(fact, float | int):
        return None
    return float(fact) if 0 < fact < LARGEST else None


def count(fact: Fact) -> int | None:
    """The number of updates, 0 or more, that this fact is; None where it is none."""
    if isinstance(fact, bool) or not isinstance(fact, float | int):
        return None
    return int(fact) if 0 <= fact < MOST and fact == int(fact) else None


def decay(fact: Fact) -> float | None:
    """The decay of a running mean, above 0 and below 1, that this fact is; else None."""
    number = positive(fact)
    return number if number is not None and number < 1 else None
