"""docs/validation.md, its history, and the rates that reports print: written from judged runs."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import date

from faulting import faults
from figures import Figures, sane, share, told
from judge import Judged
from records import ROOT, meaning_of
from setups import HERE, digest

from optdoctor.knowledge.fingerprint import fingerprint
from optdoctor.knowledge.rates import Rate
from optdoctor.rules import RULES

PAGE = ROOT / "docs" / "validation.md"
LIMITS_PAGE = ROOT / "docs" / "validation-of-limits.md"
HISTORY = ROOT / "docs" / "validation-history.md"
RATES = ROOT / "optdoctor" / "knowledge" / "rates.json"
ON = "on small real trainings of configurations held apart"
HISTORY_HEAD = """# Judgements on the half held apart

Limits are set on the other half of the clinic's configurations. Each look at this half is written
down by `python -m tests.clinic judge --held REASON`, with what it showed. No number of looks is too
many by rule, since the clinic itself changed before most of them; but whoever mends a rule knows
these figures, so the half is held apart the less the more rows stand here. Looks at families that
stand apart say so in their reason.

| day | rules | clinic | runs | reason | false alarms | found | first right | first three |
|---|---|---|---|---|---|---|---|---|
"""


def of_rules() -> str:
    """A hash of all rules as they are."""
    return digest("".join(fingerprint(rule.name) for rule in RULES))


def of_clinic() -> str:
    """A hash of the clinic as it is: how it trains, and what it counts."""
    return digest("".join(map(meaning_of, sorted(HERE.rglob("*.py")))))


def remember(reason: str, figures: Figures, runs: int, *, as_log: bool) -> None:
    """Appends one line to the history."""
    before = HISTORY.read_text(encoding="utf-8") if HISTORY.exists() else ""
    rows = before.partition("|---|---|---|---|---|---|---|---|---|\n")[2]
    how = f"{reason} (as logs)" if as_log else reason
    row = [
        date.today().isoformat(),
        of_rules()[:8],
        of_clinic()[:8],
        str(runs),
        how,
        *map(_short, (figures.healthy, figures.found, figures.first, figures.first_three)),
    ]
    HISTORY.write_text(f"{HISTORY_HEAD}{rows}| {' | '.join(row)} |\n", encoding="utf-8")


def _short(one: Rate) -> str:
    return f"{one.times} of {one.of}" if one.of else "-"


def write_rates(figures: Figures) -> None:
    """The clinic's entry in `rates.json`."""
    entries = {}
    for rule in RULES:
        alarms, named = figures.alarms[rule.name], figures.named.get(rule.name)
        if not alarms.of:
            continue
        entries[rule.name] = {"of": fingerprint(rule.name), "alarms": list(alarms)}
        if named:
            entries[rule.name]["named"] = list(named)
    known = json.loads(RATES.read_text(encoding="utf-8"))["collections"]
    kept = [collection for collection in known if collection["on"] != ON]
    text = json.dumps({"collections": [*kept, {"on": ON, "rules": entries}]}, indent=1)
    RATES.write_text(text + "\n", encoding="utf-8")


def write_page(
    runs: Sequence[Judged],
    figures: Figures,
    opened: Figures,
    logged: Figures,
    apart: Figures,
    other_seeds: Iterable[str],
) -> None:
    """docs/validation.md."""
    parts = [
        "# What the rules get right, measured\n",
        "Made by `python -m tests.clinic report` from recorded trainings; not written by hand.\n"
        f"Rules {of_rules()}, clinic {of_clinic()}.\n",
        f"{_sum(runs)} A fault counts where it made the held-out loss of its run at least 5 %"
        " worse than that of its twin, and where a probe shows it at work. Intervals are 95 %,"
        " by configuration: runs that differ in their seed only count as one.\n",
        _totals(figures, opened, logged, apart),
        _rules(figures, runs),
        _faults(figures),
        _families(figures, apart),
        _confusion(runs),
        "## The same on other seeds\n\n" + "\n".join(other_seeds) + "\n",
        "## What was tried and does not work\n\n"
        "See [decision 0022](decisions/0022-the-clinic.md).\n",
    ]
    PAGE.write_text("\n".join(parts), encoding="utf-8")


def _sum(runs: Sequence[Judged]) -> str:
    """Of what all runs consist, in parts that add up."""
    drawn = [r for r in runs if r.job.drawn]
    healthy, twins = len(sane(drawn)), sum(not r.job.fault and not r.job.drawn for r in runs)
    given = [(r.harmed, r.fault.decoy) for r in runs if r.fault is not None]
    harmed, harmless = given.count((True, False)), given.count((False, True))
    others = len(given) - harmed - harmless
    return (
        f"{len(runs)} runs of configurations held apart: {len(drawn)} without a fault that were"
        f" drawn at random, of which {healthy} count as healthy and {len(drawn) - healthy} do not,"
        " since they did not learn what others of their family learnt or lost it again;"
        f" {len(given)} with one of {len(faults())} faults and decoys: {harmed} that a fault"
        f" harmed, {harmless} whose decoy did no harm, and {others} that are"
        f" in neither count; and {twins} healthy twins, the same without the fault, whose own"
        " configuration is of this half."
    )


