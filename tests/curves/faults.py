"""Faults put into a healthy run, with their dose and onset: what a rule of that name should say.

Doses are differences of log(loss + 5 % of the first losses), in which near-zero losses are tame, or
shares of the range for losses that turn negative. A fault that the run cannot have (no evaluations,
no norms, too little left to lose) is None.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from curves.runs import Floats, Run, time

Rng = np.random.Generator


@dataclass(frozen=True, eq=False)
class Sick:
    """A run with one fault."""

    run: Run
    truth: str
    """The rule that should name it."""
    kind: str
    """The variant of the fault."""
    dose: float
    onset: int
    """The first step of the fault."""
    without: Run
    """The same run before the fault was put in."""


def is_signed(run: Run) -> bool:
    """Whether the losses turn negative, so that they have no logarithm."""
    return bool(np.nanmin(run.loss) < 0)


def softening(run: Run) -> float:
    """What is added to losses before the logarithm: a twentieth of the first ones."""
    return 0.05 * float(np.nanmedian(run.loss[:3]))


def spread(run: Run) -> float:
    """The range of a signed run, which its doses are shares of."""
    low, high = np.quantile(run.clean, [0.05, 0.95])
    return float(high - low)


def raised(values: Floats, by: Floats, run: Run) -> Floats:
    """Losses at a level that is `by` higher. `run` is the one that doses are measured on."""
    if is_signed(run):
        return np.asarray(values + by * spread(run), np.float64)
    soft = softening(run)
    return np.asarray(np.where(by > 0, (values + soft) * np.exp(by) - soft, values * np.exp(by)))


def level(run: Run, values: Floats) -> Floats:
    """The scale on which doses are measured."""
    if is_signed(run):
        return np.asarray(values / spread(run), np.float64)
    return np.log(values + softening(run))


def moved(run: Run, by: Floats, of: Run | None = None, evaluations: bool = True) -> Run:
    """The run with `by` [n] added to the level of its loss, and of its evaluations.

    `of` is the run that doses are measured on, where that is another.
    """
    of = of or run
    changed = replace(run, loss=raised(run.loss, by, of), clean=raised(run.clean, by, of))
    if not evaluations:
        return changed
    return replace(changed, eval_loss=raised(run.eval_loss, by[run.eval_steps - 1], of))


def frozen(run: Run, at: int) -> Run:
    """The run whose trend stops at index `at`, with the noise that it has there."""
    late = np.arange(len(run)) >= at

    def stop(values: Floats, clean: Floats, late: NDArray[np.bool_]) -> Floats:
        if is_signed(run):
            return np.where(late, values + run.clean[at] - clean, values)
        return np.where(late, values * (run.clean[at] / clean), values)

    when = run.eval_steps - 1
    return replace(
        run,
        loss=stop(run.loss, run.clean, late),
        clean=stop(run.clean, run.clean, late),
        eval_loss=stop(run.eval_loss, run.clean[when], late[when]),
    )


def lost(run: Run, at: int) -> float:
    """How much further the level of the healthy run still falls after index `at`."""
    levels = level(run, run.clean)
    return float(levels[at] - levels[-max(len(run) // 20, 1) :].mean())


def bumped(run: Run, at: int, factor: float, rows: int = 1) -> Run:
    """The run with the gradient norms of `rows` rows from index `at` on multiplied."""
    if run.grad_norm is None:
        return run
    norm = run.grad_norm.copy()
    norm[at : at + rows] *= factor
    return replace(run, grad_norm=norm)


def _sick(run: Run, before: Run, truth: str, kind: str, dose: float, index: int) -> Sick:
    return Sick(run, truth, kind, float(dose), index + 1, before)


def _place(run: Run, rng: Rng, low: float = 0.2, high: float = 0.85) -> int:
    return int(rng.uniform(low, high) * len(run))


def spike(run: Run, rng: Rng, dose: float, rows: int, kind: str = "") -> Sick:
    """The loss stands `dose` higher for `rows` rows; the norm jumps with the first of them."""
    at = _place(run, rng)
    by = np.zeros(len(run))
    by[at : at + rows] = dose
    bump = float(np.exp(rng.uniform(1, 3)))
    changed = bumped(moved(run, by, evaluations=False), at, bump, min(rows, 2))
    return _sick(changed, run, "loss-spike", kind or f"spike of {rows}", dose, at)


def recovering_spike(run: Run, rng: Rng, dose: float) -> Sick:
    """The loss jumps and comes back over 5 to 30 rows."""
    at, tail = _place(run, rng), rng.uniform(2, 10)
    since = np.arange(len(run)) - at
    by = np.where(since >= 0, dose * np.exp(-np.maximum(since, 0) / tail), 0.0)
    changed = bumped(moved(run, by, evaluations=False), at, float(np.exp(rng.uniform(1, 3))), 2)
    return _sick(changed, run, "loss-spike", "recovering spike", dose, at)


def gradient_outlier(run: Run, rng: Rng, dose: float) -> Sick | None:
    """One gradient norm is `dose` times its own; the loss of that row may blip with it."""
    if run.grad_norm is None:
        return None
    at = _place(run, rng, 0.15, 0.9)
    blip = rng.uniform(0.05, 0.4) if rng.random() < 0.5 else 0.0
    by = np.zeros(len(run))
    by[at] = blip
    changed = bumped(moved(run, by, evaluations=False), at, dose)
    kind = "outlier with a blip" if blip else "outlier alone"
    return _sick(changed, run, "gradient-outlier", kind, dose, at)


def divergence(run: Run, rng: Rng, dose: float) -> Sick:
    """The loss leaves its trend over 1 to 20 % of the run, rises by `dose` and stays."""
    at, width = _place(run, rng, 0.3, 0.75), rng.uniform(0.01, 0.2)
    ramp = np.clip((time(len(run)) - (at + 1) / len(run)) / width, 0, 1)
    changed = moved(frozen(run, at), dose * ramp, run)
    changed = bumped(changed, at, float(np.exp(rng.uniform(0.3, 1.5))), len(run))
    return _sick(changed, run, "divergence", "divergence", dose, at)


def partial_return(run: Run, rng: Rng, dose: float) -> Sick:
    """The loss jumps by two to three times `dose` and falls back to `dose` above its trend."""
    at, tail = _place(run, rng, 0.3, 0.7), rng.uniform(0.01, 0.05) * len(run)
    since = np.arange(len(run)) - at
    extra = rng.uniform(1, 2) * np.exp(-np.maximum(since, 0) / tail)
    changed = moved(frozen(run, at), np.where(since >= 0, dose * (1 + extra), 0.0), run)
    changed = bumped(changed, at, float(np.exp(rng.uniform(1, 3))), 3)
    return _sick(changed, run, "divergence", "rise that falls back", dose, at)


def upward_drift(run: Run, rng: Rng, dose: float) -> Sick:
    """The loss turns and creeps up by `dose` to the end of the run."""
    at = _place(run, rng, 0.3, 0.7)
    ramp = np.clip((np.arange(len(run)) - at) / (len(run) - 1 - at), 0, 1)
    changed = moved(frozen(run, at), dose * ramp, run)
    return _sick(changed, run, "upward-drift", "drift", dose, at)


def staircase(run: Run, rng: Rng, dose: float, kind: str) -> Sick:
    """The loss swings by `dose` with a fixed period of 8 rows or more, 5 cycles or more."""
    n, at = len(run), _place(run, rng, 0.05, 0.3)
    period = int(np.exp(rng.uniform(np.log(8), np.log(max((n - at) / 6, 9)))))
    if run.epoch_rows and abs(period / run.epoch_rows - 1) < 0.1:
        period = max(int(period * 0.7), 6)
    since = np.arange(n) - at
    part = (since % period) / period
    wave = {
        "saw": 1 - part,  # jumps up and comes down
        "spike train": (since % period < max(period // 12, 1)).astype(np.float64),
        "sine": (1 - np.cos(2 * np.pi * part)) / 2,
    }[kind]
    by = np.where(since >= 0, dose * wave, 0.0)
    changed = moved(run, by, evaluations=False)
    if changed.grad_norm is not None:
        changed = replace(changed, grad_norm=changed.grad_norm * np.exp(by))
    return _sick(changed, run, "staircase-oscillation", kind, dose, at)


def bimodal_gap(run: Run, rng: Rng, dose: float) -> Sick | None:
    """The evaluation loss turns and rises by `dose` to the end; training goes on falling."""
    if len(run.eval_loss) < 8:
        return None
    at = _place(run, rng, 0.3, 0.65)
    ramp = np.clip((np.arange(len(run)) - at) / (len(run) - 1 - at), 0, 1)
    fall = max(0.1, dose / 2) * rng.uniform(1, 3)
    changed = moved(run, -fall * ramp, evaluations=False)
    turned = moved(frozen(run, at), dose * ramp, run)
    changed = replace(changed, eval_loss=turned.eval_loss)
    return _sick(changed, run, "bimodal-gap", "overfitting", dose, at)


def evaluation_spike(run: Run, rng: Rng, dose: float) -> Sick | None:
    """One or two evaluations stand `dose` higher; training does not show it."""
    m = len(run.eval_loss)
    if m < 8:
        return None
    first = int(rng.integers(m // 4, m - 3))
    by = np.zeros(m)
    by[first : first + int(rng.integers(1, 3))] = dose
    changed = replace(run, eval_loss=raised(run.eval_loss, by, run))
    at = int(run.eval_steps[first]) - 1
    return _sick(changed, run, "loss-spike", "spike of evaluation", dose, at)


def early_plateau(run: Run, rng: Rng, least: float, spent: bool) -> Sick | None:
    """The trend stops at 15 to 50 % of the run, with the learning rate where `spent`.

    The dose is the progress lost: the fall that the healthy run still made.
    """
    at = _place(run, rng, 0.15, 0.5)
    dose = lost(run, at)
    if dose < least or (run.lr is None and spent):
        return None
    changed = frozen(run, at)
    if spent and run.lr is not None:
        rest = run.lr[at] * np.exp(-np.arange(len(run) - at) / (0.01 * len(run)))
        changed = replace(changed, lr=np.append(run.lr[:at], np.maximum(rest, run.lr[at] * 1e-4)))
    elif run.lr is not None:
        changed = replace(changed, lr=np.append(run.lr[:at], np.full(len(run) - at, run.lr[at])))
    kind = "stop with the rate" if spent else "stop"
    return _sick(changed, run, "early-plateau", kind, dose, at)


def flat_from_start(run: Run, rng: Rng) -> Sick | None:
    """The loss never leaves its first level."""
    dose = lost(run, 0)
    if dose < 0.15:
        return None
    return _sick(frozen(run, 0), run, "early-plateau", "flat from start", dose, 0)


def nan_pulse(run: Run, rng: Rng, forever: bool) -> Sick:
    """One loss is NaN, or every one from there on; the norm with it in half of lone ones."""
    at = _place(run, rng, 0.2, 0.9)
    rows = slice(at, len(run) if forever else at + 1)
    loss = run.loss.copy()
    loss[rows] = np.nan
    changed = replace(run, loss=loss)
    if run.grad_norm is not None and (forever or rng.random() < 0.5):
        norm = run.grad_norm.copy()
        norm[rows] = np.nan
        changed = replace(changed, grad_norm=norm)
    if forever:
        values = np.where(run.eval_steps > at, np.nan, run.eval_loss)
        changed = replace(changed, eval_loss=values)
    return _sick(changed, run, "nan-pulse", "NaN to the end" if forever else "one NaN", 1, at)


def nonfinite_gradient(run: Run, rng: Rng) -> Sick | None:
    """A tenth to a third of the gradient norms is infinite or NaN beside a finite loss."""
    if run.grad_norm is None:
        return None
    at = _place(run, rng, 0.2, 0.4)
    is_bad = (np.arange(len(run)) >= at) & (rng.random(len(run)) < rng.uniform(0.15, 0.4))
    is_bad[at] = True
    norm = np.where(is_bad, np.inf if rng.random() < 0.5 else np.nan, run.grad_norm)
    changed = replace(run, grad_norm=norm)
    return _sick(changed, run, "nonfinite-gradient", "gradients not finite", 1, at)


def loss_scale_collapse(run: Run, rng: Rng) -> Sick:
    """The scaler halves its scale at each step from the onset on, and every update is skipped."""
    n, at = len(run), _place(run, rng, 0.4, 0.85)
    since = np.maximum(np.arange(n) - at, 0)
    scale = np.maximum(65536.0 * 0.5 ** np.minimum(since, 120), 2.0**-100)
    changed = frozen(run, at)
    norm = run.grad_norm
    if norm is not None:
        norm = np.where(np.arange(n) >= at, np.nan, norm)
    skipped = (np.arange(n) >= at).astype(np.float64)
    changed = replace(changed, loss_scale=scale, step_skipped=skipped, grad_norm=norm)
    return _sick(changed, run, "loss-scale-collapse", "scale to nothing", 1, at)


Fault = Callable[[Run, Rng], Sick | None]


def _log_uniform(rng: Rng, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


FAULTS: Mapping[str, Fault] = MappingProxyType(
    {
        "spike of 1": lambda run, rng: spike(run, rng, _log_uniform(rng, 0.1, 1.6), 1),
        "spike of 4": lambda run, rng: spike(run, rng, _log_uniform(rng, 0.1, 1.6), 4),
        "spike of 15": lambda run, rng: spike(run, rng, _log_uniform(rng, 0.1, 1.6), 15),
        "x1.5 over 5": lambda run, rng: spike(run, rng, float(np.log(1.5)), 5, "x1.5 over 5"),
        "recovering spike": lambda run, rng: recovering_spike(
            run, rng, _log_uniform(rng, 0.2, 1.6)
        ),
        "spike of evaluation": lambda run, rng: evaluation_spike(
            run, rng, _log_uniform(rng, 0.2, 1.6)
        ),
        "gradient outlier": lambda run, rng: gradient_outlier(run, rng, 20.0),
        "divergence": lambda run, rng: divergence(run, rng, _log_uniform(rng, 0.3, 2.4)),
        "rise that falls back": lambda run, rng: partial_return(
            run, rng, _log_uniform(rng, 0.3, 1.0)
        ),
        "drift": lambda run, rng: upward_drift(run, rng, _log_uniform(rng, 0.05, 0.3)),
        "saw": lambda run, rng: staircase(run, rng, _log_uniform(rng, 0.05, 0.4), "saw"),
        "spike train": lambda run, rng: staircase(
            run, rng, _log_uniform(rng, 0.05, 0.4), "spike train"
        ),
        "sine": lambda run, rng: staircase(run, rng, _log_uniform(rng, 0.05, 0.4), "sine"),
        "overfitting": lambda run, rng: bimodal_gap(run, rng, _log_uniform(rng, 0.02, 0.4)),
        "stop": lambda run, rng: early_plateau(run, rng, 0.05, spent=False),
        "stop with the rate": lambda run, rng: early_plateau(run, rng, 0.05, spent=True),
        "flat from start": flat_from_start,
        "one NaN": lambda run, rng: nan_pulse(run, rng, forever=False),
        "NaN to the end": lambda run, rng: nan_pulse(run, rng, forever=True),
        "gradients not finite": nonfinite_gradient,
        "scale to nothing": loss_scale_collapse,
    }
)
"""{kind: (healthy run, generator) -> the sick run, None where the run cannot have it}. Doses are
drawn log-uniformly."""
