"""Examines a trace with every rule; `attribution` tells which finding can be the cause of which.

A rule is handed only what it declared. A missing channel, an abstention and a crash are outcomes,
never exceptions; what a rule returns is checked before anyone sees it.
"""

import math
import re
import traceback
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

import numpy as np

from optdoctor.attribution import (
    causes,
    differential,
    explained_by,
    is_spared,
    raised,
    without_moot_treatments,
)
from optdoctor.channels import Axis, channel
from optdoctor.findings import (
    SEVERITIES,
    Abstain,
    Diagnosis,
    Finding,
    Outcome,
    Severity,
    Status,
    Verdict,
)
from optdoctor.knowledge.losses import NOT_FALLING, called, with_its_kind
from optdoctor.rule import Check, Rule
from optdoctor.rules import RULES
from optdoctor.settings import Settings
from optdoctor.trace import Trace, declares

LEAST_LOSSES = 30
"""Finite losses below which a run without findings is `unknown`."""
RENAMED = "in a log of text rename yours: `sed 's/NAME/loss/' LOG | optdoctor analyze -`"
"""How a user tells which of the names in a log is the loss."""
SKIPPED_ROWS, SKIPPED_SHARE = 30, 0.1
"""Skipped updates at the end of a run from which it is `unknown`: so many, or this share of its
steps. A scaler that found its scale skips one at a time."""
COVER = 0.4
"""Part of a run's steps that its samples must reach over for a word on what they show. Left to
itself the doctor samples at the latest when a run has grown by half; a sample that a device sends
one later still reaches over 1 / 1.5^2 = 0.44. Less is where it was told to look more rarely or had
to step back."""
UNSEEN = "tensors were not looked at in any step"
_TELLS_OF_UPDATES = ("loss", "grad_norm", "grad_norm_used", "lr", "loss_scale")


def diagnose(
    trace: Trace, rules: Collection[Rule] | None = None, settings: Settings | None = None
) -> Diagnosis:
    """Examines `trace` with `rules` (default: the whole registry) under `settings`.

    Raises:
        SettingsError: settings that name a rule or a limit that does not exist.
    """
    trace = with_its_kind(trace)
    settings = settings or Settings()
    chosen = settings.chosen(RULES if rules is None else rules)
    by_name = {rule.name: rule for rule in chosen}
    outcomes = {rule.name: examine(rule, trace) for rule in chosen}
    possible = explained_by(chosen)
    found = [finding for outcome in outcomes.values() for finding in outcome.findings]
    findings = raised(found, by_name, possible)
    outcomes = _holding(outcomes, findings)
    findings = [
        replace(finding, causes=differential(finding, possible, by_name, outcomes, trace))
        for finding in findings
    ]
    findings = [without_moot_treatments(finding, outcomes) for finding in findings]
    names = {finding.rule for finding in findings}

    def place(finding: Finding) -> tuple[object, ...]:
        """Of one severity, what a found cause explains tells less than that cause; so does a note
        that another found rule can bring about."""
        is_note = finding.severity is Severity.NOTE
        behind = bool(finding.causes.found)
        behind |= is_note and not names.isdisjoint(possible.get(finding.rule, ()))
        return (-SEVERITIES.index(finding.severity), behind, finding.steps, finding.rule)

    findings.sort(key=place)
    outcomes = _holding(outcomes, findings)
    verdict, reason = _verdict(findings, outcomes, trace)
    return Diagnosis(
        verdict=verdict,
        outcomes=outcomes,
        findings=tuple(findings),
        causes=causes(findings, by_name),
        reason=reason,
        origin=trace.origin,
    )


def ranked(diagnosis: Diagnosis) -> tuple[str, ...]:
    """Each found rule once, the best answer to what is wrong with the run first.

    Causes, then symptoms that nothing explains, then those that a cause explains, then notes: those
    that wait for a symptom before those that are information.
    """
    grave = [finding for finding in diagnosis.findings if finding.severity is not Severity.NOTE]
    answers = [cause.rule for cause in diagnosis.causes]
    answers += [finding.rule for finding in grave if not finding.causes.found]
    waiting = [finding for finding in diagnosis.findings if finding.awaits_symptom]
    answers += [finding.rule for finding in (*grave, *waiting, *diagnosis.findings)]
    return tuple(dict.fromkeys(answers))


