"""Where the skipped updates of a gradient scaler lie close together."""

import numpy as np

from optdoctor.curves.scaler import Scaler

Stretch = tuple[int, int]
"""The first and the last of the skipped updates."""


def falling(scale: Scaler, skips: int, within: int, halvings: float) -> Stretch | None:
    """The stretch over which at least so many lie within so many updates, while the scale fell by
    so many halvings or lay at 1 and below; None where there is none. A search counts for nothing.
    """
    steps, scales = scale.steps, scale.scales
    last = np.arange(steps.size)
    earliest = np.searchsorted(steps, steps - within, "right")
    for first in (last - skips + 1, last - skips, earliest):  # the tightest tell where it begins
        first = np.maximum(first, 0)
        near = (first >= earliest) & (last - first + 1 >= skips)
        near &= ~scale.searching[first] & ~scale.searching
        fell = scales[first] - scales[last] > halvings - 0.5
        low = (scales[first] <= 0) & (scales[last] <= scales[first] + 0.5)
        found = np.flatnonzero(near & (fell | low))
        if found.size:
            return int(first[found[0]]), int(found[-1])
    return None


def crowded(scale: Scaler, skips: int, within: int) -> Stretch | None:
    """The same at any scale."""
    last = np.arange(skips - 1, scale.steps.size)
    first = last - skips + 1
    near = (scale.steps[last] - scale.steps[first] < within) & ~scale.searching[first]
    found = np.flatnonzero(near & ~scale.searching[last])
    return (int(first[found[0]]), int(last[found[-1]])) if found.size else None


def most_within(scale: Scaler, stretch: Stretch, within: int) -> int:
    """Most skipped updates of the stretch within so many updates."""
    steps = scale.steps[stretch[0] : stretch[1] + 1]
    count = np.arange(steps.size) - np.searchsorted(steps, steps - within, "right") + 1
    return int(count.max(initial=0))
