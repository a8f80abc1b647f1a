"""Updates smaller than half the spacing of the weights' number format change nothing.

## What it finds
The share of weights that have a gradient and stand where they stood after the update, over all
trained tensors in the number format of the weights, where that is bfloat16 or float16. It is found
where more than 70 % do so in three samples in a row or more, while the learning rate is above half
its peak and has stopped rising. Of optimizers other than Adam, AdamW and SGD the first 32 updates
are not judged: many warm up by themselves. A tensor counts only where rounding is the reason: what
did move moved less than one spacing, no farther than Adam steps, float32 would have kept the step,
and, where the optimizer's rule is known, less was made than it asked for.
## Why it matters
bfloat16 has 8 bits: between a number and the next lies 0.4 to 0.8 % of it, and an update below half
of that is rounded away, at every step anew. AdamW moves a weight by about one learning rate, so a
rate of 1e-5 moves a weight of 0.02 by 0.05 %. The loss falls slowly or not at all, and nothing else
looks wrong: gradients and moments are sound. In 4 of 4 small runs in which more than 90 % of the
weights stayed, the loss fell by less than a third of what it fell in float32.
## What to do
Keep the weights in float32 and run the forward pass in bfloat16 autocast. Where memory forbids it,
use an optimizer that rounds stochastically. A larger epsilon is not enough. Frameworks that keep
float32 copies of the weights in the optimizer do not have this fault.
## When it is fine
The end of a schedule: a rate near 0 loses every update and was meant to. Warm-up: the first rates
are small, or the first steps are (RAdam, rectified and schedule-free kinds, D-adaptation).
Stochastic rounding leaves most weights where they are too, but those that move go a whole spacing,
so that nothing is lost on average: such runs are told apart by it. Between 60 % and 70 % the
finding is a note.
## Told apart from
A frozen tensor, or a learning rate of 0: not counted, nothing was meant to move.
A gradient scaled to nearly nothing: float32 would lose that step too.
`second-moment-saturated`: the step itself is 0, before it is rounded.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optdoctor import rule
from optdoctor.curves.rows import spans
from optdoctor.findings import Abstain, Evidence, Finding, Severity, Treatment
from optdoctor.knowledge.precision import FORMATS
from optdoctor.knowledge.remedies import in_float32
from optdoctor.synthetic import falling_loss, make_trace, small_gpt
from optdoctor.trace import SAMPLED, Trace

COARSE = ("float16", "bfloat16")
STEADY = frozenset({"adam", "sgd"})
"""Families whose first steps are as large as later ones; who is not known is not excused."""
KEPT_BY_FLOAT32 = FORMATS["float32"].step / 2
"""Relative step below which float32 loses it too."""
TRIED = "tests/clinic/test_lost_update_trainings.py"

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 3
    """As many samples as have to agree."""
    share: float = 0.70
    """Largest share of unmoved weights that is worth a note only: 6 of 6 small bfloat16 runs above
    it ended at 1.07 to 1.35 times the loss of their float32 twins, 4 of 4 below 0.55 under 1.02."""
    noted: float = 0.60
    """Largest share that is not worth a note: healthy small bfloat16 runs stayed below 0.55."""
    total: float = 0.90
    """Largest share at which a run still learns: above it small runs fell by less than a third of
    what their twins fell."""
    passing: int = 2
    """Most samples in a row above a limit that pass: three in a row are no accident of a batch."""
    own_warmup: int = 32
    """First updates of optimizers other than Adam and SGD that are not judged, because such warm up
    by themselves: of 10 small bfloat16 runs that ended within 3 % of their float32 twins the last
    update above `share` was the 24th, of one that had lost half of its fall the 71st."""
    near_peak: float = 0.5
    """Share of its peak above which a learning rate is meant to move the weights."""
    kept: float = 0.875
    """Largest part of the updates asked for that is made where rounding to nearest loses some, in
    the median of the samples: small runs kept at most 0.75 of them in tensors of which 60 % stood
    still, rounding at random keeps all on average."""
    farthest: float = 1.5
    """Farthest, in learning rates, that the weights which move go (rms, in the median of the
    samples) under Adam kinds and rounding to nearest: a step is about one rate. Rounded at random a
    move is a whole spacing; small runs of both kinds, at 3 rates each, are told apart."""


def check(trace: Trace, limits: Limits) -> list[Finding] | Abstain:
    dtype = str(trace.facts["param_dtype"])
    if dtype not in FORMATS:
        return Abstain(f"weights in {dtype}: no known number format")
    if dtype not in COARSE:
        return []
    unmoved = trace.series["update_unchanged"]
    if _warms_up(trace) and not _warm(trace, limits).any():
        early = f"its first {limits.own_warmup} updates"
        return Abstain(f"no sample after {early}, when it may warm up")
    share = _share(trace, dtype, limits)  # [T]
    lasting = [
        _lasting(share > limits.total, limits),
        _lasting(share > limits.share, limits),
        _lasting(share > limits.noted, limits),
    ]
    if not lasting[2]:
        return []
    severity = Severity.CRITICAL if lasting[0] else Severity.WARN if lasting[1] else Severity.NOTE
    stretches = lasting[1] or lasting[2]
    first, last = stretches[0][0], stretches[-1][1]
    worst = max((row for a, b in stretches for row in range(a, b + 1)), key=lambda r: share[r])
    steps, limit = unmoved.steps, limits.share if lasting[1] else limits.noted
    what = f"of the {dtype} weights with a gradient unmoved at step"
    shown = [first] if worst == first else [first, worst]
    evidence = [
        Evidence(
            "update_unchanged", f"{what} {steps[row]}", float(share[row]) * 100, limit * 100, "%"
        )
        for row in shown
    ]
    by_tensor = np.where(_of_dtype(trace, dtype), np.asarray(unmoved.values[first], float), np.nan)
    return [
        Finding(
            severity=severity,
            summary=(
                f"{share[first] * 100:.3g} % of the {dtype} weights with a gradient stayed where"
                f" they were in the update of step {steps[first]} (limit {limit * 100:.2g} %)."
            ),
            steps=(int(steps[first]), int(steps[last])),
            tensors=trace.worst(by_tensor, by_tensor > limit),
            evidence=(*evidence, *_size(trace, dtype, int(steps[first]))),
            treatments=_treatments(dtype),
        )
    ]


def _share(trace: Trace, dtype: str, limits: Limits) -> Floats:
    """[T]: share of the weights whose update was rounded away; NaN where none was meant to move."""
    unmoved = _values(trace, "update_unchanged")
    rate = _values(trace, "tensor_lr")
    peak = np.fmax.reduce(rate, axis=0)  # [P]
    before = np.vstack([rate[:1], rate[:-1]])
    meant = (rate > limits.near_peak * peak) & ~(rate > before) & _warm(trace, limits)[:, None]
    judged = np.isfinite(unmoved) & _of_dtype(trace, dtype) & meant
    if "update_rms" in trace.series:  # of a large model, of some tensors at each sample
        judged &= np.isfinite(_values(trace, "update_rms"))
    elements = np.where(judged, trace.num_elements, 0)
    lost = np.where(_rounded_away(trace, dtype, unmoved, rate, limits), unmoved, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(judged, lost * elements, 0).sum(axis=1) / elements.sum(axis=1)
    return np.asarray(share, np.float64)


def _of_dtype(trace: Trace, dtype: str) -> Mask:
    return np.array([t.dtype in ("", dtype) and t.trainable for t in trace.tensors], bool)


def _warm(trace: Trace, limits: Limits) -> Mask:
    """[T]: samples after the planned warm-up, and after one of the optimizer's own."""
    steps, planned = trace.series["update_unchanged"].steps, trace.facts.get("warmup_steps")
    if not isinstance(planned, int) or not 0 < planned < 2**53:
        planned = 0
    if _warms_up(trace):
        planned = max(planned, limits.own_warmup)
    return np.asarray(steps > planned, bool)


