"""What to do about a loss that stands still."""

from optdoctor.curves.level import Curve, Floats
from optdoctor.curves.shortfall import Spent
from optdoctor.curves.stillness import share_still
from optdoctor.findings import Safety, Treatment, When
from optdoctor.trace import Trace

MOSTLY = 0.5
"""Share of still weights beyond which the number format is what the treatment changes."""
HALF = ("bfloat16", "float16")
"""Number formats in which updates are lost that are none too small."""
TELLING = {
    "lr": "the learning rate (a schedule that has ended)",
    "num_classes": "the number of classes (a loss at its logarithm)",
    "update_ratio": "the size of the updates (weights that stand still)",
    "eval_loss": "an evaluation loss (a model that still learns)",
}
"""What a log may lack, and what it would tell."""


def _do(title: str, when: When, source: str, safety: Safety = "manual") -> Treatment:
    return Treatment(title=title, when=when, safety=safety, basis="heuristic", source=source)


TEN_BATCHES = _do(
    "Train on ten batches until their loss is near 0; if it does not get there, the model, the"
    " labels or the rate are at fault",
    "check",
    "whatever can learn can learn ten batches by heart",
)
OTHER_RATE = _do(
    "Run a few hundred steps with three times the rate and with a third: if the loss falls"
    " faster, it was the rate",
    "check",
    "a comparison of two runs that differ in one number",
)
_IN_FLOAT32 = _do(
    "Keep the weights and the optimizer's state in float32",
    "next",
    "the format loses what the updates would change",
)
_NOTHING_LEARNED = (
    _do("Stop the run: further steps cost as much and teach nothing", "now", "the loss", "safe"),
    _do(
        "Look at the labels, the trainable layers and the rate before a restart: one does not act",
        "next",
        "the weights or the loss did not move from where they were",
    ),
    TEN_BATCHES,
    OTHER_RATE,
)


def nothing_learned(trace: Trace) -> tuple[Treatment, ...]:
    """For a run that learned nothing: another thing where the number format holds the weights."""
    for name in ("update_unchanged", "moment2_saturated"):
        if name in trace.series and trace.facts.get("param_dtype") in HALF:
            _, share = share_still(trace, name)
            if share.size and sorted(share)[share.size // 2] > MOSTLY:
                return _IN_FLOAT32, OTHER_RATE
    return *_NOTHING_LEARNED, *record_next_time(trace)


def undecided(trace: Trace) -> tuple[Treatment, ...]:
    """For a loss that has converged or stalled."""
    return TEN_BATCHES, OTHER_RATE, *record_next_time(trace)


def record_next_time(trace: Trace) -> tuple[Treatment, ...]:
    """What the log lacks that would tell the causes apart; nothing where it has all."""
    lacking = [what for name, what in TELLING.items() if not trace.has(name)]
    if not lacking:
        return ()
    named = lacking[0] if len(lacking) == 1 else f"{', '.join(lacking[:-1])} and {lacking[-1]}"
    return (_do(f"Record next time {named}", "check", "what this log does not hold", "safe"),)


def another_schedule(line: Curve, rate: Floats, found: Spent) -> tuple[Treatment, ...]:
    """For progress that stopped with the rate."""
    before = found.row // 2
    again = (
        f"Set the learning rate to {rate[before]:.2g}, as at step {line.steps[before]}, and take"
        " the scheduler out, or it sets the rate back"
    )
    used = 100 * found.row / rate.size
    fit = (
        f"Give the scheduler all updates of the run: its rate was spent after {used:.0f} % of them"
    )
    return (
        _do(again, "now", "a rate that is spent moves nothing", "risky"),
        _do(fit, "next", "the same"),
        OTHER_RATE,
    )
