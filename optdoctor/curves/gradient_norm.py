"""The norm of the whole gradient, under the name by which a trace has it."""

import numpy as np

from optdoctor.trace import Trace

BEFORE, USED, CLIP = "grad_norm", "grad_norm_used", "max_grad_norm"
READ_FOR_IT = (BEFORE, USED, CLIP)
"""Channels that `gradient_norm` reads."""
UNKNOWN = "norms are known after clipping only, which takes away what stands out"
"""Why nothing is said where `gradient_norm` knows no channel."""
LARGEST = 1e300
"""What is larger clips nothing."""
ROUNDING = 0.01
"""Share by which a clipped norm may lie above its limit, as in half precision."""


def gradient_norm(trace: Trace) -> str:
    """The channel that tells how large gradients were, "" where none does.

    The norm before clipping, or the one that the optimizer saw where nothing is known to clip it;
    of the two that with more rows, as some loops clip at some updates only.
    """
    names = [BEFORE] if _clips(trace) else [BEFORE, USED]
    rows = {name: trace.series[name].rows for name in names if trace.has(name)}
    return max(rows, key=lambda name: rows[name], default="")


def _clips(trace: Trace) -> bool:
    """Whether what the optimizer sees is clipped: not so where it is beyond the limit all the same,
    as where a loop clips a copy."""
    clip = trace.facts.get(CLIP)
    if not isinstance(clip, int | float) or not 0 < clip < LARGEST:
        return False
    used = trace.series[USED].high if trace.has(USED) else np.empty(0)
    return not (used[np.isfinite(used)] > clip * (1 + ROUNDING)).any()
