"""What the contract cannot know of `decay-shrinks-weights`."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from optdoctor.engine import examine
from optdoctor.findings import Finding, Severity, Status
from optdoctor.rules.decay_shrinks_weights import MEMORY, RULE
from optdoctor.synthetic import make_trace
from optdoctor.trace import TensorInfo, Trace

SAMPLES = 20
WEIGHTS = tuple(TensorInfo(f"h.{i}.weight", (8, 8), kind="mlp", weight_decay=1.0) for i in range(3))
FACTS = {"optimizer": "AdamW", "optimizer_family": "adam"}


def run(
    taken: Any = 0.25,
    *,
    part: Any = 1.0,
    decay: float = 1.0,
    size: Any = 1.0,
    tensors: tuple[TensorInfo, ...] = WEIGHTS,
    **facts: Any,
) -> Trace:
    """Samples in which decay takes that share of the weights, and is that part of the update."""
    shares, sizes = np.full(SAMPLES, taken) * 1.0, np.full(SAMPLES, size) * 1.0
    updates = shares * sizes / part
    channels = {
        **FACTS,
        "weight_decay": decay,
        "lr": shares / decay,
        "param_rms": np.repeat(sizes[:, None], len(tensors), axis=1),
        "update_rms": np.repeat(updates[:, None], len(tensors), axis=1),
        **facts,
    }
    return make_trace(channels, tensors=tensors)


def exactly(part: float) -> Trace:
    """Sizes in float64, so that the part of the update is that to the bit."""
    trace = run()
    fine = np.full((SAMPLES, 3), 1.0)
    series = {
        **trace.series,
        "param_rms": replace(trace.series["param_rms"], values=fine),
        "update_rms": replace(trace.series["update_rms"], values=fine.copy()),
    }
    rates = replace(trace.series["lr"], values=np.full(SAMPLES, part))
    return replace(trace, series={**series, "lr": rates})


def lasting(samples: int) -> Trace:
    shares = np.full(SAMPLES, 0.001)
    shares[5 : 5 + samples] = 0.25
    return run(shares)


def shrunk_to(size: float) -> Trace:
    """In float64."""
    sizes = np.full((SAMPLES, 3), size)
    sizes[0] = 1.0
    trace = run()
    fine = replace(trace.series["param_rms"], values=sizes)
    return replace(trace, series={**trace.series, "param_rms": fine})


def kept(trace: Trace) -> float:
    return only_finding(trace).evidence[2].observed


def shrunk_from(limit: float) -> float:
    """The smallest size whose measured share is not below the limit."""
    size = limit
    while kept(shrunk_to(size)) >= limit:
        size = float(np.nextafter(size, 0))
    while kept(shrunk_to(size)) < limit:
        size = float(np.nextafter(size, 1))
    return size


AT_LIMIT = {
    "share": (lambda: run(0.03), lambda: run(float(np.nextafter(0.03, 1)))),  # a note before
    "noted": (lambda: run(0.01), lambda: run(float(np.nextafter(0.01, 1)))),
    "part": (lambda: exactly(0.3), lambda: exactly(float(np.nextafter(0.3, 1)))),
    "lasting": (lambda: lasting(2), lambda: lasting(3)),
    "kept": (
        lambda: shrunk_to(shrunk_from(0.85)),
        lambda: shrunk_to(float(np.nextafter(shrunk_from(0.85), 0))),
    ),
}


def only_finding(trace: Trace) -> Finding:
    outcome = examine(RULE, trace)
    assert outcome.status is Status.FOUND, outcome.reason
    (finding,) = outcome.findings
    return finding


def status(trace: Trace) -> Status:
    return examine(RULE, trace).status


def test_the_memory_is_told_in_updates() -> None:
    finding = only_finding(run(0.25))
    assert finding.summary == (
        "Weight decay takes up to 25 % of the weights at each update (limit 3 %): they remember 4"
        " updates."
    )
    assert finding.severity is Severity.WARN
    assert finding.steps == (1, SAMPLES)


def test_the_decay_that_is_proposed_leaves_the_memory_that_it_names() -> None:
    (treatment,) = only_finding(run(0.25, decay=50.0)).treatments
    (old, new) = treatment.changes["weight_decay"]
    assert old == 50.0
    assert isinstance(new, float)
    assert 0.25 / 50.0 * new == pytest.approx(1 / MEMORY, rel=0.1)


def test_a_memory_of_a_hundred_updates_is_a_note_that_waits_for_a_symptom() -> None:
    finding = only_finding(run(0.015))
    assert (finding.severity, finding.awaits_symptom) == (Severity.NOTE, True)
    assert finding.summary.startswith(
        "Weight decay takes up to 1.5 % of the weights at each update (limit 1 %)"
    )
    grave = only_finding(run(0.04))
    assert (grave.severity, grave.awaits_symptom) == (Severity.WARN, False)
    assert status(run(0.015, part=0.1)) is Status.CLEAR


def test_shrunk_weights_leave_a_note_one() -> None:
    shrinking = 0.97 ** np.arange(SAMPLES)
    assert only_finding(run(0.015, size=shrinking)).severity is Severity.NOTE


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_usual_decay_is_silent_whatever_part_of_the_update_it_is(decay: float) -> None:
    assert status(run(1e-3 * 0.1, part=2.0)) is Status.CLEAR
    assert status(replace(run(), facts={**run().facts, "weight_decay": 0.0})) is Status.CLEAR


def test_large_updates_beside_which_decay_is_nothing_are_silent() -> None:
    assert status(run(0.25, part=0.1)) is Status.CLEAR


@pytest.mark.parametrize("name", ["Adam", "RMSprop", "NAdam"])
def test_optimizers_that_rescale_the_decay_are_not_judged(name: str) -> None:
    assert status(run(optimizer=name)) is Status.ABSTAINED


@pytest.mark.parametrize("family", ["lamb", "adafactor", "prodigy", "other"])
def test_families_of_which_the_share_is_not_known_are_not_judged(family: str) -> None:
    assert status(run(optimizer="X", optimizer_family=family)) is Status.ABSTAINED


def test_momentum_of_sgd_multiplies_what_decay_takes() -> None:
    sgd = {"optimizer": "SGD", "optimizer_family": "sgd"}
    taken = {"taken": 0.01, "part": 0.125}
    assert status(run(**taken, **sgd)) is Status.CLEAR
    finding = only_finding(run(**taken, **sgd, momentum=0.9))
    assert finding.evidence[0].observed == pytest.approx(10)
    assert "momentum" in finding.evidence[0].what
    assert status(run(**taken, momentum=0.9)) is Status.CLEAR


def test_only_decayed_tensors_are_asked() -> None:
    bare = (replace(WEIGHTS[0], weight_decay=0.0), replace(WEIGHTS[1], weight_decay=0.0))
    updates = np.full((SAMPLES, 3), 100.0)
    updates[:, 2] = 0.25
    trace = run(tensors=(*bare, WEIGHTS[2]))
    moved = make_trace(
        {**trace.facts, "lr": np.full(SAMPLES, 0.25), "param_rms": np.ones((SAMPLES, 3))},
        update_rms=updates,
        tensors=trace.tensors,
    )
    assert status(moved) is Status.FOUND
    undecided = tuple(replace(t, weight_decay=0.0) for t in WEIGHTS)
    assert status(replace(moved, tensors=undecided)) is Status.CLEAR


def test_it_is_critical_once_the_weights_have_shrunk() -> None:
    shrinking = 0.97 ** np.arange(SAMPLES)
    assert only_finding(run(size=shrinking)).severity is Severity.CRITICAL
    assert only_finding(run(size=1.0)).severity is Severity.WARN
