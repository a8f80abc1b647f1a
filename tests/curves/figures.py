"""Figures of an exam: false alarms, misses, and errors beside the baseline's, with intervals."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from curves.baseline import SILENT
from curves.exam import HEALTHY, Result
from curves.runs import Floats, Ints

SHAPES = (
    "nan-pulse",
    "divergence",
    "upward-drift",
    "staircase-oscillation",
    "loss-spike",
    "bimodal-gap",
    "early-plateau",
)
"""What the baseline knows too: errors are compared on these alone."""
OTHER_SYMPTOMS = ("gradient-outlier", "nonfinite-gradient", "loss-scale-collapse")
RISES = frozenset({"divergence", "upward-drift"})
"""Either name is right for both."""
SCHEDULE, SPENT = "stop with the rate", "learning-rate-spent"
"""A fault whose cause a rule of its own names, and that rule."""
BEYOND = frozenset({"spike of evaluation"})
"""Faults that the baseline does not look for."""


class Share(NamedTuple):
    """So many of so many."""

    count: int
    of: int

    @property
    def value(self) -> float:
        return self.count / self.of if self.of else float("nan")

    @property
    def interval(self) -> tuple[float, float]:
        """95 %, after Wilson."""
        if not self.of:
            return float("nan"), float("nan")
        z, n, p = 1.96, self.of, self.value
        middle, half = p + z * z / (2 * n), z * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        low, high = (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)
        return max(0.0, float(low)), min(1.0, float(high))


def right_names(truth: str, kind: str = "") -> frozenset[str]:
    """Rules that name the truth."""
    if kind == SCHEDULE:
        return frozenset({truth, SPENT})
    return RISES if truth in RISES else frozenset({truth})


def is_hit(result: Result, *, exact: bool = False, alarms_only: bool = False) -> bool:
    """Whether the right rule speaks, at any severity unless `alarms_only`."""
    names = frozenset({result.truth}) if exact else right_names(result.truth, result.kind)
    return bool(names & set(result.alarms if alarms_only else result.found))


def healthy(results: Collection[Result]) -> list[Result]:
    return [r for r in results if r.truth == HEALTHY]


def sick(results: Collection[Result], truths: Collection[str] = SHAPES) -> list[Result]:
    """Runs with one of those faults, of which the log shows anything."""
    return [r for r in results if r.truth in truths and r.is_visible]


def false_alarms(results: Collection[Result]) -> Share:
    chosen = healthy(results)
    return Share(sum(bool(r.alarms) for r in chosen), len(chosen))


def hits(results: Collection[Result], **how: bool) -> Share:
    return Share(sum(is_hit(r, **how) for r in results), len(results))


def factor_at(alarms: Sequence[float], allowed: float) -> float:
    """The smallest factor at which the share of baseline alarms is not above `allowed`."""
    ordered = np.sort(np.asarray(alarms, np.float64))[::-1]
    count = int(np.floor(allowed * len(ordered) + 1e-9))
    return float(np.nextafter(ordered[count], np.inf)) if count < len(ordered) else 0.0


class Errors(NamedTuple):
    """Ours beside the baseline's at no more false alarms than ours; ratios with their 95 %.

    Errors are means over shapes of means over kinds, however many runs of each there are.
    """

    count: int
    ours: float
    alarms_only: float
    """Where notes do not count as hits either."""
    ours_false: float
    native: float
    """The baseline with its own limits."""
    native_false: float
    factor: float
    """By which all its limits are widened."""
    baseline: float
    ratio: float
    low: float
    high: float
    tuned: float
    """The baseline with a factor for each shape, chosen in its favour on these runs."""
    tuned_ratio: float
    tuned_low: float
    tuned_high: float


def errors(results: Collection[Result], rng: np.random.Generator, draws: int = 200) -> Errors:
    """Errors on one view; intervals from families drawn anew, and curves within them."""
    well, ill = healthy(results), [r for r in sick(results) if r.kind not in BEYOND]
    names = sorted({r.family for r in well} | {r.family for r in ill})
    of_well = [[i for i, r in enumerate(well) if r.family == name] for name in names]
    of_ill = [[i for i, r in enumerate(ill) if r.family == name] for name in names]
    our_alarm = np.array([bool(r.alarms) for r in well])
    missed = np.array([not is_hit(r) for r in ill])
    false, reach, of_kind = _false(well), _reach(ill), _kinds_of(ill)

    def compare(w: Ints, i: Ints) -> tuple[float, float, float, float]:
        allowed, weight = float(our_alarm[w].mean()), weights(of_kind[i])
        factor = factor_at(false[w].max(axis=1), allowed)
        theirs = float(weight @ (reach[i].max(axis=1) < factor))
        limits = tuned(false[w], reach[i], weight, int(allowed * len(w) + 1e-9))
        best = float(weight @ (reach[i] < limits).all(axis=1))
        return factor, theirs, best, float(weight @ missed[i])

    factor, theirs, best, ours = compare(np.arange(len(well)), np.arange(len(ill)))
    drawn = []
    for _ in range(draws):
        chosen = rng.integers(len(names), size=len(names))
        w, i = (_drawn(of, chosen, rng) for of in (of_well, of_ill))
        if not (len(w) and len(i)):
            continue  # with few families a draw may hold no sick run
        _, one, several, own = compare(w, i)
        drawn.append((own / max(one, 1e-9), own / max(several, 1e-9)))
    bounds = np.quantile(drawn or [(np.nan, np.nan)], [0.025, 0.975], axis=0)
    (low, tuned_low), (high, tuned_high) = bounds.tolist()
    weight = weights(of_kind)
    return Errors(
        count=len(ill),
        ours=ours,
        alarms_only=float(weight @ [not is_hit(r, alarms_only=True) for r in ill]),
        ours_false=float(our_alarm.mean()),
        native=float(weight @ (reach.max(axis=1) < 1)),
        native_false=float((false.max(axis=1) >= 1).mean()),
        factor=factor,
        baseline=theirs,
        ratio=ours / max(theirs, 1e-9),
        low=low,
        high=high,
        tuned=best,
        tuned_ratio=ours / max(best, 1e-9),
        tuned_low=tuned_low,
        tuned_high=tuned_high,
    )


def _drawn(of: Sequence[Sequence[int]], families: Ints, rng: np.random.Generator) -> Ints:
    """Places of runs: as many of each drawn family as it has, with repetition."""
    drawn = [rng.choice(of[f], len(of[f])) for f in families if of[f]]
    return np.concatenate(drawn).astype(np.int64) if drawn else np.empty(0, np.int64)


def weights(kinds: Ints) -> Floats:
    """[runs]: each shape counts the same, and within it each kind.

    Args:
        kinds: [runs, 2] numbers of the shape and of the kind.
    """
    distinct, place, counts = np.unique(kinds, axis=0, return_inverse=True, return_counts=True)
    shapes, kinds_of_shape = np.unique(distinct[:, 0], return_counts=True)
    of_kind = kinds_of_shape[np.searchsorted(shapes, distinct[:, 0])] * counts * len(shapes)
    return np.asarray(1 / of_kind[place.ravel()], np.float64)


def _kinds_of(results: Sequence[Result]) -> Ints:
    names = sorted({r.kind for r in results})
    return np.array([(SHAPES.index(r.truth), names.index(r.kind)) for r in results])


def tuned(false: Floats, reach: Floats, weight: Floats, allowed: int) -> Floats:
    """[shapes]: factors at which at most `allowed` healthy runs alarm, chosen for the most hits.

    Greedy: from no false alarm on, whichever shape names most sick runs for one more.

    Args:
        false: [healthy runs, shapes] margins.
        reach: [sick runs, shapes] margins of the right names, 0 elsewhere.
        weight: [sick runs].
    """
    limits = np.nextafter(false.max(axis=0, initial=0), np.inf)
    while True:
        best, gain = None, -1.0
        for shape in range(false.shape[1]):
            margins = false[:, shape]
            next_alarm = margins[margins < limits[shape]].max(initial=0)
            lower = limits.copy()
            lower[shape] = np.nextafter(margins[margins < next_alarm].max(initial=0), np.inf)
            if not next_alarm or (false >= lower).any(axis=1).sum() > allowed:
                continue
            named = float(weight @ (reach >= lower).any(axis=1))
            if named > gain:
                best, gain = lower, named
        if best is None:
            return limits
        limits = best


def _false(results: Sequence[Result]) -> Floats:
    """[runs, shapes]: factors up to which the baseline alarms."""
    return np.array([[r.margins.get(name, 0.0) for name in SHAPES] for r in results])


def _reach(results: Sequence[Result]) -> Floats:
    """[runs, shapes]: factors up to which the baseline names the truth by each shape."""
    rows = []
    for r in results:
        said = dict(r.margins)
        said["early-plateau"] = max(said.get("early-plateau", 0.0), said.get(SILENT, 0.0))
        right = right_names(r.truth)
        rows.append([said.get(name, 0.0) if name in right else 0.0 for name in SHAPES])
    return np.array(rows)
