"""Examines a trace with every rule and tells which finding can be the cause of which.

A rule is handed only what it declared. A missing channel, an abstention and a crash are outcomes,
never exceptions; what a rule returns is checked before anyone sees it.
"""

import math
import re
import traceback
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

import numpy as np

from optdoctor.channels import Axis, channel
from optdoctor.findings import (
    SEVERITIES,
    Abstain,
    Cause,
    Diagnosis,
    Differential,
    Finding,
    NotExamined,
    Outcome,
    Severity,
    Status,
    Treatment,
    Verdict,
)
from optdoctor.knowledge.losses import NOT_FALLING, called
from optdoctor.rule import SYMPTOMS, Rule
from optdoctor.rules import RULES
from optdoctor.settings import Settings
from optdoctor.trace import Trace, declares

LEAST_LOSSES = 30
"""Finite losses below which a run without findings is `unknown`."""
SKIPPED_ROWS, SKIPPED_SHARE = 30, 0.1
"""Skipped updates at the end of a run from which it is `unknown`: so many, or this share of its
steps. A scaler that found its scale skips one at a time."""
_TELLS_OF_UPDATES = ("loss", "grad_norm", "grad_norm_used", "lr", "loss_scale")


def diagnose(
    trace: Trace, rules: Collection[Rule] | None = None, settings: Settings | None = None
) -> Diagnosis:
    """Examines `trace` with `rules` (default: the whole registry) under `settings`.

    Raises:
        SettingsError: settings that name a rule or a limit that does not exist.
    """
    settings = settings or Settings()
    chosen = settings.chosen(RULES if rules is None else rules)
    by_name = {rule.name: rule for rule in chosen}
    outcomes = {rule.name: examine(rule, trace) for rule in chosen}
    explained_by = _explained_by(chosen)
    findings = [
        replace(finding, causes=_differential(finding, explained_by, by_name, outcomes, trace))
        for outcome in outcomes.values()
        for finding in outcome.findings
    ]
    findings = [_without_moot_treatments(finding, outcomes) for finding in findings]
    findings.sort(key=lambda f: (-SEVERITIES.index(f.severity), f.steps, f.rule))
    outcomes = {
        name: replace(outcome, findings=tuple(f for f in findings if f.rule == name))
        for name, outcome in outcomes.items()
    }
    verdict, reason = _verdict(findings, outcomes, trace)
    return Diagnosis(
        verdict=verdict,
        outcomes=outcomes,
        findings=tuple(findings),
        causes=_causes(findings, by_name),
        reason=reason,
        origin=trace.origin,
    )


def examine(rule: Rule, trace: Trace) -> Outcome:
    """What becomes of one rule on one trace."""
    if _is_spared(rule, trace):
        return Outcome(Status.CLEAR)
    missing = tuple("|".join(n) for n in rule.needed if not any(trace.has(c) for c in n))
    if missing:
        return Outcome(Status.SKIPPED, missing=missing)
    without = tuple(name for name in rule.uses if not trace.has(name))
    rows = {name: trace.series[name].rows for name in rule.needed_series(trace)}
    fewest = min(rows, key=lambda name: rows[name], default=None)
    if fewest is not None and rows[fewest] < rule.limits.rows:
        count = rows[fewest]
        reason = f"{count} row{'s'[: count != 1]} of {fewest}, needs {rule.limits.rows}"
        return Outcome(Status.ABSTAINED, reason=reason, without=without)
    try:
        # Numbers of 1e300 overflow to infinity, which is the right answer and no mistake of a rule.
        with np.errstate(over="ignore"):
            result = rule.check(trace.only(rule.declared), rule.limits)
        if isinstance(result, Abstain):
            return Outcome(Status.ABSTAINED, reason=result.reason, without=without)
        findings = tuple(_checked(finding, rule, trace) for finding in result)
    except Exception:
        return Outcome(Status.CRASHED, reason=_short_traceback(), without=without)
    status = Status.FOUND if findings else Status.CLEAR
    return Outcome(status, findings=findings, without=without)


def _is_spared(rule: Rule, trace: Trace) -> bool:
    """Whether the optimizer lacks what the illness happens in: no channel is needed to tell."""
    return trace.facts.get("optimizer_family") in rule.spares


