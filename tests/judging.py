"""How exactly a rule judges: what a trace is to it, and whether an example stands at a limit."""

import importlib.util
from dataclasses import fields, replace
from pathlib import Path
from types import ModuleType

import numpy as np

from optdoctor.engine import examine
from optdoctor.findings import SEVERITIES, Outcome, Status
from optdoctor.rule import Limits, Rule
from optdoctor.trace import Trace


def judgement(outcome: Outcome) -> object:
    """What an outcome says in numbers: without words, and without what only repeats a fact."""
    return outcome.status, [
        (
            finding.severity,
            [evidence.observed for evidence in finding.evidence],
            [{knob: new for knob, (_, new) in t.changes.items()} for t in finding.treatments],
        )
        for finding in outcome.findings
    ]


def gravity(rule: Rule, trace: Trace) -> int:
    """How bad the rule finds the trace, 0 for clear; it must have looked."""
    outcome = examine(rule, trace)
    assert outcome.status in (Status.FOUND, Status.CLEAR), outcome.reason or outcome.missing
    return max((1 + SEVERITIES.index(f.severity) for f in outcome.findings), default=0)


def tips(rule: Rule, name: str, trace: Trace) -> bool:
    """Whether the verdict on the trace changes when the limit moves by the least amount."""
    value, here = getattr(rule.limits, name), gravity(rule, trace)
    up, down = np.nextafter(value, np.inf), np.nextafter(value, -np.inf)
    for near in (value + 1, value - 1) if isinstance(value, int) else (float(up), float(down)):
        moved = replace(rule, limits=replace(rule.limits, **{name: near}))
        if examine(moved, trace).status is not Status.CRASHED and gravity(moved, trace) != here:
            return True
    return False


def doses(rule: Rule) -> set[str]:
    """Fields of the limits that no judgement uses: other values change only the treatments."""

    def judged(limits: Limits) -> tuple[object, object]:
        found = examine(replace(rule, limits=limits), rule.sick()).findings
        evidence = [[(e.observed, e.limit) for e in f.evidence] for f in found]
        return evidence, [[t.changes for t in f.treatments] for f in found]

    evidence, changes = judged(rule.limits)
    doubled = {f.name: 2 * getattr(rule.limits, f.name) for f in fields(rule.limits)}
    others = {name: judged(replace(rule.limits, **{name: v})) for name, v in doubled.items()}
    return {name for name, (e, c) in others.items() if e == evidence and c != changes}


def own_tests(rule: Rule) -> ModuleType:
    """The rule's own test module.

    It owes `AT_LIMIT`: {limit: (within, beyond)}, functions that make two neighbouring traces, one
    of them exactly at the limit; the second is judged graver.
    """
    path = Path(__file__).parent / "rules" / f"test_{rule.name.replace('-', '_')}.py"
    assert path.is_file(), f"{path} is missing"
    spec = importlib.util.spec_from_file_location(f"boundaries_in_{path.stem}", path)
    assert spec and spec.loader  # noqa: PT018 (for the type checker)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