def examine(rule: Rule, trace: Trace) -> Outcome:
    """What becomes of one rule on one trace."""
    if is_spared(rule, trace):
        return Outcome(Status.CLEAR)
    missing = tuple("|".join(n) for n in rule.needed if not any(trace.has(c) for c in n))
    if missing:
        return _of_log(rule, trace, missing)
    without = tuple(name for name in rule.uses if not trace.has(name))
    rows = {name: trace.series[name].rows for name in rule.needed_series(trace)}
    fewest = min(rows, key=lambda name: rows[name], default=None)
    if fewest is not None and rows[fewest] < rule.limits.rows:
        count = rows[fewest]
        reason = f"{count} row{'s'[: count != 1]} of {fewest}, needs {rule.limits.rows}"
        return Outcome(Status.ABSTAINED, reason=reason, without=without)
    return _ran(rule, rule.check, trace, without)


def _of_log(rule: Rule, trace: Trace, missing: tuple[str, ...]) -> Outcome:
    """What a rule finds that lacks channels: an illness that a log shows, else nothing was seen."""
    skipped = Outcome(Status.SKIPPED, missing=missing)
    if rule.on_log is None or trace.tensors or rule.on_log.lacks(trace):
        return skipped
    outcome = _ran(rule, rule.on_log.check, trace, missing)
    return outcome if outcome.status in (Status.FOUND, Status.CRASHED) else skipped


def _ran(rule: Rule, check: Check, trace: Trace, without: tuple[str, ...]) -> Outcome:
    """What one look of a rule comes to."""
    try:
        # Numbers of 1e300 overflow to infinity, which is the right answer and no mistake of a rule.
        with np.errstate(over="ignore"):
            result = check(trace.only(rule.declared), rule.limits)
        if isinstance(result, Abstain):
            return Outcome(Status.ABSTAINED, reason=result.reason, without=without)
        findings = tuple(_checked(finding, rule, trace) for finding in result)
    except Exception:
        return Outcome(Status.CRASHED, reason=_short_traceback(), without=without)
    if findings:
        return Outcome(Status.FOUND, findings=findings, without=without)
    if not rule.early and _ends_with_samples(rule, trace) and (unseen := _barely_sampled(trace)):
        return Outcome(Status.ABSTAINED, reason=unseen, without=without)
    return Outcome(Status.CLEAR, without=without)


def _ends_with_samples(rule: Rule, trace: Trace) -> bool:
    """Whether it needs what is measured at samples, and was not since the last."""
    needed = (name for name in rule.needed_series(trace) if channel(name).at_samples)
    return any(trace.series[name].steps[-1] <= trace.last_sample for name in needed)


def _barely_sampled(trace: Trace) -> str | None:
    """That nobody looked at tensors for most of a watched run; None where somebody did."""
    last, (first, end) = trace.last_sample, trace.steps
    if not trace.tensors or last - first + 1 >= COVER * (end - first + 1):
        return None
    of = f"tensors were last looked at in step {last:,} of {end:,}" if last else UNSEEN
    return f"{of}; interval= and overhead= of watch say how often they are"


def _holding(outcomes: Mapping[str, Outcome], findings: Iterable[Finding]) -> dict[str, Outcome]:
    """The outcomes with these findings, in this order."""
    findings = list(findings)
    return {
        name: replace(outcome, findings=tuple(f for f in findings if f.rule == name))
        for name, outcome in outcomes.items()
    }


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
    if unseen := _barely_sampled(trace):
        return unseen
    loss = trace.series["loss"]
    if (loss.low == 0).all() and (loss.high == 0).all():
        return "every loss is exactly 0, as a log prints where it hides NaN"
    if all(o.status not in (Status.FOUND, Status.CLEAR) for o in outcomes.values()):
        return f"none of {len(outcomes)} rules could look at it"
    kind = trace.facts.get("loss_kind")
    if kind == "unknown" and trace.reading is not None and not trace.tensors:  # not told so
        guessed = trace.reading.guessed
        what = "what these numbers mean" if guessed else "whether this is the loss"
        return f"{what} was guessed; a column or key named `loss` is judged; {RENAMED}"
    if kind == "unknown":
        return "nobody knows whether this loss should fall: its curve alone shows no health"
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