def _totals(*several: Figures) -> str:
    """One column each: held apart, open half, held apart as a log, families apart."""
    rows = [
        ("healthy runs called sick", "healthy"),
        ("by static rules and counters", "mechanisms"),
        ("healthy runs with any finding, notes included", "noted"),
        ("healthy twins called sick", "twins"),
        ("decoys called sick", "decoys"),
        ("harmed runs with any finding, notes included", "told"),
        ("harmed runs called sick", "found"),
        ("first answer right", "first"),
        ("right within the first three", "first_three"),
        ("first answer a wrong cause", "wrong"),
        ("static faults found before step 1", "static_at_start"),
    ]
    head = "| | held apart | open half | held apart, as a log | families apart |"
    lines = ["## In all\n", head, "|---|---|---|---|---|"]
    for label, name in rows:
        lines.append(f"| {label} | {' | '.join(told(getattr(f, name)) for f in several)} |")
    lead = " | ".join("-" if f.lead is None else f"{f.lead:g}" for f in several)
    lines.append(f"| median lead of slow faults, updates | {lead} |")
    return "\n".join(lines) + "\n"


def _rules(figures: Figures, runs: Sequence[Judged]) -> str:
    lines = [
        "## By rule\n",
        "`found` is of harmed runs for which the rule is the best answer.\n",
        "| rule | alarms on healthy runs | found | mild dose | hard dose | first step, median |",
        "|---|---|---|---|---|---|",
    ]
    harmed = [r for r in runs if r.harmed]
    for rule in RULES:
        own = [r for r in harmed if r.fault and rule.name in r.fault.rules[:1]]
        by_dose = [_found(rule.name, [r for r in own if r.job.dose == dose]) for dose in (0, 1)]
        steps = [s for r in own for name, _, s in r.found if name == rule.name]
        first = f"{sorted(steps)[len(steps) // 2]}" if steps else "-"
        found = figures.named.get(rule.name)
        alarms, named = told(figures.alarms[rule.name]), told(found) if found else "-"
        lines.append(
            f"| {rule.name} | {alarms} | {named} | {by_dose[0]} | {by_dose[1]} | {first} |"
        )
    return "\n".join(lines) + "\n"


def _found(rule: str, runs: Sequence[Judged]) -> str:
    if not runs:
        return "-"
    one = share(runs, lambda run: any(name == rule for name, _, _ in run.found))
    return f"{one.times} of {one.of}"


def _faults(figures: Figures) -> str:
    lines = ["## By fault and dose\n"]
    lines += [f"- {name}: {said}" for name, said in figures.by_fault.items()]
    return "\n".join(lines) + "\n"


def _families(figures: Figures, apart: Figures) -> str:
    lines = [
        "## By family\n",
        "Figures of the half held apart. The last families stand apart: somebody who had not read"
        " the rules wrote them, and no limit was set with a run of theirs.\n",
        "| family | healthy runs called sick | harmed runs found | first answer right |",
        "|---|---|---|---|",
    ]
    for name, shares in figures.by_family.items():
        lines.append(f"| {name} | {' | '.join(map(told, shares))} |")
    lines.append(_means("families", figures))
    for name, shares in apart.by_family.items():
        lines.append(f"| {name}, apart | {' | '.join(map(told, shares))} |")
    lines.append(_means("families apart", apart))
    return "\n".join(lines) + "\n"


def _means(what: str, figures: Figures) -> str:
    columns = zip(*figures.by_family.values(), strict=True)
    return f"| mean over {what} | {' | '.join(map(_mean, columns))} |"


def _mean(several: Sequence[Rate]) -> str:
    """The mean of the families' shares, each counted once however many runs it has, and the two
    ends."""
    shares = [100 * one.times / one.of for one in several if one.of]
    if not shares:
        return "no runs"
    mean = sum(shares) / len(shares)
    return f"{mean:.1f} % of {len(shares)} families ({min(shares):.0f} to {max(shares):.0f} %)"


def _confusion(runs: Sequence[Judged]) -> str:
    head = "| fault | right answers | first answers |"
    lines = ["## First answers on harmed runs\n", head, "|---|---|---|"]
    for name, fault in faults().items():
        own = [r for r in runs if r.job.fault == name and r.harmed]
        if own:
            answers = Counter(r.ranked[0] if r.ranked else "nothing" for r in own)
            said = ", ".join(f"{rule} {n}" for rule, n in answers.most_common())
            lines.append(f"| {name} | {', '.join(fault.rules) or 'none'} | {said} |")
    return "\n".join(lines) + "\n"