def _warms_up(trace: Trace) -> bool:
    """Whether the first steps of the optimizer may be small by themselves."""
    return trace.facts.get("optimizer_family", "adam") not in STEADY


def _rounded_away(trace: Trace, dtype: str, unmoved: Floats, rate: Floats, limits: Limits) -> Mask:
    """[T, P]: whether rounding to nearest explains what stood still; what no sample of the run
    tells passes."""
    size, weights = _values(trace, "update_rms"), _values(trace, "param_rms")
    gradient = _values(trace, "grad_rms")
    family, eps = trace.facts.get("optimizer_family"), trace.facts.get("eps")
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        small = ~(_values(trace, "update_ratio") > FORMATS[dtype].step)
        # A way of rounding is that of a run: a single sample of it may look like the other.
        small &= ~(_usual(_values(trace, "update_realized")) > limits.kept)
        if family == "sgd":  # no bound: a few elements may have far larger gradients than the rest
            return small & ~(rate * gradient < KEPT_BY_FLOAT32 * weights)
        moved = size / np.sqrt(_most_moved(trace, unmoved)) / rate
        nearest = ~(_usual(moved) > limits.farthest)
        damped: float | Floats = 1.0
        if family == "adam" and isinstance(eps, float) and 0 < eps < np.inf:
            damped = gradient / (gradient + eps)
        return small & nearest & ~(rate * damped < KEPT_BY_FLOAT32 * weights)


