"""CPU time of the statistics of a curve on a million rows, beside numpy's own sort of as many.

First each statistic on whole series of a million rows; then the ten symptom rules on what a
Recorder keeps of as many, read from a log. Each is the least of its rounds, in one thread, and
numpy runs in turns with them: `python tests/benchmarks/curves.py` (half a minute).
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROUNDS = 5
ROWS = 1_000_000
EVALUATIONS = 1_000
LIMIT = 2.8
"""Times the sort: it takes 54 ms of the 150 that all statistics together may take."""


def least_ms(works: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """The least CPU time in milliseconds of each, over rounds in which they take turns."""
    least = dict.fromkeys(works, float("inf"))
    for _ in range(ROUNDS):
        for name, work in works.items():
            start = time.process_time()
            work()
            least[name] = min(least[name], 1000 * (time.process_time() - start))
    return least


def channels() -> dict[str, Any]:
    """{channel: values of every step} of a run whose losses and norms have heavy tails."""
    import numpy as np

    from optdoctor.synthetic import falling_loss

    rng = np.random.default_rng(0)
    at = np.arange(ROWS) / ROWS
    scale = np.full(ROWS, 2.0**16)
    skipped = np.zeros(ROWS)
    for fall in range(2_000, ROWS, 50_000):
        scale[fall : fall + 2_000] /= 2
        skipped[fall] = 1
    return {
        "loss": falling_loss(ROWS) * np.exp(0.05 * rng.standard_t(4, ROWS)),
        "lr": 3e-4 * np.minimum(at / 0.01, 0.5 + 0.5 * np.cos(np.pi * at)),
        "grad_norm": np.exp(0.2 * rng.standard_t(5, ROWS)),
        "loss_scale": scale,
        "step_skipped": skipped,
    }


def evaluations_of(losses: Any) -> Any:
    """Of a few evaluations, evenly over the run."""
    return 1.05 * losses[:: ROWS // EVALUATIONS]


def numpy_works(losses: Any) -> dict[str, Callable[[], object]]:
    """What numpy needs for the same rows, in their own order and shuffled."""
    import numpy as np

    shuffled = np.random.default_rng(1).permutation(losses)
    return {
        "np.sort": lambda: np.sort(shuffled),
        "np.median": lambda: np.median(shuffled),
        "np.log": lambda: np.log(losses),
        "np.diff": lambda: np.diff(losses),
    }


def statistics(values: Mapping[str, Any]) -> dict[str, Callable[[], object]]:
    """Each statistic on whole series; a curve is handed on, as by a rule."""
    import numpy as np

    from optdoctor.curves.chance import at_chance
    from optdoctor.curves.companions import restarts
    from optdoctor.curves.deviations import highest, norm_level, resolution, scores
    from optdoctor.curves.evaluations import evaluations
    from optdoctor.curves.flatness import (
        drops_at_the_end,
        flat_tail,
        from_the_start,
        is_coarse,
        is_solved,
    )
    from optdoctor.curves.level import curve
    from optdoctor.curves.masked import unmasked
    from optdoctor.curves.rates import is_search, rate_since, rates
    from optdoctor.curves.rise import gravest
    from optdoctor.curves.scaler import scaler
    from optdoctor.curves.shortfall import shortfall, spent
    from optdoctor.curves.slow_waves import even_rises
    from optdoctor.curves.spikes import LOSSES, NORMS, spikes_of
    from optdoctor.curves.wave import Least, Wave
    from optdoctor.curves.waves import wave_of
    from optdoctor.store import StepStore
    from optdoctor.trace import Trace

    def series(steps: Any, rows: Any) -> Any:
        store = StepStore(capacity=2 * ROWS)
        store.extend(steps, rows)
        return store.series()

    steps = np.arange(1, ROWS + 1)
    held = {name: series(steps, rows) for name, rows in values.items()}
    held["eval_loss"] = series(steps[:: ROWS // EVALUATIONS], evaluations_of(values["loss"]))
    trace = Trace(series=held)
    loss, norm = held["loss"], held["grad_norm"]
    line, peaks = curve(loss), curve(highest(loss))
    assert line is not None
    assert peaks is not None
    _, norms = norm_level(norm)
    rate = rates(trace, line)
    assert rate is not None
    jumps = np.arange(1_000, line.level.size, 5_000)
    wave = Wave(5_000.0, 6.0, 0.0, 0.1, 0.5, jumps, True, 5.0, -0.05, False)

    def flat() -> None:
        from_the_start(line), flat_tail(line, 0.02), drops_at_the_end(line, 0.0)
        is_coarse(line), is_solved(line)

    return {
        "curve": lambda: curve(loss),
        "gravest rise": lambda: gravest(line),
        "flatness": flat,
        "chance": lambda: at_chance(line, None, "nats", 0.02, 0.02),
        "shortfall": lambda: shortfall(line),
        "spent rate": lambda: spent(line, rate, 0.02),
        "rates": lambda: (
            rates(trace, line),
            is_search(trace, line),
            rate_since(trace, line, 9, 1),
        ),
        "restarts": lambda: restarts(rate, wave),
        "wave": lambda: wave_of(line),
        "slow waves": lambda: even_rises(line, Least()),
        "curve of peaks": lambda: curve(highest(loss)),
        "spikes": lambda: spikes_of(
            peaks.level, LOSSES, least_height=0.05, least_spread=resolution(peaks)
        ),
        "deviations of the loss": lambda: scores(peaks.level, 0.01),
        "level of the norm": lambda: norm_level(norm),
        "gradient outliers": lambda: spikes_of(norms, NORMS, least_height=1.0, least_spread=0.1),
        "deviations of the norm": lambda: scores(norms, 0.1),
        "evaluations": lambda: evaluations(held["eval_loss"], loss, line),
        "gradient scaler": lambda: scaler(trace),
        "masked zeros": lambda: unmasked(loss, norm),
    }


def rules(values: Mapping[str, Any], folder: Path) -> dict[str, Callable[[], object]]:
    """Each symptom rule on the trace of a log, and all of them."""
    from optdoctor.engine import diagnose
    from optdoctor.readers import read
    from optdoctor.rule import SYMPTOMS
    from optdoctor.rules import RULES

    names = ["loss", "lr", "grad_norm"]
    rows = zip(*(values[name].tolist() for name in names), strict=True)
    log = folder / "metrics.csv"
    evaluated = iter(evaluations_of(values["loss"]).tolist())
    with log.open("w") as file:
        file.write(",".join(["step", *names, "eval_loss"]) + "\n")
        for step, (loss, rate, norm) in enumerate(rows):
            told = f"{next(evaluated):.4f}" if step % (ROWS // EVALUATIONS) == 0 else ""
            file.write(f"{step + 1},{loss:.4f},{rate:.4g},{norm:.4f},{told}\n")
    trace = read(log)
    symptoms = [rule for rule in RULES if rule.name in SYMPTOMS]
    works: dict[str, Callable[[], object]] = {
        rule.name: lambda rule=rule: diagnose(trace, [rule])  # type: ignore[misc]
        for rule in symptoms
    }
    return {**works, f"the {len(symptoms)} symptom rules": lambda: diagnose(trace, symptoms)}


def table(title: str, least: Mapping[str, float], sort: float) -> None:
    """Prints milliseconds, and how many times the sort they are."""
    print(f"\n{title:28}{'ms CPU':>8}{'x sort':>8}")
    for name, ms in least.items():
        print(f"{name:28}{ms:8.1f}{ms / sort:8.2f}")


def main() -> int:
    """Measures and prints; 1 where the statistics take longer than they may."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    values = channels()
    beside = numpy_works(values["loss"])
    works = statistics(values)
    with tempfile.TemporaryDirectory() as folder:
        judged = rules(values, Path(folder))
        least = least_ms({**beside, **works, **judged})
    sort = least["np.sort"]
    table("numpy, a million rows", {name: least[name] for name in beside}, sort)
    table("statistics, a million rows", {name: least[name] for name in works}, sort)
    total = sum(least[name] for name in works)
    print(f"{'all statistics':28}{total:8.1f}{total / sort:8.2f}   at most {LIMIT:g} x sort")
    table("rules, a log of a million", {name: least[name] for name in judged}, sort)
    return 0 if total <= LIMIT * sort else 1


if __name__ == "__main__":
    sys.exit(main())
