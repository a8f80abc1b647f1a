"""Whether rules find as much on other seeds: a permutation test by configuration."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
from judge import Judged

from optdoctor.rules import RULES

LEVEL = 0.01
ROUNDS = 2_000


def compared(ours: Sequence[Judged], other: Sequence[Judged]) -> Iterator[str]:
    """What the test says, after Holm over the rules that were ever found."""
    if not other:
        yield "Not measured: no run of other seeds is recorded."
        return
    values = {rule.name: _value(rule.name, ours, other) for rule in RULES}
    tested = sorted((p, name) for name, p in values.items() if p is not None)
    rejected = []
    for i, (p, name) in enumerate(tested):
        if p > LEVEL / (len(tested) - i):
            break
        rejected.append(f"{name} (p = {p:.4f})")
    yield (
        f"{len(ours)} runs against {len(other)} of other seeds: of {len(tested)} rules that were"
        f" found in either, {len(rejected)} have another rate at a level of 1 % after Holm"
        f"{': ' if rejected else ''}{', '.join(rejected)}; the smallest p is"
        f" {tested[0][0]:.3f} ({tested[0][1]})."
        if tested
        else "No rule was found in either."
    )


def _value(rule: str, ours: Sequence[Judged], other: Sequence[Judged]) -> float | None:
    """p of the difference of rates when whole configurations change sides; None where never found.

    A configuration that both bases have keeps its pair: its two rates are swapped.
    """
    a, b = _rates(rule, ours), _rates(rule, other)
    if not any(a.values()) and not any(b.values()):
        return None
    rng = np.random.default_rng(0)
    shared = sorted(a.keys() & b.keys())
    if shared:
        gaps = np.array([a[name] - b[name] for name in shared])
        if not gaps.any():
            return 1.0
        signs = rng.choice([-1, 1], (ROUNDS, len(gaps)))
        return float((1 + (np.abs(signs @ gaps) >= abs(gaps.sum()) - 1e-9).sum()) / (ROUNDS + 1))
    pooled, n = np.array([*a.values(), *b.values()]), len(a)
    seen = abs(pooled[:n].mean() - pooled[n:].mean())
    count = 0
    for _ in range(ROUNDS):
        rng.shuffle(pooled)
        count += abs(pooled[:n].mean() - pooled[n:].mean()) >= seen - 1e-12
    return (1 + count) / (ROUNDS + 1)


def _rates(rule: str, runs: Sequence[Judged]) -> dict[str, float]:
    """{configuration: share of its runs in which the rule was found}."""
    seen: dict[str, list[bool]] = defaultdict(list)
    for run in runs:
        seen[run.job.configuration].append(any(name == rule for name, _, _ in run.found))
    return {name: float(np.mean(several)) for name, several in seen.items()}