def _usual(values: Floats) -> Floats:
    """[P]: the median over all samples, NaN where there is none."""
    usual = np.full(values.shape[1], np.nan)
    known = np.isfinite(values).any(axis=0)
    usual[known] = np.nanmedian(np.where(np.isfinite(values), values, np.nan)[:, known], axis=0)
    return usual


def _most_moved(trace: Trace, unmoved: Floats) -> Floats:
    """[T, P]: the largest share of moved weights that the sample allows, two standard errors up."""
    size = np.minimum(trace.num_elements, SAMPLED)
    moved = np.clip(1 - unmoved, 0, 1) * size
    return np.asarray((moved + 2 * np.sqrt(moved) + 2) / size, np.float64)


def _values(trace: Trace, name: str) -> Floats:
    """[T, P] at the samples of `update_unchanged`, NaN where a channel has none."""
    steps = trace.series["update_unchanged"].steps
    found = np.full((steps.size, len(trace.tensors)), np.nan)
    if name not in trace.series:
        return found
    series = trace.series[name]
    at = np.minimum(np.searchsorted(series.steps, steps), series.steps.size - 1)
    same = series.steps[at] == steps
    found[same] = series.values[at[same]]
    return np.where(np.isfinite(found), found, np.nan)


def _lasting(sick: Mask, limits: Limits) -> list[tuple[int, int]]:
    return [(a, b) for a, b in spans(sick) if b - a + 1 > limits.passing]


def _size(trace: Trace, dtype: str, step: int) -> tuple[Evidence, ...]:
    """What did move, beside the half spacing below which nothing does."""
    row = int(np.searchsorted(trace.series["update_unchanged"].steps, step))
    ratios = _values(trace, "update_ratio")[row][_of_dtype(trace, dtype)]
    ratios = ratios[np.isfinite(ratios)]
    if not ratios.size:
        return ()
    half = FORMATS[dtype].step / 2 * 100
    what = (
        f"median update over weights at step {step}: {dtype} needs {half:.2g} % or more to keep it"
    )
    return (Evidence("update_ratio", what, float(np.median(ratios)) * 100, half, "%"),)


def _treatments(dtype: str) -> tuple[Treatment, ...]:
    return (
        Treatment(
            title="Keep the weights in float32, with bfloat16 autocast for the forward pass",
            changes={"param_dtype": (dtype, "float32")},
            safety="safe",
            basis="measured",
            source=f"6 of 6 small bfloat16 runs recovered: {TRIED}",
            intervention=in_float32(dtype),
        ),
        Treatment(
            title="Where float32 does not fit: an optimizer that rounds stochastically",
            safety="manual",
            basis="measured",
            source=f"6 of 6 small bfloat16 runs came within 5 % of their float32 twins: {TRIED}",
            intervention="stochastic-rounding" if dtype == "bfloat16" else "",
        ),
        Treatment(
            title="Train a float32 twin on the same batches for 200 steps and compare the losses",
            when="check",
            safety="manual",
            basis="heuristic",
            source="nothing else differs between the two",
        ),
    )


def _run(share: float, rate: float) -> Trace:
    """20 samples of a bfloat16 run, every second step; in the first 3 more moves."""
    tensors = small_gpt("bfloat16")
    shape = (20, len(tensors))
    unmoved = np.full(shape, share)
    unmoved[:3] = share / 2
    samples = {
        "update_unchanged": unmoved,
        "tensor_lr": np.full(shape, rate),
        "update_rms": np.full(shape, rate * np.sqrt(1 - share)),
        "update_ratio": np.full(shape, rate * np.sqrt(1 - share) / 0.02),
        "param_rms": np.full(shape, 0.02),
        "grad_rms": np.full(shape, 1e-3),
    }
    return make_trace(
        samples,
        loss=falling_loss(40),
        param_dtype="bfloat16",
        optimizer_family="adam",
        eps=1e-8,
        tensors=tensors,
        steps=dict.fromkeys(samples, np.arange(1, 41, 2)),
    )


RULE = rule.Rule(
    name="update-lost-to-rounding",
    needs=("update_unchanged", "tensor_lr", "param_dtype"),
    uses=(
        "update_rms",
        "update_realized",
        "update_ratio",
        "param_rms",
        "grad_rms",
        "optimizer_family",
        "eps",
        "warmup_steps",
    ),
    explains=("early-plateau",),
    mechanism=True,
    check=check,
    limits=Limits(),
    sick=lambda: _run(0.96, 1e-5),
    healthy=lambda: _run(0.05, 1e-3),
    doc=__doc__ or "",
)
