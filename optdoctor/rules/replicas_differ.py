"""Processes that train together hold other weights than the first of them.

## What it finds
Any difference, to the bit, between the weights that processes are to hold alike: those that a
DistributedDataParallel holds, or all where the loop tells `facts={"replicated": "yes"}`. Compared
after updates 1 to 8 and then 4 to each doubling. It is critical where copies are further apart than
`apart`; a note where they are nearer, and, until a symptom stands beside it, where the wrapper was
within `no_sync` at the update, or where only weights differ that no wrapper holds.
## Why it matters
Each process adds its gradient to the mean, taken at weights of its own, and applies the mean to
them. No copy is then trained by the gradient of its data. Nothing brings copies together again: the
wrapper sends weights once, when it is made. What is saved and evaluated is the first copy.
## What to do
Apart from update 1 on: weights are first compared after it, so compare learning rates first; then
load the checkpoint, seed and replace layers in all processes alike, before the model is wrapped.
Apart later: call the wrapper and not its module, let the last backward pass of an update be outside
of `no_sync`, step in all processes or in none, at one rate.
## When it is fine
Local SGD, DiLoCo and federated training let copies differ between their means: tell
`facts={"replicated": "no"}`. torch's hook for it is known, and nothing is compared then. Without a
wrapper and untold, nothing is compared either: experts, shards and seeds of a search differ on
purpose. Statistics of batch norms differ in any replicas and are not compared. Copies on unlike
devices, or with random rounding, may differ by rounding; `apart` is meant to pass that.
## Told apart from
`parameters-without-optimizer`: weights that nobody trains, in any process.
`accumulation-not-normalised`: gradients that all processes share, of another size than was meant.
"""

from dataclasses import dataclass

import numpy as np

from optdoctor import rule
from optdoctor.findings import Evidence, Finding, Severity, Treatment
from optdoctor.store import Series
from optdoctor.synthetic import make_trace, small_gpt
from optdoctor.trace import Trace

SOURCE = (
    "torch documentation of DistributedDataParallel: weights are sent when it is made and never"
    " again; gradients are averaged by passes through it"
)


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 1
    """One comparison tells."""
    apart: float = 1e-3
    """Root mean square of what two copies differ by, over that of the weights, up to which it may
    be rounding: that of float32 is 6e-8, and updates of a thousandth of the weights each, made in
    bfloat16, which rounds at 0.4 %, walk 4e-4 apart in ten thousand updates. It is reckoned, not
    measured."""


def check(trace: Trace, limits: Limits) -> list[Finding]:
    wrapped = _apart(trace.series["replicas_differ"])
    if wrapped is not None:
        return [_of_replicas(trace, wrapped, limits)]
    beside = trace.series.get("unwrapped_differ")
    found = None if beside is None else _apart(beside)
    return [] if found is None else [_of_others(trace, found)]


@dataclass(frozen=True, slots=True)
class _Apart:
    """A stretch of comparisons that found copies apart."""

    processes: int
    first: int
    last: int
    before: int
    """The last update after which they were found alike; 0 if they never were."""
    over: bool
    """Whether they are alike again."""


def _apart(series: Series) -> _Apart | None:
    ill = np.flatnonzero(series.high > 0)
    if not ill.size:
        return None
    return _Apart(
        processes=int(min(series.high[ill].max(), 1e9)),
        first=int(series.starts[ill[0]]),
        last=int(series.steps[ill[-1]]),
        before=int(series.steps[ill[0] - 1]) if ill[0] else 0,
        over=int(ill[-1]) < len(series.steps) - 1,
    )


def _of_replicas(trace: Trace, found: _Apart, limits: Limits) -> Finding:
    local, distance = trace.facts.get("replicated") == "local", _distance(trace)
    near = distance is not None and distance <= limits.apart
    if local or near:
        severity = Severity.NOTE
    else:
        known = distance is not None and not found.over
        severity = Severity.CRITICAL if known else Severity.WARN
    names = _names(trace)
    where = f" in {len(names)} of {len(trace.tensors)} tensors" if names else ""
    size = "" if distance is None else f" by {distance:.2g} of their size (limit {limits.apart:g})"
    evidence = [_evidence("replicas_differ", found)]
    if distance is not None:
        what = "what copies differ by, over their size"
        evidence.append(Evidence("replica_distance", what, distance, limits.apart, "times"))
    return Finding(
        severity=severity,
        awaits_symptom=local,
        summary=f"{_span(found)} weights of {_who(trace, found)} are not those of the first"
        f" process{where}{size}{_since(found)}{', made within no_sync' if local else ''}.",
        steps=(found.first, found.last),
        tensors=names,
        evidence=tuple(evidence),
        treatments=_treatments(found, local=local),
    )


