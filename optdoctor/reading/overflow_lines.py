"""The lines in which gradient scalers say that they skipped an update."""

from optdoctor.reading.lazy_regex import lazy
from optdoctor.reading.log import Log, number

_SCALE = r"(\d[\d.]*(?:[eE][-+]?\d+)?|inf)"
_SPELLINGS = tuple(
    lazy(pattern)
    for pattern in (
        # DeepSpeed, Apex' FP16_Optimizer, LOMO
        rf"Attempted loss scale: {_SCALE}, reducing to {_SCALE}",
        # DeepSpeed with hysteresis: skipped, but the scale stays
        rf"Attempted loss scale: {_SCALE}, but hysteresis is",
        # DeepSpeed's fused and unfused optimizers
        rf"Reducing dynamic loss scale from {_SCALE} to {_SCALE}",
        # Apex amp
        rf"Gradient overflow\.\s+Skipping step, loss scaler \d+ reducing loss scale to (){_SCALE}",
        # fairseq
        rf"overflow detected,.*? setting loss scale to: (){_SCALE}",
        # ColossalAI
        rf"Overflow occurs, the loss scale is adjusted to (){_SCALE}",
    )
)
_AT_LEAST = tuple(
    lazy(pattern)
    for pattern in (
        # DeepSpeed, where it raises at the least scale
        r"Current loss scale already at minimum - cannot decrease scale anymore()",
        # fairseq
        rf"Minimum loss scale reached \({_SCALE}\)",
    )
)
"""With what an overflow at the least scale ends a run."""


def says_overflow(line: str) -> bool:
    """Whether a gradient scaler says in this line that it skipped an update."""
    return "scale" in line and any(spelling.search(line) for spelling in _SPELLINGS)


def add_overflow(line: str, log: Log) -> bool:
    """Adds a gradient scaler's word that it skipped the next update; False where it says none.

    The lines of several processes, or several lines of one, about one overflow are one.
    """
    if "scale" not in line:
        return False
    for spelling in _SPELLINGS:
        if (found := spelling.search(line)) is None:
            continue
        old = number(found[1])
        new = number(found[2]) if spelling.groups == 2 else old
        if new is not None:
            return log.overflow(old, new)
    for spelling in _AT_LEAST:
        if found := spelling.search(line):
            return log.scale_at_least(number(found[1]))
    return False
