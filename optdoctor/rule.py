"""What a rule is: one illness, the channels it reads, and the function that looks for it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from optdoctor.channels import Axis, channel
from optdoctor.findings import Abstain, Finding, Stage
from optdoctor.trace import Trace

SYMPTOMS = frozenset(
    {
        "staircase-oscillation",
        "early-plateau",
        "upward-drift",
        "nan-pulse",
        "bimodal-gap",
        "loss-spike",
        "divergence",
        "loss-scale-collapse",
        "gradient-outlier",
        "nonfinite-gradient",
    }
)
"""Names fixed for what a curve or a gradient shows."""

LARGE_STEPS = (
    "divergence",
    "early-plateau",
    "gradient-outlier",
    "loss-spike",
    "nan-pulse",
    "nonfinite-gradient",
    "step-too-large",
    "upward-drift",
)
"""Rules and symptoms that whatever makes steps too large can bring about."""

Check: TypeAlias = Callable[[Trace, Any], list[Finding] | Abstain]
"""(trace, limits) -> findings; an empty list means it looked and found nothing."""

SECTIONS = ("What it finds", "Why it matters", "What to do", "When it is fine", "Told apart from")
"""The headings that every rule's docstring has, in this order."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Numbers a rule judges by; each rule extends it, with a sentence under each field."""

    rows: int = 30
    """Least rows of every needed series; 0 for rules that decide before step 1."""


@dataclass(frozen=True, slots=True)
class LogForm:
    """How a rule looks at a log, of which no tensor is known, by what its steps and settings bound.

    What it finds is found; what it does not find is not examined, and the rule stays skipped.
    """

    needs: tuple[str, ...]
    """Channels without which it cannot look; `a|b` means any one."""
    check: Check

    def lacks(self, trace: Trace) -> bool:
        """Whether the log has not all that it needs."""
        return not all(any(map(trace.has, names)) for names in _alternatives(self.needs))


@dataclass(frozen=True, slots=True)
class Rule:
    """One illness."""

    name: str
    """Kebab case, the file's name; names the illness, not the remedy."""
    needs: tuple[str, ...]
    """Channels without which it is skipped; `a|b` means any one."""
    check: Check
    limits: Limits
    sick: Callable[[], Trace]
    healthy: Callable[[], Trace]
    doc: str
    uses: tuple[str, ...] = ()
    """Channels it reads where they exist; `metric:*` is every metric."""
    explains: tuple[str, ...] = ()
    """Rules and symptoms that it can bring about."""
    mechanism: bool = False
    """A counter of the fault itself, not of its consequence."""
    symptom_too: bool = False
    """A counter that another illness brings about as often as it stands for itself: it answers
    behind a counter that began no later, as statistics do."""
    onset: Literal["exact", "estimated"] = "exact"
    """Whether the first step of a finding is a fact or read off the shape of a curve, which knows
    it to a block of rows."""
    transient: bool = False
    """Of single updates: what begins when the momentum has forgotten the last of them is not their
    work."""
    early: bool = False
    """It judges what the first sample after a start shows, which no later one changes."""
    on_log: LogForm | None = None
    """How it looks where no tensor is known."""
    spares: tuple[str, ...] = ()
    """Families of optimizers that cannot have it, for want of what it happens in."""
    stage: Stage = "preview"

    @property
    def needed(self) -> tuple[tuple[str, ...], ...]:
        """`needs` as alternatives."""
        return _alternatives(self.needs)

    @property
    def declared(self) -> frozenset[str]:
        """Every channel that it may read."""
        needed = (*self.needed, *_alternatives(self.on_log.needs if self.on_log else ()))
        return frozenset(name for names in needed for name in names) | frozenset(self.uses)

    @property
    def static(self) -> bool:
        """Whether it decides before step 1: no needed channel varies over steps."""
        return all(channel(name).axis is Axis.RUN for names in self.needed for name in names)

    def needed_series(self, trace: Trace) -> list[str]:
        """Of each need that varies over steps, the alternative of which the trace has most rows."""
        there = (
            [n for n in names if channel(n).axis is not Axis.RUN and trace.has(n)]
            for names in self.needed
        )
        return [max(names, key=lambda name: trace.series[name].rows) for names in there if names]

    def section(self, heading: str) -> str:
        """The text under one heading of the docstring, "" where it lacks it."""
        _, found, rest = self.doc.partition(f"## {heading}\n")
        return rest.partition("\n## ")[0].strip() if found else ""

    @property
    def title(self) -> str:
        """The docstring's first line."""
        return self.doc.strip().partition("\n")[0]


def _alternatives(needs: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(need.split("|")) for need in needs)
