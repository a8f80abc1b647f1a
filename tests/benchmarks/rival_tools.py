"""The other tools of `rivals.py`: how each is asked, and what its words may mean.

Each is handed a log as it likes it and keeps its own defaults. They are no dependency of anything.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any

from optdoctor.trace import Trace

PINNED = MappingProxyType({"losslint": "0.4.1", "trainpulse": "0.4.0", "training-doctor": "0.1.0"})
UNSTABLE = frozenset(
    {"loss-spike", "gradient-outlier", "divergence", "upward-drift", "staircase-oscillation"}
)
"""What "instability" or "rate too high" may mean."""
MEANS: Mapping[tuple[str, str], frozenset[str]] = MappingProxyType(
    {
        ("losslint", "nan_inf"): frozenset({"nan-pulse"}),
        ("losslint", "loss_spike"): UNSTABLE - {"upward-drift"},
        ("losslint", "divergence"): frozenset({"divergence", "upward-drift"}),
        ("losslint", "overfit_onset"): frozenset({"bimodal-gap"}),
        ("losslint", "stagnation"): frozenset({"early-plateau"}),
        ("losslint", "step_backtrack"): frozenset(),
        ("losslint", "parse"): frozenset(),
        ("trainpulse", "nan_detector"): frozenset({"nan-pulse"}),
        ("trainpulse", "loss_spike"): UNSTABLE - {"upward-drift"},
        ("trainpulse", "gradient"): UNSTABLE | {"early-plateau"},  # explosion, or vanishing
        ("trainpulse", "plateau"): frozenset({"early-plateau", "upward-drift"}),
        ("trainpulse", "learning_rate"): frozenset(),
        ("training-doctor", "lr_too_high"): UNSTABLE | {"nan-pulse"},
        ("training-doctor", "lr_too_low"): frozenset({"early-plateau"}),
        ("training-doctor", "plateau"): frozenset({"early-plateau"}),
        ("training-doctor", "overfitting"): frozenset({"bimodal-gap"}),
        ("training-doctor", "gradient_instability"): UNSTABLE | {"nan-pulse", "early-plateau"},
    }
)
"""(tool, what it says) -> the kinds of fault that this may mean. Generous."""
CRASHED = "crashed"
Rows = dict[str, float]


def need_rivals() -> None:
    """Ends with one sentence where a rival is missing, or is another release."""
    wanted = " ".join(f"{name}=={version}" for name, version in PINNED.items())
    for name, version in PINNED.items():
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            sys.exit(f"{name} is not installed: pip install {wanted}")
        if found != version:
            sys.exit(f"{name} is {found}, but {version} is compared here: pip install {wanted}")


def rows(trace: Trace, names: Sequence[str]) -> Iterator[tuple[int, Rows]]:
    """(step, {name: value}) in the order of the log."""
    by_step: dict[int, Rows] = {}
    for name in names:
        series = trace.series.get(name)
        if series is None:
            continue
        for step, value in zip(series.steps.tolist(), series.values.tolist(), strict=True):
            by_step.setdefault(int(step), {})[name] = float(value)
    yield from sorted(by_step.items())


def losslint(trace: Trace) -> list[tuple[str, str]]:
    """As `losslint check` on a file of JSON lines."""
    from losslint.checks import run_all_checks
    from losslint.parsing import RunLog

    log = list(rows(trace, ("loss", "eval_loss", "grad_norm", "lr")))
    names = {name for _, row in log for name in row}
    series = {name: [row.get(name) for _, row in log] for name in sorted(names)}
    findings = run_all_checks(RunLog([step for step, _ in log], series, Path("train.jsonl")))
    return [(finding.check, finding.severity) for finding in findings]


def trainpulse(trace: Trace) -> list[tuple[str, str]]:
    """As `trainpulse analyze`, which takes the loss, the norm and the rate."""
    from trainpulse import Monitor

    monitor, names = Monitor(), {"loss": "loss", "grad_norm": "grad_norm", "lr": "learning_rate"}
    for step, row in rows(trace, tuple(names)):
        for name, value in row.items():
            monitor.log(names[name], step, value)
    return [(alert.detector, alert.severity.value) for alert in monitor.alerts]


def training_doctor(trace: Trace) -> list[tuple[str, str]]:
    """As in a training loop that logs all that its README recommends, each row as it comes."""
    from training_doctor import Doctor

    doctor = Doctor()
    doctor._store.get_last = partial(_last, doctor._store)
    for step, row in rows(trace, ("loss", "lr", "grad_norm", "eval_loss")):
        if "loss" in row and "eval_loss" in trace.series:  # without this name it sees no gap
            row["train_loss"] = row["loss"]
        doctor.log(step, **row)
    return [(said.detector_name, said.severity.value) for said in doctor.diagnoses]


def _last(store: Any, metric: str, n: int = 1) -> list[Any]:
    """What its `get_last` gives while rows come in order, without a walk over all of them."""
    return store.get(metric)[-n:]


ASK = {"losslint": losslint, "trainpulse": trainpulse, "training-doctor": training_doctor}


def heard(ask: Callable[[Trace], list[tuple[str, str]]], trace: Trace) -> list[tuple[str, str]]:
    try:
        return ask(trace)
    except Exception:  # a tool that gives up on a log has said nothing of it
        return [(CRASHED, "info")]