def _of_others(trace: Trace, found: _Apart) -> Finding:
    names = _names(trace)
    return Finding(
        severity=Severity.NOTE,
        awaits_symptom=True,
        summary=f"{_span(found)} trained weights that no DistributedDataParallel holds, beside such"
        f" that one does, are others in {_who(trace, found)} than in the first process"
        f"{f' in {len(names)} tensors' if names else ''}{_since(found)}.",
        steps=(found.first, found.last),
        tensors=names,
        evidence=(_evidence("unwrapped_differ", found),),
        treatments=(
            Treatment(
                title="Wrap the whole model, so that the gradients of these weights are averaged"
                " too; if they are parts or experts of each process, leave them",
                basis="literature",
                source=SOURCE,
            ),
        ),
    )


def _treatments(found: _Apart, *, local: bool) -> tuple[Treatment, ...]:
    begin = Treatment(
        title="Load the checkpoint, seed and replace layers in all processes alike, before the"
        " model is wrapped",
        basis="literature",
        source=SOURCE,
    )
    passes = Treatment(
        title="Call the wrapper and not its module, and let the last backward pass of each update"
        " be outside of no_sync",
        basis="literature",
        source=SOURCE,
    )
    rates = Treatment(
        title="Compare learning rates and skipped updates of the processes: they must be the same",
        when="check",
        basis="heuristic",
        source="tests/live/test_replicas.py lets one process take another rate",
    )
    if local:
        return (passes,)
    return (passes, rates) if found.before else (rates, begin, passes)


def _distance(trace: Trace) -> float | None:
    """The largest that was found, None where none was."""
    series = trace.series.get("replica_distance")
    if series is None or not np.isfinite(series.high).any():
        return None
    largest = float(np.nanmax(np.where(np.isfinite(series.high), series.high, np.nan)))
    return largest if 0 <= largest < 1e9 else None


def _names(trace: Trace) -> tuple[str, ...]:
    """Tensors that differed in the last comparison told by tensor, furthest apart first."""
    series = trace.series.get("tensor_replica_distance")
    if series is None or not len(series.steps):
        return ()
    last = np.nan_to_num(series.values[-1], nan=0.0)
    order = np.argsort(-last, kind="stable")
    return tuple(trace.tensors[i].name for i in order if last[i] > 0)


def _span(found: _Apart) -> str:
    if found.first == found.last:
        return f"At step {found.first}"
    return f"From step {found.first} to {found.last}"


def _since(found: _Apart) -> str:
    told = f", alike until step {found.before}" if found.before else ""
    return f"{told}, alike again since" if found.over else told


def _who(trace: Trace, found: _Apart) -> str:
    ranks, size = trace.facts.get("replicas_apart"), trace.facts.get("world_size")
    of = f" of {size}" if type(size) is int and 0 < size < 1e9 else ""
    whose = f" (rank {ranks})" if isinstance(ranks, str) and ranks[:1].isdigit() else ""
    return f"{found.processes}{of} processes{whose}"


def _evidence(channel: str, found: _Apart) -> Evidence:
    what = "processes whose weights are not those of the first"
    return Evidence(channel, what, float(found.processes), 0.0, "processes")


def _run(apart: bool) -> Trace:
    """Two processes, the second of which leaves the first after update 7, or does not."""
    tensors, steps = small_gpt(), [*range(1, 9), 10, 12, 14, 16, 20, 24]
    differ = [float(apart and step > 7) for step in steps]
    if not apart:
        return make_trace(
            replicas_differ=differ,
            replicated="ddp",
            world_size=2,
            tensors=tensors,
            steps={"replicas_differ": steps},
        )
    late = [step for step in steps if step > 7]
    by_tensor = [[0.02 * step if i < 2 else 0.0 for i in range(len(tensors))] for step in late]
    return make_trace(
        replicas_differ=differ,
        replica_distance=[0.02 * step for step in late],
        tensor_replica_distance=by_tensor,
        replicated="ddp",
        replicas_apart="1",
        world_size=2,
        tensors=tensors,
        steps={
            "replicas_differ": steps,
            "replica_distance": late,
            "tensor_replica_distance": late,
        },
    )


RULE = rule.Rule(
    name="replicas-differ",
    needs=("replicas_differ",),
    uses=(
        "replica_distance",
        "replicas_apart",
        "replicated",
        "tensor_replica_distance",
        "unwrapped_differ",
        "world_size",
    ),
    explains=("divergence", "early-plateau", "loss-spike", "upward-drift"),
    mechanism=True,
    check=check,
    limits=Limits(),
    sick=lambda: _run(apart=True),
    healthy=lambda: _run(apart=False),
    doc=__doc__ or "",
)
