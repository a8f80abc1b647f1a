"""When a run is examined while it trains, and what of a diagnosis is news."""

from collections.abc import Collection
from time import perf_counter

from optdoctor.engine import diagnose, examine
from optdoctor.findings import SEVERITIES, Diagnosis, Finding, Notice
from optdoctor.live.announce import ROWS, carried, notices, ripe
from optdoctor.live.schedule import FLOOR_S, Schedule
from optdoctor.live.schedule import GROWTH as AGED
from optdoctor.rule import Rule
from optdoctor.trace import Trace

FIRST, GROWTH = 16, 1.125
"""Updates until the first examination of all rules, and their growth until the next."""
SOON = 1.1
"""The same where a statistic was found that may not be told yet: it is looked for again, whatever
the bill. A finding costs two such examinations."""
FREE_S = FLOOR_S / 2
"""What examinations may cost an update in any case, in seconds, in their own account: with updates
of 0.1 ms the samples of a run's youth leave nothing of the bill for ten thousand of them."""
AFTERMATH = 4
"""Updates after an alarm at which all rules look again, as far as an urgent bill goes; where it was
of a loss that is not finite, whatever the bill."""


class Examiner:
    """The rules at the bedside: remembers what was told."""

    def __init__(self, rules: Collection[Rule], free_s: float = FREE_S) -> None:
        self._rules = {rule.name: rule for rule in rules}
        self._mechanisms = [rule for rule in rules if rule.mechanism and not rule.static]
        several = [need for rule in self._mechanisms for need in (*rule.needs, *rule.uses)]
        self.looks_at = frozenset(name for need in several for name in need.split("|"))
        """Channels that the look at each sample needs."""
        self._exams: dict[str, int] = {}
        self._since: dict[str, int] = {}
        """The step of the first of the examinations in a row that found a rule."""
        self._next = FIRST
        self._must: int | None = None
        self._lost: list[int] = []
        """Steps at which it will be known what came after losses that were not finite: after the
        first since the last look, and after the newest."""
        self._last_lost = 0
        """The last step examined because of one."""
        self._unripe = False
        self._spent_s, self._free_s = 0.0, free_s
        self.announced: dict[str, Finding] = {}
        """The finding last told of, by rule."""
        self.diagnosis: Diagnosis = diagnose(Trace(), rules)

    def due(self, step: int) -> bool:
        """Whether all rules should look, if there is time."""
        return step >= self._next or self.overdue(step)

    def must(self, step: int) -> bool:
        """Whether they should not wait for more room than urgent work has.

        Because the course of an alarm should be known by now, a statistic waits to be told, or
        their own account has room.
        """
        alarmed = self._must is not None and step >= self._must
        return alarmed or self._unripe or self._spent_s <= self._free_s * step

    def overdue(self, step: int) -> bool:
        """Whether they have to without any room, because a loss was not finite.

        All that follows may be worthless. Losses that come and go so cost little: they are looked
        at once the run has grown by half since the last time.
        """
        return bool(self._lost) and step >= max(self._lost[0], AGED * self._last_lost)

    def may_look(self, step: int, bill: Schedule, elapsed_s: float) -> bool:
        """Whether those that are due may look now."""
        if bill.may_spend(elapsed_s) or self.overdue(step):
            return True
        return self.must(step) and bill.may_hurry(elapsed_s)

    def alarmed(self, step: int) -> None:
        """Something happened: all rules look again soon, when its course is known."""
        self._must = step + AFTERMATH
        self._next = min(self._next, self._must)

    def lost(self, step: int) -> None:
        """A loss was not finite: they look again when its course is known."""
        self._lost = [*self._lost[:1], step + AFTERMATH]

    def sees_news(self, trace: Trace) -> bool:
        """Whether a mechanism rule finds what was not told yet: the cheap look at each sample."""
        return any(
            self._is_news(finding)
            for rule in self._mechanisms
            for finding in examine(rule, trace).findings
        )

    def look(self, trace: Trace) -> None:
        """A diagnosis of which nothing is told or remembered: what it finds may be put right."""
        self.diagnosis = diagnose(trace, self._rules.values())

    def examine(self, trace: Trace, step: int) -> list[Notice]:
        """Lets all rules look; returns what appeared, worsened, ended or changed its name."""
        began, is_routine = perf_counter(), self._must is None and step >= self._next
        self.diagnosis = diagnose(trace, self._rules.values())
        found = {finding.rule for finding in self.diagnosis.findings}
        exams, since = carried(self._exams, found), carried(self._since, found)
        self._exams = {rule: exams.get(rule, 0) + 1 for rule in found}
        rows = trace.series["loss"].rows if "loss" in trace.series else 0
        self._since = {rule: since.get(rule, step) for rule in found}
        growth = {rule: step / max(first, 1) for rule, first in self._since.items()}
        may_speak = ripe(self._rules, self._exams, rows, growth)
        told = notices(self.announced, self.diagnosis, step, may_speak)
        for notice in told:
            self.announced.pop(notice.was, None)
            if notice.what == "ended":
                self.announced.pop(notice.finding.rule, None)
            else:
                self.announced[notice.finding.rule] = notice.finding
        # With fewer rows it has to wait anyway.
        self._unripe = rows >= ROWS and not all(may_speak.values())
        factor = SOON if self._unripe else GROWTH
        self._next, self._must = max(int(step * factor), step + FIRST), None
        self._last_lost = step if self.overdue(step) else self._last_lost
        self._lost = [known for known in self._lost if known > step]
        if is_routine:
            self._spent_s += perf_counter() - began
        return told

    def _is_news(self, finding: Finding) -> bool:
        known = self.announced.get(finding.rule)
        rank = SEVERITIES.index
        return known is None or rank(finding.severity) > rank(known.severity)
