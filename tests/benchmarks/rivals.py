"""Side by side with three other tools: the same curves, one run, one table.

    pip install losslint==0.4.1 trainpulse==0.4.0 training-doctor==0.1.0
    python tests/benchmarks/rivals.py            # curves of development
    python tests/benchmarks/rivals.py --held     # those of the exam; is noted as a look at them

The logs are those of the exam (tests/curves/exam.py), each handed to every tool as it likes them,
with its own defaults. One rule for all: a false alarm is a warning or worse on a healthy run; a
fault counts as found at any severity, under any name that could mean it (`MEANS` says which, in the
rivals' favour); ours only under its own name. Slow: a rival looks at all that it has seen at
each step.
"""

import argparse
import datetime
import math
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
ROOT = Path(__file__).parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import numpy as np  # noqa: E402 (the path comes first)
from curves import exam  # noqa: E402
from curves.figures import Share, right_names  # noqa: E402
from rival_tools import ASK, CRASHED, MEANS, PINNED, heard, need_rivals  # noqa: E402

from optdoctor.engine import diagnose  # noqa: E402
from optdoctor.trace import Trace  # noqa: E402

OURS = "optdoctor"
TOOLS = (OURS, *PINNED)
KINDS = (
    "loss-spike",
    "gradient-outlier",
    "divergence",
    "upward-drift",
    "staircase-oscillation",
    "bimodal-gap",
    "early-plateau",
    "nan-pulse",
)
QUIET = 0.1
"""Share of false alarms below which a rival's misses are compared with ours."""
MINOR = frozenset({"info", "note"})


@dataclass(frozen=True)
class Said:
    """What each tool said of one log."""

    family: str
    like: str
    """"pretraining", "fine-tuning" or "other"."""
    is_recorded: bool
    view: str
    truth: str
    kind: str
    found: Mapping[str, frozenset[str]]
    """{tool: its names for what it found, at any severity}."""
    warned: Mapping[str, frozenset[str]]
    """{tool: those that are a warning, or worse}."""

    def is_hit(self, tool: str, *, warnings_only: bool = False) -> bool:
        names = (self.warned if warnings_only else self.found)[tool] - {CRASHED}
        if tool == OURS:
            return bool(names & right_names(self.truth, self.kind))
        meant = {kind for name in names for kind in MEANS[tool, name]}
        return bool(meant & right_names(self.truth))


