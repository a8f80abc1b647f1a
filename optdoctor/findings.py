"""What an examination returns: findings with their numbers and treatments, in a diagnosis."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, TypeAlias

Knob: TypeAlias = float | int | str | bool | None

When = Literal["now", "next", "check"]
"""now: in this run; next: restart with it; check: an experiment that tells causes apart."""
Safety = Literal["safe", "risky", "manual"]
"""safe: it cannot make the run worse, as a look, or a format that holds more numbers; risky: it
changes the training itself; manual: it needs the user's judgement or data."""
Basis = Literal["measured", "literature", "heuristic"]
Stage = Literal["preview", "stable"]


class Severity(StrEnum):
    """How bad a finding is. Ordered only by `SEVERITIES`."""

    NOTE = "note"  # worth knowing
    WARN = "warn"  # it costs quality or compute
    CRITICAL = "critical"  # from this step on the run is lost or wasted


SEVERITIES = (Severity.NOTE, Severity.WARN, Severity.CRITICAL)
"""From harmless to fatal."""


class Verdict(StrEnum):
    """The one word for a run."""

    SICK = "sick"
    UNKNOWN = "unknown"
    HEALTHY = "healthy"


class Status(StrEnum):
    """What became of one rule."""

    FOUND = "found"
    CLEAR = "clear"
    ABSTAINED = "abstained"
    SKIPPED = "skipped"
    CRASHED = "crashed"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One number beside its limit."""

    channel: str
    what: str
    observed: float
    limit: float
    unit: str


@dataclass(frozen=True, slots=True)
class Treatment:
    """One thing to do."""

    title: str
    """Imperative."""
    changes: Mapping[str, tuple[Knob, Knob]] = field(default_factory=dict)
    """{knob: (old, new)}; a knob is a run channel, `lr` or `tensor_lr:<layer>`."""
    when: When = "next"
    safety: Safety = "manual"
    basis: Basis = "heuristic"
    source: str = ""
    intervention: str = ""
    """What does it while the run trains: a name for `watch(treat=[..])`, "" where nothing does."""


@dataclass(frozen=True, slots=True)
class NotExamined:
    """A possible cause that nobody could look at, and why."""

    rule: str
    missing: tuple[str, ...] = ()
    """Channels that were not measured."""
    unsampled: tuple[int, int] | None = None
    """The steps between which no sample lies."""
    reason: str | None = None
    """Why the rule could not tell: its abstention, or that it crashed."""


@dataclass(frozen=True, slots=True)
class Differential:
    """The rules that could explain a finding, by what is known of each."""

    found: tuple[str, ...] = ()
    clear: tuple[str, ...] = ()
    ruled_out: tuple[str, ...] = ()
    not_examined: tuple[NotExamined, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """One illness, with its numbers.

    `rule`, `stage`, `causes` and `raised_by` are filled in by the engine.
    """

    severity: Severity
    summary: str
    """One sentence with numbers."""
    steps: tuple[int, int]
    """First and last step; (0, 0) means before step 1."""
    evidence: tuple[Evidence, ...]
    treatments: tuple[Treatment, ...] = ()
    """Best first."""
    tensors: tuple[str, ...] = ()
    """Names, worst first."""
    period: int = 0
    """Steps after which it comes again; 0 where it does not, or nobody knows."""
    awaits_symptom: bool = False
    """A note that becomes a warning where a symptom that its rule can bring about is found and
    began no earlier: a counter that is not total proves no harm by itself."""
    raised_by: str = ""
    """The symptom for which the engine made a warning of this note."""
    rule: str = ""
    stage: Stage = "preview"
    causes: Differential = Differential()


@dataclass(frozen=True, slots=True)
class Abstain:
    """A rule's word that it looked and cannot tell."""

    reason: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one rule in one examination."""

    status: Status
    findings: tuple[Finding, ...] = ()
    reason: str | None = None
    """Why it abstained, or the traceback of the crash."""
    missing: tuple[str, ...] = ()
    """Channels for want of which it was skipped."""
    without: tuple[str, ...] = ()
    """Channels it would have used and ran without."""


@dataclass(frozen=True, slots=True)
class Cause:
    """A found rule that answers for the run, with the found ones that it can have brought about."""

    rule: str
    explains: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The result of one examination of one run."""

    verdict: Verdict
    outcomes: Mapping[str, Outcome]
    findings: tuple[Finding, ...]
    """In total order: severity, first step, name."""
    causes: tuple[Cause, ...]
    """Best answer first. Every rule with a finding above a note, other than a symptom that brings
    about nothing: what no other explains before what one does, then by the first step."""
    reason: str | None = None
    """Why the verdict is `unknown`."""
    origin: str = ""

    def with_status(self, status: Status) -> dict[str, Outcome]:
        """The outcomes of that status, by rule."""
        return {
            rule: outcome for rule, outcome in self.outcomes.items() if outcome.status is status
        }

    @property
    def worst(self) -> Severity | None:
        """The gravest severity found, or None."""
        found = [SEVERITIES.index(finding.severity) for finding in self.findings]
        return SEVERITIES[max(found)] if found else None


@dataclass(frozen=True, slots=True)
class Notice:
    """A change between two diagnoses of a run that is still training."""

    step: int
    """The update at which it was seen."""
    what: Literal["appeared", "worsened", "ended", "renamed"]
    finding: Finding
    was: str = ""
    """The rule that told of the same illness before, where it is renamed."""
