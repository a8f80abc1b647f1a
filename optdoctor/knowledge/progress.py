"""What else tells whether a run learns: the time that it had, evaluations and metrics."""

import numpy as np

from optdoctor.curves.flatness import LEAST_LEARNING, SIGNIFICANT, change
from optdoctor.curves.level import Curve
from optdoctor.findings import Evidence
from optdoctor.knowledge.metrics import direction
from optdoctor.trace import Trace

GAIN = 0.02
"""Change, as a share of the value before, from which an evaluation or a metric improves."""
MOST = 1e3
"""Largest gain that is told, as a share: the value before may be 0."""
ROWS = 20
"""Rows that tell of as many updates as a run has steps, where a log writes one of several."""
EPOCHS = 8
"""Epochs in which a run should have learned something, however few rows they give."""


def had_time(trace: Trace, line: Curve) -> bool:
    """Whether the rows of a curve are time enough to learn something.

    Reads `epoch` and `step_source`.
    """
    rows = line.level.size
    if rows >= LEAST_LEARNING or (trace.facts.get("step_source") == "epochs" and rows >= EPOCHS):
        return True
    if rows >= ROWS and int(line.steps[-1]) - int(line.steps[0]) + 1 >= LEAST_LEARNING:
        return True
    epochs = trace.series["epoch"].values if "epoch" in trace.series else np.empty(0)
    epochs = epochs[np.isfinite(epochs)]
    return bool(epochs.size and rows >= EPOCHS and float(np.ptp(epochs)) + 1 >= EPOCHS)


def beside(trace: Trace, first: int, last: int) -> tuple[str, list[Evidence]]:
    """(`the evaluation loss still falls from 2.1 to 1.4`, evidence of all that was measured).

    The words are empty where nothing improves between the two steps. Reads `eval_loss`, `metric:*`
    and `metric_direction:*`.
    """
    words, evidence = "", []
    for channel in trace.series:
        name = channel.removeprefix("metric:")
        sign = -1 if channel == "eval_loss" else 0
        if channel.startswith("metric:"):
            sign = direction(name, trace.facts.get(f"metric_direction:{name}"))
        found = change(trace.series[channel], first, last) if sign else None
        if found is None:
            continue
        before, after, errors = found
        gain = sign * (after - before) / max(abs(before), 1e-9)
        called = "the evaluation loss" if channel == "eval_loss" else f"the metric {name}"
        if not words and gain > GAIN and sign * errors > SIGNIFICANT:
            moves = "rises" if sign > 0 else "falls"
            words = f"{called} still {moves} from {before:.4g} to {after:.4g}"
        shown = round(100 * min(max(gain, -MOST), MOST), 2)
        what = f"gain of {called} over the same steps"
        evidence.append(Evidence(channel, what, shown, 100 * GAIN, "%"))
    return words, evidence[:3]
