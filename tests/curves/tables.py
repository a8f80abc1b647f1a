"""The page of an exam, in Markdown."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import pairwise, product
from pathlib import Path

import numpy as np

from curves import figures
from curves.exam import HEALTHY, MADE_UP, PROMISED, Result, likeness
from curves.faults import FAULTS
from curves.figures import OTHER_SYMPTOMS, SHAPES, Share
from curves.views import SHORT_VIEWS, VIEWS

HISTORY_HEAD = """# Looks at the families held apart

Each run of `scripts/validate_curves.py --held` adds a line. A set that was looked at once becomes
development, and a fresh one takes its place: `tests/curves/opened.py` holds the families of the
first whole look, on 803b3a7, after which limits were moved; later lines are of other families.

| date | commit | runs | false alarms: raw | all views | worst family | error ratio by view |
|---|---|---|---|---|---|---|
"""
TITLES = {"development": "Development families", "held": "Families held apart"}
QUIET = 0.1
"""Noise of one row, in log(loss), above which a rise by half is lost in it: four times as much."""
PAGE_HEAD = """# How often the curve rules are wrong

Written by `scripts/validate_curves.py`. A false alarm is a warning or worse on a healthy run; a hit
is the right rule among the findings, notes included. Faults of which a log shows nothing (a spike
between two logged steps) are left out. Brackets hold 95 % intervals.
"""


def page(results: Sequence[Result]) -> str:
    """Every table."""
    parts = [
        _summary(results),
        "### False alarms by view\n\n" + _alarms_by_view(results),
        "### False alarms by family\n\n" + _alarms_by_family(results),
        "### By rule\n\n" + _by_rule(results),
        "### Hits by fault and view\n\n" + _hits_by_kind(results),
        "### Hits by dose, every row logged\n\n" + _hits_by_dose(results),
        "### Promised faults on likely runs, every row and the gradient norm logged\n\n"
        + _promised(results),
        "### Errors beside the baseline\n\n" + _errors(results),
        "### What else is said of sick runs, every row logged\n\n" + _confusion(results),
    ]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def put(path: Path, part: str, text: str) -> None:
    """Writes the part of the page, and keeps the other."""
    old = path.read_text() if path.exists() else PAGE_HEAD
    fresh = f"<!-- {part} -->\n## {TITLES[part]}\n\n{text}<!-- end of {part} -->\n"
    marked = re.compile(rf"<!-- {part} -->.*?<!-- end of {part} -->\n", re.DOTALL)
    if marked.search(old):
        path.write_text(marked.sub(lambda _: fresh, old))
    else:
        path.write_text(old.rstrip("\n") + "\n\n" + fresh)


def alarms(results: Collection[Result]) -> str:
    """Every false alarm, every crash, and every miss, one a line."""
    lines = [
        f"ALARM {r.family} n={r.n} seed={r.seed} view={r.view}: {r.alarms} {r.alarm}"
        for r in figures.healthy(results)
        if r.alarms
    ]
    for r in figures.sick(results, (*SHAPES, *OTHER_SYMPTOMS)):
        if not figures.is_hit(r):
            lines.append(
                f"MISS {r.family} n={r.n} seed={r.seed} view={r.view}: {r.kind} {r.dose:.2f}, "
                f"said {dict(r.found)}"
            )
    lines += [f"CRASH {r.family} {r.n} {r.seed} {r.view}: {c}" for r in results for c in r.crashed]
    return "\n".join(lines) + "\n"


def look(results: Sequence[Result]) -> str:
    """The rest of a line of the history."""
    main = [r for r in results if r.view in VIEWS]
    worst = max(_families(main), key=lambda item: item[1].value, default=("none", Share(0, 0)))
    ratios = ", ".join(
        f"{view} {e.ratio:.2f} ({e.low:.2f}-{e.high:.2f})"
        for view, e in _errors_by_view(results, draws=100)
    )
    raw = figures.false_alarms([r for r in main if r.view == "raw"])
    return (
        f"{_runs(results)} | {_share(raw)} | {_share(figures.false_alarms(main))} | "
        f"{worst[0]} {_share(worst[1])} | {ratios} |"
    )


def _summary(results: Sequence[Result]) -> str:
    well = {r.curve for r in figures.healthy(results)}
    recorded = {r.family for r in results if r.group != MADE_UP}
    main = [r for r in results if r.view in VIEWS]
    names = {r.family for r in figures.healthy(results)}
    crashed = sum(bool(r.crashed) for r in results)
    every = figures.false_alarms(main)
    curves = Counter(r.curve for r in figures.healthy(main) if r.alarms)
    return (
        f"{len(well)} healthy runs of {len(names)} families, {len(recorded & names)} of them "
        f"recorded, and {len({(r.curve, r.kind) for r in results if r.truth != HEALTHY})} sick "
        f"ones; {len(results)} logs. False alarms on {_share(every)} of the logs of healthy runs; "
        f"{len(curves)} runs have one in any of {len(VIEWS)} views. Rules that crashed: {crashed}."
    )


def _runs(results: Collection[Result]) -> str:
    return f"{len({r.curve for r in results})} runs"


def _share(share: Share) -> str:
    low, high = share.interval
    return f"{share.count}/{share.of} = {share.value:.1%} [{low:.1%}, {high:.1%}]"


def _families(results: Collection[Result]) -> list[tuple[str, Share]]:
    names = dict.fromkeys(r.family for r in figures.healthy(results))
    return [(n, figures.false_alarms([r for r in results if r.family == n])) for n in names]


def _table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def _views(results: Collection[Result]) -> list[str]:
    there = {r.view for r in results}
    return [view for view in (*VIEWS, *SHORT_VIEWS) if view in there]


def _alarms_by_view(results: Sequence[Result]) -> str:
    rows = []
    for view in _views(results):
        chosen = [r for r in figures.healthy(results) if r.view == view]
        notes = Share(sum(bool(r.found) and not r.alarms for r in chosen), len(chosen))
        rules = Counter(rule for r in chosen for rule in r.alarms)
        which = ", ".join(f"{rule} {count}" for rule, count in rules.most_common()) or "none"
        rows.append([view, _share(figures.false_alarms(chosen)), which, f"{notes.value:.0%}"])
    return _table(["view", "false alarms", "rules", "notes alone"], rows)


def _alarms_by_family(results: Sequence[Result]) -> str:
    views = _views(results)
    rows = []
    for name, share in _families([r for r in results if r.view in VIEWS]):
        counts = [
            sum(bool(r.alarms) for r in figures.healthy(results) if (r.family, r.view) == (name, v))
            for v in views
        ]
        curves = len({r.curve for r in figures.healthy(results) if r.family == name})
        rows.append([name, curves, f"{share.value:.1%}", *(count or "" for count in counts)])
    note = f"The share is over {', '.join(VIEWS)}; the columns count alarms.\n\n"
    return note + _table(["family", "runs", "alarms", *views], rows)


def _by_rule(results: Sequence[Result]) -> str:
    main = [r for r in results if r.view in VIEWS]
    well = figures.healthy(main)
    whole = {r.curve for r in main if r.kind not in (*PROMISED, HEALTHY)}  # with every fault
    spoken = sorted({rule for r in well for rule in r.alarms} | {*SHAPES, *OTHER_SYMPTOMS})
    rows = []
    for rule in spoken:
        ill = [r for r in figures.sick(main, {rule}) if r.curve in whole]
        raw = [r for r in ill if r.view == "raw"]
        alarms_of = Share(sum(rule in r.alarms for r in well), len(well))
        missed = [
            Share(len(chosen) - figures.hits(chosen).count, len(chosen)) for chosen in (raw, ill)
        ]
        exact = figures.hits(raw, exact=True)
        shares = [_share(m) if m.of else "" for m in missed]
        rows.append([rule, _share(alarms_of), *shares, f"{exact.value:.0%}" if exact.of else ""])
    head = [
        "rule",
        "false alarms, all views",
        "misses, raw",
        "misses, all views",
        "exact name, raw",
    ]
    return _table(head, rows)


def _hits_by_kind(results: Sequence[Result]) -> str:
    views, rows = _views([r for r in results if r.truth != HEALTHY]), []
    ill = figures.sick(results, (*SHAPES, *OTHER_SYMPTOMS))
    kinds = (*FAULTS, *sorted({r.kind for r in ill} - {*FAULTS}))
    for kind in kinds:
        cells: list[object] = []
        for view in views:
            chosen = [r for r in ill if (r.kind, r.view) == (kind, view)]
            warned = figures.hits(chosen, alarms_only=True)
            share = figures.hits(chosen)
            cells.append(f"{share.value:.2f} ({warned.value:.2f}) of {share.of}" if chosen else "")
        rows.append([kind, *cells])
    note = "The share named; in brackets, the share with a warning or worse.\n\n"
    return note + _table(["fault", *views], rows)


def _hits_by_dose(results: Sequence[Result]) -> str:
    rows = []
    for kind in FAULTS:
        chosen = [r for r in figures.sick(results) if r.kind == kind and r.view == "raw"]
        doses = np.array([r.dose for r in chosen])
        if len(doses) < 9 or np.ptp(doses) < 1e-9:
            continue
        edges = np.quantile(doses, [0, 0.25, 0.5, 0.75, 1])
        cells = []
        for low, high in pairwise(edges):
            inside = [r for r in chosen if low <= r.dose <= high]
            cells.append(f"{low:.2f}-{high:.2f}: {figures.hits(inside).value:.2f}")
        rows.append([kind, *cells])
    return _table(["fault", "lowest quarter", "second", "third", "highest"], rows)


def _promised(results: Sequence[Result]) -> str:
    rows = []
    raw = [r for r in figures.sick(results, (*SHAPES, *OTHER_SYMPTOMS)) if r.view == "raw"]
    for kind, like in product(PROMISED, ("pretraining", "fine-tuning", "from scratch", "other")):
        alike = [r for r in raw if r.kind == kind and likeness(r.family, r.group) == like]
        for what, is_quiet in ((f"up to {QUIET}", True), (f"above {QUIET}", False)):
            chosen = [r for r in alike if (r.noise <= QUIET) == is_quiet]
            if chosen:
                warned = figures.hits(chosen, alarms_only=True)
                missed = Counter(r.family for r in chosen if not figures.is_hit(r))
                where = ", ".join(f"{name} {count}" for name, count in missed.most_common())
                shares = _share(figures.hits(chosen)), _share(warned)
                rows.append([kind, like, what, *shares, where])
    return _table(["fault", "like", "noise of a row", "named", "warned", "missed in"], rows)


def _errors_by_view(results: Sequence[Result], draws: int) -> list[tuple[str, figures.Errors]]:
    found = []
    for view in VIEWS:
        chosen = [r for r in results if r.view == view]
        if figures.healthy(chosen) and figures.sick(chosen):
            found.append((view, figures.errors(chosen, np.random.default_rng(0), draws)))
    return found


def _errors(results: Sequence[Result]) -> str:
    rows = [
        [
            view,
            e.count,
            f"{e.ours_false:.1%}",
            f"{e.ours:.2f} ({e.alarms_only:.2f})",
            f"{e.baseline:.2f} (x{e.factor:.1f})",
            f"**{e.ratio:.2f}** [{e.low:.2f}, {e.high:.2f}] ({e.alarms_only / e.baseline:.2f})",
            f"{e.tuned:.2f}",
            f"**{e.tuned_ratio:.2f}** [{e.tuned_low:.2f}, {e.tuned_high:.2f}] "
            f"({e.alarms_only / e.tuned:.2f})",
            f"{e.native:.2f} at {e.native_false:.1%}",
        ]
        for view, e in _errors_by_view(results, draws=200)
    ]
    head = [
        "view",
        "sick logs",
        "our false alarms",
        "our errors (warnings only)",
        "baseline, one factor",
        "ratio",
        "baseline, a factor for each shape",
        "ratio",
        "baseline's own limits",
    ]
    note = (
        f"Share not named, a mean over {', '.join(SHAPES)} and their kinds; in round brackets, "
        "what does not count our notes as hits. The baseline's limits are widened, by one factor "
        "or by one for each shape chosen in its favour on these very runs, until it alarms no more "
        "often than we do.\n\n"
    )
    return note + _table(head, rows)


def _confusion(results: Sequence[Result]) -> str:
    raw = [r for r in figures.sick(results, (*SHAPES, *OTHER_SYMPTOMS)) if r.view == "raw"]
    said: Callable[[Collection[Result]], Counter[str]] = lambda chosen: Counter(  # noqa: E731
        rule for r in chosen for rule in r.found if rule not in figures.right_names(r.truth, r.kind)
    )
    rows = []
    for truth in (*SHAPES, *OTHER_SYMPTOMS):
        chosen = [r for r in raw if r.truth == truth]
        others = ", ".join(f"{rule} {count}" for rule, count in said(chosen).most_common(6))
        rows.append([truth, len(chosen), others])
    return _table(["fault", "runs", "other rules that spoke"], rows)