def _checked(finding: Finding, rule: Rule, trace: Trace) -> Finding:
    """The finding signed by its rule.

    Raises:
        ValueError: it holds what no report may show.
    """
    first, last = finding.steps
    start, end = trace.steps
    static = rule.static and finding.steps == (0, 0)
    if not static and not start <= first <= last <= end:
        raise ValueError(f"steps {finding.steps} outside the run's {start}-{end}")
    if not finding.evidence:
        raise ValueError("a finding without evidence")
    for evidence in finding.evidence:
        if not declares(rule.declared, evidence.channel):
            raise ValueError(f"evidence cites {evidence.channel!r}, which the rule did not declare")
        if not (math.isfinite(evidence.observed) and math.isfinite(evidence.limit)):
            raise ValueError(f"evidence of {evidence.channel} is not finite")
    for treatment in finding.treatments:
        for knob, change in treatment.changes.items():
            _check_change(knob, change)
    known = {tensor.name for tensor in trace.tensors}
    if unknown := [name for name in finding.tensors if name not in known]:
        raise ValueError(f"unknown tensors {unknown}")
    return replace(finding, rule=rule.name, stage=rule.stage)


def _check_change(knob: str, change: tuple[object, object]) -> None:
    old, new = change
    if old == new:
        raise ValueError(f"treatment leaves {knob} at {old}")
    if any(isinstance(value, float) and not math.isfinite(value) for value in change):
        raise ValueError(f"treatment of {knob} is not finite")
    if knob == "lr" or knob.startswith("tensor_lr:"):
        return  # rates vary over steps, and are knobs all the same
    if channel(knob).axis is not Axis.RUN:
        raise ValueError(f"{knob} is no knob")


def _explained_by(rules: Iterable[Rule]) -> dict[str, tuple[str, ...]]:
    """{name: the rules that can bring it about, directly or through others}."""
    direct = {rule.name: set(rule.explains) for rule in rules}

    def reached(name: str, seen: frozenset[str]) -> set[str]:
        below = direct.get(name, set()) - seen
        return below.union(*(reached(n, seen | below) for n in below)) if below else set()

    closure = {name: reached(name, frozenset({name})) for name in direct}
    named = {name for below in closure.values() for name in below}
    return {n: tuple(sorted(c for c, below in closure.items() if n in below)) for n in named}


def _differential(
    finding: Finding,
    explained_by: Mapping[str, tuple[str, ...]],
    rules: Mapping[str, Rule],
    outcomes: Mapping[str, Outcome],
    trace: Trace,
) -> Differential:
    onset = finding.steps[0]
    latest = onset
    if rules[finding.rule].onset == "estimated":
        latest += max(_reach(onset), finding.period)
    found, clear, ruled_out, not_examined = [], [], [], []
    for name in explained_by.get(finding.rule, ()):
        rule, outcome = rules[name], outcomes[name]
        gap = None if rule.static else _unsampled(rule, trace, onset)
        causes = [f for f in outcome.findings if _can_cause(f)]
        before = [f for f in causes if f.steps[0] <= latest]
        same_step = bool(before) and all(f.steps[0] == onset for f in before)
        if same_step and {name, finding.rule} <= SYMPTOMS:
            continue  # two faces of one step: neither is known to be the cause of the other
        if before:
            found.append(name)
        elif causes:
            continue  # it began later: neither a cause nor clear
        elif outcome.status is Status.SKIPPED:
            not_examined.append(NotExamined(name, missing=outcome.missing))
        elif outcome.status in (Status.ABSTAINED, Status.CRASHED):
            reason = outcome.reason if outcome.status is Status.ABSTAINED else "the rule crashed"
            not_examined.append(NotExamined(name, reason=reason))
        elif rule.static or _is_spared(rule, trace):
            ruled_out.append(name)
        elif gap:
            not_examined.append(NotExamined(name, unsampled=gap))
        else:
            clear.append(name)
    return Differential(tuple(found), tuple(clear), tuple(ruled_out), tuple(not_examined))


def _can_cause(finding: Finding) -> bool:
    """A note tells of no measured harm: nothing may be blamed on it."""
    return finding.severity is not Severity.NOTE


