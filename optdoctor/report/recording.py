"""What to record next time, so that the causes that nobody could examine can be told apart."""

from collections.abc import Iterable
from typing import NamedTuple

from optdoctor.findings import Diagnosis, Finding, Severity
from optdoctor.knowledge.recording import HOW, TELLS, how
from optdoctor.report.slots import is_log
from optdoctor.report.wording import listed
from optdoctor.trace import Trace

MOST = 3
"""Channels that are named: a log that holds those decides most of what is open."""


class Record(NamedTuple):
    """One channel that the log lacks."""

    channel: str
    how: str
    tells: str
    """What it would tell of the first finding that it helps with; "" where only of its causes."""
    causes: tuple[str, ...]
    """Rules that could be examined with it."""

    @property
    def decides(self) -> str:
        """What it tells, in words that follow `tells`."""
        verb = "needs" if len(self.causes) == 1 else "need"
        return self.tells or f"what {listed(self.causes)} {verb}"

    def __str__(self) -> str:
        return f"{self.channel} ({self.how}) tells {self.decides}"


def to_record(diagnosis: Diagnosis, trace: Trace) -> tuple[Record, ...]:
    """At most `MOST` channels, those first that leave the fewest questions open.

    Of findings whose cause was not found; a note tells of no harm and asks for nothing. A channel
    counts once for each cause that could be examined with it alone, and once for each finding of
    which it tells something itself. Nothing for a run that was watched: it holds what there was.
    """
    if not is_log(trace):
        return ()
    framework = trace.facts.get("framework")
    open_ = [f for f in diagnosis.findings if f.severity is not Severity.NOTE]
    open_ = [f for f in open_ if not f.causes.found]
    found = []
    for channel in HOW:
        if channel in trace.series or (channel == "loss_scale" and not _may_scale(trace)):
            continue
        told = [tells for f in open_ if (tells := TELLS.get(f.rule, {}).get(channel))]
        causes = tuple(dict.fromkeys(name for f in open_ for name in _settled(f, channel)))
        if told or causes:
            row = Record(channel, how(channel, str(framework)), next(iter(told), ""), causes)
            found.append((len(told) + len(causes), row))
    places = list(dict.fromkeys(_in_order(open_)))
    found.sort(key=lambda pair: (-pair[0], places.index(pair[1].channel)))
    return tuple(row for _, row in found[:MOST])


def _may_scale(trace: Trace) -> bool:
    """Whether a gradient scaler may be at work: nothing but float16 needs one."""
    return trace.facts.get("compute_dtype") in (None, "float16")


def _settled(finding: Finding, channel: str) -> Iterable[str]:
    """The causes that lack that channel and nothing else."""
    for entry in finding.causes.not_examined:
        if entry.missing and all(channel in need.split("|") for need in entry.missing):
            yield entry.rule


def _in_order(findings: Iterable[Finding]) -> Iterable[str]:
    """Channels, the most telling of each finding first."""
    for finding in findings:
        yield from TELLS.get(finding.rule, {})
    yield from HOW
