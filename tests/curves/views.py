"""What logs keep of a run: intervals, means, moving averages, epochs, few rows, few digits."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from curves.runs import Floats, Ints, Run
from optdoctor.synthetic import make_trace
from optdoctor.trace import Event, Trace

EPOCHS = 20
"""Rows of the epoch view."""

STEP_CHANNELS = ("lr", "grad_norm", "loss_scale", "step_skipped", "epoch")
CHANNELS = frozenset({*STEP_CHANNELS, "eval_loss"})
"""What a log may hold beside the loss."""


@dataclass(frozen=True)
class View:
    """Which steps a log tells of, and how it makes one row of those since the last."""

    steps: Callable[[int], Ints]
    """n -> the steps of the rows, the last of the steps that a row stands for."""
    means: bool = False
    smooth: float = 0.0
    """Share of the last row in an exponential moving average, taken at every step."""
    digits: int | None = None
    """Decimals printed."""
    by_epoch: bool = False
    """Rows are numbered 1, 2, 3, and evaluations stand at them."""


def every(k: int) -> Callable[[int], Ints]:
    """Each kth step."""
    return lambda n: np.arange(k, n + 1, k)


def parts(count: int) -> Callable[[int], Ints]:
    """So many rows of equal length."""
    return lambda n: np.unique(np.linspace(0, n, min(count, n) + 1)[1:].astype(np.int64))


VIEWS: Mapping[str, View] = MappingProxyType(
    {
        "raw": View(every(1)),
        "every 5": View(every(5)),
        "every 10": View(every(10)),
        "every 50": View(every(50)),
        "mean of 10": View(every(10), means=True),
        "EMA 0.9": View(every(1), smooth=0.9),
        "epochs": View(parts(EPOCHS), means=True, by_epoch=True),
    }
)
"""The views on which false alarms and misses are counted."""

SHORT_VIEWS: Mapping[str, View] = MappingProxyType(
    {
        "8 rows": View(parts(8), means=True, by_epoch=True),
        "12 rows": View(parts(12), means=True, by_epoch=True),
        "30 rows": View(parts(30), means=True, by_epoch=True),
        "20 single rows": View(parts(20)),
        "two digits": View(every(1), digits=2),
        "three digits, every 10": View(every(10), digits=3),
        "four digits, mean of 10": View(every(10), means=True, digits=4),
    }
)
"""Short and rounded logs."""

ALL_VIEWS: Mapping[str, View] = MappingProxyType({**VIEWS, **SHORT_VIEWS})


def seen(values: Floats, view: View) -> Floats:
    """[rows]: what the view keeps of `values` [n]."""
    steps = view.steps(len(values))
    if view.smooth:
        values = moving_average(values, view.smooth)
    if view.means:
        starts = np.append(0, steps[:-1])
        rows = np.add.reduceat(values[: steps[-1]], starts) / np.diff(np.append(0, steps))
    else:
        rows = values[steps - 1]
    return rows if view.digits is None else np.round(rows, view.digits)


def moving_average(values: Floats, share: float) -> Floats:
    """[n]: exponential, from the first value on; NaN stays in it."""
    mean, last = np.empty(len(values)), float(values[0])
    for i, value in enumerate(values.tolist()):
        last = share * last + (1 - share) * value
        mean[i] = last
    return mean


def differs(run: Run, other: Run, view: View) -> bool:
    """Whether a log of this view shows any difference between two runs of one length."""
    if not np.array_equal(seen(run.loss, view), seen(other.loss, view), equal_nan=True):
        return True
    plain = View(view.steps, means=view.means)
    for name in ("grad_norm", "loss_scale", "lr"):
        ours, theirs = getattr(run, name), getattr(other, name)
        if (ours is None) != (theirs is None):
            return True
        if ours is not None and not np.array_equal(
            seen(ours, plain), seen(theirs, plain), equal_nan=True
        ):
            return True
    return not np.array_equal(run.eval_loss, other.eval_loss, equal_nan=True)


def trace_of(run: Run, view: View | str = "raw", logged: Collection[str] = CHANNELS) -> Trace:
    """The trace that a log of this view would give, with those of `CHANNELS` in `logged`."""
    view = ALL_VIEWS[view] if isinstance(view, str) else view
    n = len(run)
    last = view.steps(n)
    at = np.arange(1, len(last) + 1) if view.by_epoch else last
    plain = View(view.steps, means=view.means)
    channels: dict[str, Any] = {"loss": seen(run.loss, view)}
    if run.lr is not None:
        channels["lr"] = run.lr[last - 1]
    for name in ("grad_norm", "loss_scale", "step_skipped"):
        values = getattr(run, name)
        if values is not None:
            means = name == "grad_norm" and view.means
            channels[name] = seen(_made(run, values), plain) if means else values[last - 1]
    if run.epoch_rows:
        channels["epoch"] = last / run.epoch_rows
    channels = {name: rows for name, rows in channels.items() if name in {"loss", *logged}}
    steps = dict.fromkeys(channels, at)
    if len(run.eval_loss) and "eval_loss" in logged:
        where, rows = _evaluations(run, last, view)
        channels["eval_loss"], steps["eval_loss"] = rows, where
    facts: dict[str, Any] = dict(run.facts)
    events = []
    if joint := int(facts.pop("resumed_from", 0)):
        joint = joint if not view.by_epoch else int(np.searchsorted(last, joint)) + 1
        facts["resumed_from"] = joint
        events.append(Event(min(joint + 1, int(at[-1])), "resume"))
    facts["step_source"] = "epochs" if view.by_epoch else "logged"
    facts["log_interval"] = int(np.median(np.diff(at))) if len(at) > 1 else 1
    if view.means and not view.by_epoch:
        facts["loss_window"] = facts["log_interval"]
    return make_trace({**facts, **channels}, steps=steps, events=events)


def _made(run: Run, values: Floats) -> Floats:
    """[n]: the value of the last update that was made; a mean takes in no update left out."""
    if run.step_skipped is None:
        return values
    made = np.where(run.step_skipped == 0, np.arange(len(values)), -1)
    newest = np.maximum.accumulate(made)
    return values[np.where(newest < 0, made.max(), newest)]


def _evaluations(run: Run, last: Ints, view: View) -> tuple[Ints, Floats]:
    """Steps and losses of the evaluations: of a log by epochs, the last one within each epoch."""
    kept = run.eval_steps <= last[-1]
    steps, values = run.eval_steps[kept], run.eval_loss[kept]
    if not view.by_epoch:
        return steps, values
    epoch = np.searchsorted(last, steps) + 1
    newest = np.append(epoch[1:] != epoch[:-1], True)
    return epoch[newest], values[newest]