def _reach(onset: int) -> int:
    """Steps around `onset` within which two things began at the same time, as far as is known."""
    return max(64, onset // 32)


def _unsampled(rule: Rule, trace: Trace, onset: int) -> tuple[int, int] | None:
    """The gap around `onset` in which the rule had no row to look at, None if it had one."""
    for name in rule.needed_series(trace):
        steps = trace.series[name].steps
        before = steps[steps <= onset]
        if before.size and before[-1] >= onset - _reach(onset):
            continue
        after = steps[steps > onset]
        last = int(before[-1]) if before.size else trace.steps[0]
        return last, int(after[0]) if after.size else onset
    return None


def _without_moot_treatments(finding: Finding, outcomes: Mapping[str, Outcome]) -> Finding:
    """A symptom whose cause is found keeps only what differs and needs no telling apart."""
    if not finding.causes.found:
        return finding
    taken = {
        _key(treatment)
        for name in finding.causes.found
        for cause in outcomes[name].findings
        for treatment in cause.treatments
    }
    kept = tuple(t for t in finding.treatments if t.when != "check" and _key(t) not in taken)
    return replace(finding, treatments=kept)


def _key(treatment: Treatment) -> object:
    return tuple(sorted(treatment.changes.items())) or treatment.title


def _causes(findings: Iterable[Finding], rules: Mapping[str, Rule]) -> tuple[Cause, ...]:
    findings = list(findings)
    explains: dict[str, list[str]] = {}
    onset: dict[str, int] = {}
    is_root: dict[str, bool] = {}
    for finding in findings:
        rule = rules[finding.rule]
        if rule.explains and _can_cause(finding):
            explains.setdefault(rule.name, [])
            onset[rule.name] = min(onset.get(rule.name, finding.steps[0]), finding.steps[0])
            is_root[rule.name] = not finding.causes.found
    for finding in findings:
        for name in finding.causes.found:
            if finding.rule not in explains[name]:
                explains[name].append(finding.rule)
    ranked = sorted(
        explains,
        key=lambda n: (not is_root[n], not explains[n], not rules[n].mechanism, onset[n], n),
    )
    return tuple(Cause(name, tuple(sorted(explains[name]))) for name in ranked)


def _verdict(
    findings: Iterable[Finding], outcomes: Mapping[str, Outcome], trace: Trace
) -> tuple[Verdict, str | None]:
    if any(f.severity is not Severity.NOTE for f in findings):
        return Verdict.SICK, None
    reason = _why_unknown(outcomes, trace)
    return (Verdict.UNKNOWN, reason) if reason else (Verdict.HEALTHY, None)


def _why_unknown(outcomes: Mapping[str, Outcome], trace: Trace) -> str | None:
    if "loss" not in trace.series:
        how = "" if trace.reader else ": doctor.log(loss=...) records it"
        return f"no loss was recorded{how}"
    finite = trace.series["loss"].num_finite
    if finite < LEAST_LOSSES:
        losses = "1 finite loss is" if finite == 1 else f"{finite} finite losses are"
        return f"{losses} too few to call a run healthy: {LEAST_LOSSES} are needed"
    if skipped := _skipped_to_the_end(trace):
        return skipped
    loss = trace.series["loss"]
    if (loss.low == 0).all() and (loss.high == 0).all():
        return "every loss is exactly 0, as a log prints where it hides NaN"
    if all(o.status not in (Status.FOUND, Status.CLEAR) for o in outcomes.values()):
        return f"none of {len(outcomes)} rules could look at it"
    kind = trace.facts.get("loss_kind")
    if kind == "unknown":
        known = trace.reading is not None and not trace.reading.guessed
        what = "whether this is the loss" if known else "what these numbers mean"
        return f"{what} was guessed; a column or key named `loss` is judged"
    if kind in NOT_FALLING:
        return f"{called(str(kind))} need not fall in a good run: its curve alone shows no health"
    rises = outcomes.get("divergence")
    if rises is not None and rises.status is Status.ABSTAINED:
        return f"no divergence could be looked for ({rises.reason})"
    return None


def _skipped_to_the_end(trace: Trace) -> str | None:
    """That the newest updates were all skipped, where they are many."""
    if "step_skipped" not in trace.series:
        return None
    skipped = trace.series["step_skipped"]
    whole = skipped.low >= 1  # of a thinned row all
    made = skipped.steps[~whole].max(initial=0)
    starts, ends = skipped.starts[whole], skipped.steps[whole]
    for steps in (trace.series[n].steps for n in _TELLS_OF_UPDATES if n in trace.series):
        at = np.searchsorted(ends, steps)  # the first skipped stretch that is not over
        inside = np.append(starts, steps.max(initial=0) + 1)[at] <= steps
        made = max(made, steps[~inside].max(initial=0))
    late = whole & (skipped.starts > made)
    count = int(skipped.count[late].sum())
    first, last = trace.steps
    enough = min(SKIPPED_ROWS, SKIPPED_SHARE * (last - first + 1))
    if count < enough:
        return None
    since, until = int(skipped.starts[late][0]), int(skipped.steps[late][-1])
    is_each = count == until - since + 1
    updates = f"the last {count:,} updates" if is_each else f"the last {count:,} rows of updates"
    loss = trace.series["loss"]
    known = loss.steps[loss.bad < loss.count]
    if known.size and known[-1] < since:
        return f"{updates} were skipped: no loss since step {known[-1]}"
    return f"{updates} were skipped" + (f": none was made after step {made}" if made else "")


def _short_traceback() -> str:
    """The current exception's traceback, with paths cut to the part inside a package."""
    return re.sub(r'File "[^"]*?([^/\\"]+[/\\][^/\\"]+)"', r'File "\1"', traceback.format_exc())