def main() -> None:
    options = _options()
    need_rivals()
    tasks = list(
        exam.tasks(
            options.held,
            options.lengths,
            options.seeds,
            views=options.views,
            short_views=(),
        )
    )
    if options.limit:
        tasks = tasks[:: max(len(tasks) // options.limit, 1)]
    with multiprocessing.get_context("fork").Pool(options.processes) as pool:
        parts = pool.imap_unordered(partial(exam.sit, judge=asked), tasks, chunksize=1)
        everything = [said for part in parts for said in part if said is not None]
    for view in options.views:
        print(f"\n## {view}\n")
        print(page([said for said in everything if said.view == view]))
    if options.held:
        _note_the_look(everything, options)


def asked(trace: Trace, about: tuple[Any, ...]) -> Said | None:
    """What each tool says; nothing where the log does not show the fault, or none of `KINDS`."""
    family, group, _, _, view, truth, kind, _, is_visible = about
    if not is_visible or truth not in (*KINDS, exam.HEALTHY):
        return None
    answers = {
        OURS: [(f.rule, str(f.severity)) for f in diagnose(trace).findings],
        **{tool: heard(ask, trace) for tool, ask in ASK.items()},
    }
    return Said(
        family=family,
        like=exam.likeness(family, group),
        is_recorded=group != exam.MADE_UP,
        view=view,
        truth=truth,
        kind=kind,
        found={tool: frozenset(name for name, _ in said) for tool, said in answers.items()},
        warned={
            tool: frozenset(name for name, how in said if how not in MINOR)
            for tool, said in answers.items()
        },
    )


def page(everything: Collection[Said]) -> str:
    """The table, and what follows from it."""
    healthy = [said for said in everything if said.truth == exam.HEALTHY]
    sick = [said for said in everything if said.truth != exam.HEALTHY]
    groups = {
        "healthy, all: false alarms": healthy,
        "- made up": [said for said in healthy if not said.is_recorded],
        "- recorded": [said for said in healthy if said.is_recorded],
        "- like a pretraining": [said for said in healthy if said.like == "pretraining"],
        "- like a fine-tuning": [said for said in healthy if said.like == "fine-tuning"],
        "- other": [said for said in healthy if said.like not in ("pretraining", "fine-tuning")],
    }
    lines = ["| | logs | " + " | ".join(TOOLS) + " |", "|---" * (len(TOOLS) + 2) + "|"]
    for name, chosen in groups.items():
        lines.append(_line(name, len(chosen), [_alarms(chosen, tool) for tool in TOOLS]))
    lines.append(
        _line("healthy: anything said", len(healthy), [_spoke(healthy, tool) for tool in TOOLS])
    )
    for kind in KINDS:
        chosen = [said for said in sick if said.truth == kind]
        lines.append(_line(f"{kind}: missed", len(chosen), [_missed(chosen, t) for t in TOOLS]))
    lines.append(_line("all kinds: missed", len(sick), [_missed(sick, tool) for tool in TOOLS]))
    unwarned = [_missed(sick, tool, warnings_only=True) for tool in TOOLS]
    lines.append(_line("all kinds: not warned of", len(sick), unwarned))
    lines += ["", *_promised(sick), "", *_verdicts(healthy, sick)]
    return "\n".join(lines)


def _alarms(chosen: Collection[Said], tool: str) -> Share:
    return Share(sum(bool(said.warned[tool]) for said in chosen), len(chosen))


def _spoke(chosen: Collection[Said], tool: str) -> Share:
    return Share(sum(bool(said.found[tool]) for said in chosen), len(chosen))


def _missed(chosen: Collection[Said], tool: str, **how: bool) -> Share:
    return Share(sum(not said.is_hit(tool, **how) for said in chosen), len(chosen))


def _line(name: str, count: int, shares: Sequence[Share]) -> str:
    cells = [f"{s.count} ({s.value:.1%})" if s.of else "-" for s in shares]
    return f"| {name} | {count} | " + " | ".join(cells) + " |"


def _promised(sick: Collection[Said]) -> Iterator[str]:
    """Spikes x1.5 over 5 steps, and one norm 20 times its own."""
    for kind in exam.PROMISED:
        for like in ("pretraining", "fine-tuning"):
            chosen = [said for said in sick if said.kind == kind and said.like == like]
            found = ", ".join(
                f"{tool} {sum(said.is_hit(tool) for said in chosen)}" for tool in TOOLS
            )
            yield f"{kind}, like a {like}, found of {len(chosen)}: {found}."


def _verdicts(healthy: Collection[Said], sick: Collection[Said]) -> Iterator[str]:
    """How ours compares: false alarms with losslint's, misses with those of the quiet ones."""
    ours_only = sum(bool(s.warned[OURS]) > bool(s.warned["losslint"]) for s in healthy)
    theirs_only = sum(bool(s.warned["losslint"]) > bool(s.warned[OURS]) for s in healthy)
    for tool in PINNED:
        crashed = sum(CRASHED in said.found[tool] for said in (*healthy, *sick))
        if crashed:
            yield f"{tool} crashed on {crashed} of {len(healthy) + len(sick)} logs."
    yield (
        f"False alarms beside losslint: only ours {ours_only}, only its {theirs_only};"
        f" McNemar, exact, p = {mcnemar(ours_only, theirs_only):.3f};"
        f" Fisher p = {fisher(_alarms(healthy, OURS), _alarms(healthy, 'losslint')):.3f}."
    )
    for what, speaks, how in SCORINGS:
        yield ""
        yield f"{what}:"
        for tool in PINNED:
            share = speaks(healthy, tool)
            if share.value >= QUIET:
                yield f"- {tool} speaks on {share.value:.0%} of healthy logs: no comparison."
            else:
                yield f"- {_compared(sick, tool, how)}"


def _compared(sick: Collection[Said], tool: str, how: Mapping[str, bool]) -> str:
    """Our misses beside those of a rival that is quiet on healthy runs."""
    worse = []
    for kind in KINDS:
        chosen = [said for said in sick if said.truth == kind]
        ours, theirs = _missed(chosen, OURS, **how).count, _missed(chosen, tool, **how).count
        if ours > theirs:
            worse.append(f"{kind} ({ours} against {theirs})")
    ours, theirs = _missed(sick, OURS, **how).count, _missed(sick, tool, **how).count
    more = "more of ours on " + ", ".join(worse) if worse else "on no kind more of ours"
    return f"{tool} misses {theirs} in total, ours {ours}; {more}."


SCORINGS = (
    ("Alarms are warnings, a fault is found at any severity", _alarms, {}),
    ("Warnings alone, for both", _alarms, {"warnings_only": True}),
    ("Whatever is said, for both", _spoke, {}),
)
"""Notes may not be free: a tool that says a plateau in every long run misses none."""


def mcnemar(ours: int, theirs: int) -> float:
    """Two-sided exact p of the pairs on which only one of the two alarms (binomial, one half)."""
    n = ours + theirs
    tail = sum(math.comb(n, k) for k in range(min(ours, theirs) + 1)) / 2**n
    return min(1.0, 2 * tail)


def fisher(a: Share, b: Share) -> float:
    """Two-sided exact p that two shares are one: all tables no likelier than the one seen."""
    total, both = a.count + b.count, a.of + b.of

    def chance(x: int) -> float:
        return math.comb(a.of, x) * math.comb(b.of, total - x) / math.comb(both, total)

    seen = chance(a.count)
    possible = range(max(0, total - b.of), min(total, a.of) + 1)
    return min(1.0, sum(p for x in possible if (p := chance(x)) <= seen * (1 + 1e-9)))


def _note_the_look(everything: Collection[Said], options: argparse.Namespace) -> None:
    """One line for this look at the families held apart."""
    history = ROOT / "docs" / "validation-of-curves-history.md"
    command = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    raw = [said for said in everything if said.truth == exam.HEALTHY and said.view == "raw"]
    share, what = _alarms(raw, OURS), "a part" if options.limit else "all"
    cells = (f"{datetime.date.today()}", commit, f"{what}, beside the rivals")
    cells += (f"{share.count} of {share.of}", "", "", "")
    if not history.exists():
        from curves.tables import HISTORY_HEAD

        history.write_text(HISTORY_HEAD)
    with history.open("a") as file:
        file.write("| " + " | ".join(cells) + " |\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--held", action="store_true", help="the families held apart; is noted")
    parser.add_argument("--lengths", type=int, nargs="+", default=(400, 1000))
    parser.add_argument("--seeds", type=int, default=4, help="of each made-up family")
    parser.add_argument("--views", nargs="+", default=("raw",))
    parser.add_argument("--limit", type=int, default=0, help="so many runs only")
    parser.add_argument("--processes", type=int, default=2)
    return parser.parse_args()


if __name__ == "__main__":
    np.seterr(all="ignore")
    main()
