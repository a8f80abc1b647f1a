"""docs/validation-of-treatments.md: what became of runs that were treated."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from figures import told
from judge import HARM
from records import ROOT, damage
from trials import NOT_APPLICABLE, ROUNDS, Trial, is_refusal

from optdoctor.knowledge.rates import Rate

PAGE = ROOT / "docs" / "validation-of-treatments.md"
HEAD = (
    "| rule | treatment | by | of | tried | recovered | unchanged (better by half) | harmed |"
    " damage, median: before, after |\n|---|---|---|---|---|---|---|---|---|"
)
LIMITS = (
    "These are models of thousands of weights that train for hundreds of steps, treated from their"
    " first update: what a treatment does to a large model, or to one that has trained for weeks,"
    " is not measured here. Where a treatment puts back the very setting that the fault had"
    " changed, the treated run is the healthy twin, and recovering proves only that the doctor"
    " named the knob and the right value."
)


def page(
    trials: Sequence[Trial],
    followed: Sequence[Trial],
    healthy: Sequence[Trial],
    left: Mapping[str, str],
    of: str,
) -> str:
    """`trials` of harmed runs of that half, `followed` those that went on, `healthy` those of
    interventions, `left` the interventions that were not tried, with the reason."""
    runs = f"{len({t.job for t in trials})} runs that a fault harmed"
    parts = [
        "# What the proposed treatments do, measured\n",
        "Made by `python -m tests.clinic trials` from recorded trainings; not written by hand.\n",
        f"{runs}, of the half of configurations that is {of}. Each is trained again from the start"
        " with the same data and the same fault, and with what the doctor's first answer proposes;"
        " looks (`check`) are no treatments."
        f" `recovered` is a held-out loss less than {HARM:.0%} worse than that of the healthy twin;"
        f" `harmed` one that is {HARM:.0%} worse than that of the untreated run, or more; all"
        " others are `unchanged`. Intervals are 95 %, by configuration.\n",
        _in_all(trials),
        _by_treatment(trials),
        *([_on(followed)] if followed else []),
        _by_hand(trials),
        _in_health(healthy, left),
        f"## What these figures do not say\n\n{LIMITS}\n",
    ]
    return "\n".join(parts)


def share(trials: Sequence[Trial], holds: Callable[[Trial], bool]) -> Rate:
    """Runs that differ in their seed only count as one case."""
    cases = len({trial.job.configuration for trial in trials})
    return Rate(sum(map(holds, trials)), len(trials), cases)


def primary(trials: Iterable[Trial]) -> list[Trial]:
    """Of each run the one trial that counts: what is proposed first, by knobs where both ways are
    open and knobs can be turned."""
    first: dict[object, Trial] = {}
    for trial in trials:
        if trial.offer.rank == 0 and (trial.job not in first or _cannot_be(first[trial.job])):
            first[trial.job] = trial
    return list(first.values())


def _cannot_be(trial: Trial) -> bool:
    """Whether the clinic cannot do it in this way."""
    return trial.treated is None and bool(trial.reason)


def template(title: str) -> str:
    """The title without its numbers and the names of its tensors."""
    title = re.sub(r"\b[A-Za-z_]\w*(\.\w+)*\.\d+(\.\w+)*", "TENSOR", title)
    title = re.sub(r"(?<![\w.])-?\d+(,\d{3})*(\.\d+)?(e[+-]?\d+)?(?!\w|\.\w)", "N", title)
    title = re.sub(r"\bsteps? N(, N)*(,? \.{3})?(,? and N)?", "step N", title)
    return title.replace("batches of step", "batch of step").replace("|", "/")


def _in_all(trials: Sequence[Trial]) -> str:
    first = primary(trials)
    tried = [t for t in first if t.treated is not None]
    hand = [t for t in first if t.offer.way == "by hand"]
    rows = [
        ("with nothing found, or looks alone proposed", [t for t in first if _is_nothing(t)]),
        ("done by hand, of a right first answer", [t for t in hand if t.answers]),
        ("done by hand, of a wrong first answer", [t for t in hand if not t.answers]),
        ("none that the clinic can do", [t for t in first if _cannot_be(t) and not _is_nothing(t)]),
        ("tried", tried),
    ]
    lines = ["## In all\n", "| what is proposed first | harmed runs |", "|---|---|"]
    lines += [f"| {label} | {len(several)} |" for label, several in rows]
    lines += ["", "| of those that were tried | |", "|---|---|"]
    right = [t for t in tried if t.answers]
    lines += [
        f"| recovered | {told(share(tried, lambda t: t.verdict == 'recovered'))} |",
        f"| of a right first answer: recovered |"
        f" {told(share(right, lambda t: t.verdict == 'recovered'))} |",
        f"| recovered, or better by half |"
        f" {told(share(tried, lambda t: t.verdict == 'recovered' or t.helped))} |",
        f"| harmed | {told(share(tried, lambda t: t.verdict == 'harmed'))} |",
        f"| failed or refused | {told(share(tried, lambda t: t.verdict == 'failed'))} |",
        f"| the healthy twin itself, loss by loss | {told(share(tried, lambda t: t.is_twin))} |",
    ]
    return "\n".join(lines) + "\n"


def _is_nothing(trial: Trial) -> bool:
    return trial.offer.way == "nothing"


def _by_treatment(trials: Sequence[Trial]) -> str:
    groups: dict[tuple[str, int, str, str], list[Trial]] = {}
    for trial in trials:
        if trial.treated is not None and trial.offer.treatment is not None:
            offer = trial.offer
            key = offer.rule, offer.rank, template(offer.treatment.title), offer.way
            groups.setdefault(key, []).append(trial)
    lines = [
        "## By rule and treatment\n",
        "`2.` is what is proposed second, and so on. N stands for a number, TENSOR for a name.\n",
        HEAD,
        *(_row(key, several) for key, several in sorted(groups.items())),
    ]
    failed = Counter(
        f"{t.offer.rule}: {t.reason}" for t in trials if t.treated is not None and t.treated.error
    )
    lines += ["", *(f"- failed {n} times, {reason}" for reason, n in sorted(failed.items()))]
    return "\n".join(lines).rstrip() + "\n"


def _row(key: tuple[str, int, str, str], several: Sequence[Trial]) -> str:
    rule, rank, title, way = key
    by = next(t.offer.treatment.intervention for t in several if t.offer.treatment)
    names = ", ".join(f"{name} {n}" for name, n in Counter(t.job.fault for t in several).items())
    unchanged = share(several, lambda t: t.verdict == "unchanged")
    better = sum(t.verdict == "unchanged" and t.helped for t in several)
    cells = [
        rule,
        f"{rank + 1}. {title}",
        by if way == "intervention" else way,
        names,
        f"{len(several)}",
        told(share(several, lambda t: t.verdict == "recovered")),
        f"{unchanged.times} ({better})",
        told(share(several, lambda t: t.verdict == "harmed")),
        _damages(several),
    ]
    return f"| {' | '.join(cells)} |"


def _damages(several: Sequence[Trial]) -> str:
    before = [damage(t.untreated, t.twin) for t in several]
    after = [damage(t.treated, t.twin) for t in several if t.treated and not t.treated.error]
    return ", ".join(f"{_middle(values):+.0%}" if values else "-" for values in (before, after))


def _middle(values: Sequence[float]) -> float:
    """The median, of the upper half where there are two."""
    return sorted(values)[len(values) // 2]


def _on(followed: Sequence[Trial]) -> str:
    """What becomes of a run where the doctor is asked again and again."""
    lines = [
        "## Followed until the doctor is silent\n",
        "The same runs where each treated run is diagnosed anew, and what is then proposed first is"
        f" done besides, as long as it is a knob, {ROUNDS} times at most: some treatments say of"
        " themselves that they are a step of a search.\n",
        "| first answer | runs | treatments, median | recovered | unchanged (better by half) |"
        " harmed | it ended with |",
        "|---|---|---|---|---|---|---|",
    ]
    groups = {"all": list(followed)}
    for trial in sorted(followed, key=lambda t: t.offer.rule):
        groups.setdefault(trial.offer.rule, []).append(trial)
    for name, several in groups.items():
        ends = Counter(t.reason for t in several)
        unchanged = [t for t in several if t.verdict == "unchanged"]
        cells = [
            name,
            f"{len(several)}",
            f"{_middle([t.rounds for t in several])}" if several else "-",
            told(share(several, lambda t: t.verdict == "recovered")),
            f"{len(unchanged)} ({sum(t.helped for t in unchanged)})",
            told(share(several, lambda t: t.verdict == "harmed")),
            ", ".join(f"{reason} {n}" for reason, n in ends.most_common()),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _by_hand(trials: Sequence[Trial]) -> str:
    """What was not tried, and why."""
    rows: Counter[tuple[str, str, str]] = Counter()
    for trial in trials:
        offer = trial.offer
        if trial.treated is None and offer.treatment is not None:
            title = f"{offer.rank + 1}. {template(offer.treatment.title)}"
            rows[offer.rule, title, _why(trial)] += 1
    lines = [
        "## What was not tried\n",
        "By hand means that it changes code or data. Where it takes out the mistake that a right"
        " answer names, the treated run is the healthy twin by construction.\n",
        "| rule | treatment | why | runs |",
        "|---|---|---|---|",
        *(f"| {rule} | {title} | {why} | {n} |" for (rule, title, why), n in sorted(rows.items())),
    ]
    return "\n".join(lines) + "\n"


def _why(trial: Trial) -> str:
    if trial.reason:
        return f"not applicable: {trial.reason}"
    return "by hand" if trial.answers else "by hand, and of a wrong answer"


def _in_health(trials: Sequence[Trial], left: Mapping[str, str]) -> str:
    names = dict.fromkeys(t.offer.treatment.title for t in trials if t.offer.treatment)
    runs = len({trial.job for trial in trials})
    lines = [
        "## Interventions on healthy runs\n",
        f"Each that needs no argument, on {runs} healthy runs of as many families of the open half,"
        " from the first update on. The difference is of the final held-out loss, as a share of"
        " that without.\n",
        "| intervention | tried | refused | worse by 5 % | better by 5 % | not finite |"
        " difference: least, median, largest |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in names:
        own = [t for t in trials if t.offer.treatment and t.offer.treatment.title == name]
        lines.append(_row_in_health(name, own))
    reasons = Counter(
        (t.offer.treatment.title, t.reason) for t in trials if t.reason and t.offer.treatment
    )
    lines += ["", *(f"- {name}, {n} times: {why}" for (name, why), n in sorted(reasons.items()))]
    lines += [f"- {name} was not tried; {why}" for name, why in sorted(left.items())]
    return "\n".join(lines).rstrip() + "\n"


def _row_in_health(name: str, own: Sequence[Trial]) -> str:
    refused = [t for t in own if is_refusal(t) or t.reason.startswith(NOT_APPLICABLE)]
    done = [t for t in own if t.treated is not None and not t.treated.error]
    several = [damage(t.treated, t.untreated) for t in done if t.treated is not None]
    differences = [_difference(t) for t in done]
    finite = [d for d in differences if math.isfinite(d)]
    spread = f"{min(finite):+.1%}, {np.median(finite):+.1%}, {max(finite):+.1%}" if finite else "-"
    cells = [
        name,
        f"{len(done)}",
        f"{len(refused)}",
        f"{sum(d >= HARM for d in several)}",
        f"{sum(d <= -HARM for d in several)}",
        f"{len(differences) - len(finite)}",
        spread,
    ]
    return f"| {' | '.join(cells)} |"


def _difference(trial: Trial) -> float:
    assert trial.treated is not None
    return (trial.treated.final - trial.untreated.final) / max(abs(trial.untreated.final), 1e-12)
