"""Traces changed on purpose: shifted, cut, broken, with other facts; for the tests of rules."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from optdoctor.channels import channel
from optdoctor.findings import Finding
from optdoctor.synthetic import make_trace
from optdoctor.trace import Trace

Rows = tuple[NDArray[np.int64], NDArray[np.float64]]

DTYPES = ("float16", "bfloat16", "float32", "float64")
CATALOGUE: Mapping[str, tuple[Any, ...]] = {
    "eps": (1e-12, 1e-8, 1e-6, 1e-4, 1e-2),
    "beta1": (0.0, 0.9, 0.99),
    "beta2": (0.9, 0.95, 0.999, 0.9999),
    "param_dtype": DTYPES,
    "state_dtype": DTYPES,
    "math_dtype": DTYPES,
    "compute_dtype": DTYPES,
    "optimizer": ("Adam", "SGD"),
    "optimizer_family": ("adam", "sgd", "other"),
    "framework": ("huggingface", "lightning", "torch"),
    "loss_kind": ("falling", "reward", "adversarial", "diffusion", "unknown"),
    "loss_base": ("nats", "bits", "other"),
    "nan_filter": ("on", "off"),
    "state_loaded": ("yes", "no"),
}
"""Sound values of facts, the usual and the unusual."""
ANY_NUMBER = (0.0, 0.5, 1.0, 2.0, 100.0, 1e6)
NO_VALUES = (None, "", "garbage", 0, 0.0, -1, -1.0, True)
NO_NUMBERS = (np.inf, -np.inf, np.nan, 10**400)

_OF_TENSORS = {"param_dtype": "dtype", "state_dtype": "state_dtype", "math_dtype": "math_dtype"}


def catalogue(name: str) -> tuple[Any, ...]:
    """Sound values of one fact."""
    return CATALOGUE.get(name, ANY_NUMBER)


def nonsense(name: str) -> tuple[Any, ...]:
    """Values of one fact that a damaged log can hold."""
    return NO_VALUES if channel(name).unit in ("name", "dtype") else NO_VALUES + NO_NUMBERS


def with_facts(trace: Trace, **facts: Any) -> Trace:
    """The trace with these facts."""
    return replace(trace, facts={**trace.facts, **facts})


def treated(trace: Trace, changes: Mapping[str, tuple[Any, Any]]) -> Trace:
    """The trace with the new value of each knob, in its facts and its tensors."""
    new = {knob: after for knob, (_, after) in changes.items()}
    fields = {_OF_TENSORS[knob]: value for knob, value in new.items() if knob in _OF_TENSORS}
    tensors = tuple(replace(tensor, **fields) for tensor in trace.tensors)
    return replace(with_facts(trace, **new), tensors=tensors)


def rebuilt(trace: Trace, change: Callable[[str, Rows], Rows]) -> Trace:
    """The trace recorded anew from the changed rows of each channel; none are no channel."""
    channels, steps = {}, {}
    for name, series in trace.series.items():
        assert series.rows == len(series.steps), "examples are so short that no row is thinned"
        at, values = change(name, (series.steps, np.array(series.values, np.float64)))
        if len(at):
            channels[name], steps[name] = values, at
    fresh = make_trace(channels, steps=steps, tensors=trace.tensors)
    return replace(trace, series=fresh.series)


def shifted(trace: Trace, by: int) -> Trace:
    """The same run, begun `by` steps later."""

    def later(name: str, rows: Rows) -> Rows:
        steps, values = rows
        return steps + by, values + by * (channel(name).unit == "step")

    facts = {k: v + by if channel(k).unit == "step" else v for k, v in trace.facts.items()}
    events = tuple(replace(event, step=event.step + by) for event in trace.events)
    return replace(rebuilt(trace, later), facts=facts, events=events)


def until(trace: Trace, last: int) -> Trace:
    """The run as it was after step `last`."""
    events = tuple(event for event in trace.events if event.step <= last)
    cut = rebuilt(trace, lambda _, rows: (rows[0][rows[0] <= last], rows[1][rows[0] <= last]))
    return replace(cut, events=events)


def filled(trace: Trace, filling: float, share: float, only: str = "") -> Trace:
    """The trace with `filling` in that share of the rows of every channel, or of one."""
    rng = np.random.default_rng(0)

    def damaged(name: str, rows: Rows) -> Rows:
        steps, values = rows
        if only in ("", name):
            values[rng.random(len(steps)) < share] = filling
        return steps, values

    return rebuilt(trace, damaged)


def numbers(finding: Finding) -> Iterator[float]:
    """Every number of a finding that a report prints."""
    yield from finding.steps
    for evidence in finding.evidence:
        yield from (evidence.observed, evidence.limit)
    for treatment in finding.treatments:
        for change in treatment.changes.values():
            yield from (value for value in change if isinstance(value, int | float))


def texts(finding: Finding) -> Iterator[str]:
    """Every text of a finding that a report prints."""
    yield finding.summary
    yield from (evidence.what for evidence in finding.evidence)
    yield from (text for t in finding.treatments for text in (t.title, t.source))
