"""What to do about a loss that rises."""

import numpy as np

from optdoctor.curves.gradient_norm import gradient_norm
from optdoctor.curves.meanwhile import norm_times
from optdoctor.curves.rise import EXPLODED, is_certain
from optdoctor.findings import Knob, Severity, Treatment, When
from optdoctor.knowledge.rise_case import Case
from optdoctor.trace import Trace

NORM_MOVED = 0.2
"""Change of the norm of all weights, as a share, from which weight decay is named."""
TELLING = {
    "lr": "the learning rate (a schedule)",
    "grad_norm": "the gradient norm before clipping (an explosion)",
    "eval_loss": "an evaluation loss (harder data)",
}
"""What a log may lack, and what it would tell."""


def treatments(about: Case, severity: Severity, rule: str) -> tuple[Treatment, ...]:
    """Best first: where it is not certain that the model is damaged, the checks that tell."""
    trace, rise = about.trace, about.rise
    if rise.learns:
        title = "Find out why the first losses are low: a running mean from 0, a queue that fills"
        return (_check(title, "the loss falls after its peak, so that the run does learn"),)
    progress = about.made_progress and rise.onset > about.line.steps[2]
    replay = _check(
        f"Replay an early checkpoint, from before step {rise.onset}, on today's batches"
        if progress
        else "Evaluate the model as it was at the start on today's batches",
        "if it is worse today as well, the data changed and not the model",
    )
    told = (_back(about) if progress else _restart(trace)) + _decay(about)
    if severity is Severity.CRITICAL:
        told = [told[0], *_expected(about, rule), *told[1:], replay]
    elif about.is_damaged:
        told = [replay, *_expected(about, rule), *told]
    else:
        told = [*_expected(about, rule), replay, *told]
    if about.joint is not None:
        told.insert(
            0,
            _check(
                "Compare weights, optimizer state and data position before and after step "
                f"{about.joint}",
                "a resume that restores everything goes on at the level it left",
            ),
        )
    return (*told, *_record_next_time(trace))


def _expected(about: Case, rule: str) -> list[Treatment]:
    """That the loss may have had to rise, and how to say so; nothing makes it a hundredfold."""
    rise = about.rise
    if rise.height > EXPLODED:
        return []
    at = f"{'at' if rise.is_abrupt else 'near'} step {rise.onset}"
    how = 'facts={"loss_kind": "unknown"}' if about.trace.tensors else f"--ignore {rule}"
    title = (
        f"If data or objective were changed on purpose {at}, or this is the loss of a game or of a"
        f" target that moves, the rise is expected: say so by {how}"
    )
    source = "the loss is then measured against another task than before, and not the model"
    return [_check(title, source)]


def _do(title: str, when: When, source: str) -> Treatment:
    return Treatment(title=title, when=when, safety="risky", source=source)


def _check(title: str, source: str) -> Treatment:
    return Treatment(title=title, when="check", safety="safe", source=source)


def _restart(trace: Trace) -> list[Treatment]:
    """Where no progress was made there is nothing to go back to."""
    return [
        Treatment(
            title="Restart with a tenth of the rate",
            changes=_rate_times(trace, 0.1),
            when="next",
            source="the loss never fell clearly below its start: no checkpoint is worth keeping",
        ),
        _check(
            "Run the first updates again at several rates, each a third of the one before",
            "the highest rate at which the loss falls from the start shows itself there",
        ),
    ]


def _back(about: Case) -> list[Treatment]:
    rise, first = about.rise, about.rise.onset
    now = [
        _do(
            f"Go back to the last checkpoint from before step {first}, with half the rate",
            "now",
            "the best level was there; steps after it only raised the loss",
        ),
        _do(
            "Or halve the learning rate from the next step on, and see if the level falls",
            "now",
            "a level that follows the rate down shows that the rate was too high",
        ),
    ]
    if is_certain(rise, about.bounds):  # a lower rate does not bring back what an explosion broke
        now = now[:1]
    return [
        *now,
        Treatment(
            title="Plan half the peak rate, or a schedule that has decayed by this step",
            changes=_rate_times(about.trace, 0.5),
            when="next",
            source="a rate that was right early can be too high once the loss is low",
        ),
        _check(
            f"On a copy, replay the batches since step {first} with half the rate",
            "same data, other rate: a level that stays down acquits the data",
        ),
    ]


def _rate_times(trace: Trace, factor: float) -> dict[str, tuple[Knob, Knob]]:
    """The change of the peak rate by a factor, where the rate is known."""
    series = trace.series.get("lr")
    if series is None or not np.isfinite(series.values).all():
        return {}
    peak = float(f"{series.values.max():.6g}")
    new = float(f"{factor * peak:.3g}")
    return {"lr": (peak, new)} if 0 < new < peak else {}


def _decay(about: Case) -> list[Treatment]:
    """Weight decay, where there is one and the weights moved."""
    trace = about.trace
    decay, times = trace.facts.get("weight_decay"), norm_times(trace, about.before)
    if not isinstance(decay, int | float) or not decay > 0:
        return []
    if times is None or abs(times - 1) <= NORM_MOVED:
        return []
    title = f"Examine weight decay: the weights {'grew' if times > 1 else 'shrank'} to {times:.2f}"
    half = str(trace.facts.get("param_dtype")) in ("float16", "bfloat16")
    keep = "; keep master weights in float32, where a small decay is not rounded away"
    return [
        Treatment(
            title=f"{title} of their norm{keep if times > 1 and half else ''}",
            when="check",
            source="decay shrinks a weight by rate times decay a step, gradients grow it",
        )
    ]


def _record_next_time(trace: Trace) -> list[Treatment]:
    """What the log lacks that would tell the causes apart."""
    known = {"grad_norm"} if gradient_norm(trace) else set[str]()
    lacking = [what for name, what in TELLING.items() if name not in known and not trace.has(name)]
    if not lacking:
        return []
    named = lacking[0] if len(lacking) == 1 else f"{', '.join(lacking[:-1])} and {lacking[-1]}"
    return [_check(f"Record next time {named}", "what this log does not hold")]
