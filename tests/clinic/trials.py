"""Trials of what rules propose: the sick run again, treated from its first update on.

Of each run that a fault harmed, all is tried that the first answer proposes and the clinic can do,
looks left out. A trial is kept, under a name that hangs on the record of the sick
run and on all that treats it; rules are no part of it, only what they proposed.
"""

import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

import records
from course import train
from faulting import faults
from figures import SANE
from judge import HARM, traces_of
from records import ROOT, Job, Result, damage, recorded
from setups import HERE, digest, is_held
from treating import Given, NotApplicable, prepared, trained

from optdoctor.engine import diagnose, ranked
from optdoctor.findings import SEVERITIES, Diagnosis, Treatment
from optdoctor.readers import read
from optdoctor.trace import Trace
from optdoctor.treatments import Refused, interventions

BETTER = 0.5
"""Part of the damage that is left at most where a treatment helped and did not cure."""
ROUNDS = 8
"""Treatments after which following the doctor is given up."""
HEALTHY = 12
"""Healthy configurations on which each intervention is tried."""
Verdict = Literal["recovered", "unchanged", "harmed", "failed"]
Way = Literal["knobs", "intervention", "cure", "by hand", "nothing"]
NOT_APPLICABLE = f"{NotApplicable.__name__}: "


@dataclass(frozen=True)
class Offer:
    """One thing that the doctor proposes for a run, done in one way."""

    rule: str = ""
    """The first answer; "" where nothing was found."""
    treatment: Treatment | None = None
    """More than a look; None where looks are all that the rule proposes."""
    way: Way = "nothing"
    rank: int = 0
    """Place among what its finding proposes, looks left out."""
    part: int | None = None
    """The optimizer that it is for, where the run has several."""


@dataclass(frozen=True)
class Trial:
    """A sick or healthy run, and what became of it with a treatment."""

    job: Job
    offer: Offer
    untreated: Result
    twin: Result
    """For a healthy run the same as `untreated`."""
    treated: Result | None = None
    """None where nothing was tried."""
    reason: str = ""
    """Why nothing was tried, or why it came to nothing."""
    rounds: int = 1
    """How many treatments it had, one after the other."""

    @property
    def answers(self) -> bool:
        """Whether the rule is a right answer for the fault."""
        return bool(self.job.fault) and self.offer.rule in faults()[self.job.fault].rules

    @property
    def verdict(self) -> Verdict | None:
        """None where nothing was tried."""
        if self.treated is None:
            return None
        return "failed" if self.treated.error else verdict(self.treated, self.untreated, self.twin)

    @property
    def helped(self) -> bool:
        """Whether half of the damage is gone, or a loss that was not finite is so."""
        if self.treated is None or self.treated.error:
            return False
        before, after = damage(self.untreated, self.twin), damage(self.treated, self.twin)
        return after < math.inf if math.isinf(before) else after <= BETTER * before

    @property
    def is_twin(self) -> bool:
        """Whether the treated run is the healthy twin itself, loss by loss to a hundredth: the
        treatment left the fault out, and recovers by construction."""
        if self.treated is None or not self.treated.losses:
            return False
        pairs = zip(self.treated.losses, self.twin.losses, strict=False)
        return all(abs(a - b) <= 0.01 * abs(b) for a, b in pairs)


def verdict(treated: Result, untreated: Result, twin: Result) -> Verdict:
    """What a treatment did, by the measure that the harm of faults has."""
    if damage(treated, twin) < HARM:
        return "recovered"
    if math.isfinite(untreated.final) and damage(treated, untreated) >= HARM:
        return "harmed"
    return "unchanged"


def offered(job: Job) -> list[Offer]:
    """What is proposed for a run that is recorded."""
    return offers(traces_of(job))


def offers(traces: Sequence[Trace]) -> list[Offer]:
    """What the first-ranked answer proposes, best first, looks left out.

    What can be done by knobs and by an intervention is two offers of one rank, the knobs first.
    """
    several = [diagnose(trace) for trace in traces]
    worst = max(range(len(several)), key=lambda i: _gravity(several[i]))
    diagnosis, answers = several[worst], ranked(several[worst])
    if not answers:
        return [Offer()]
    finding = next(f for f in diagnosis.findings if f.rule == answers[0])
    acting = [t for t in finding.treatments if t.when != "check"]
    part = worst if len(several) > 1 else None
    found = [Offer(answers[0], t, w, i, part) for i, t in enumerate(acting) for w in ways(t)]
    return found or [Offer(answers[0])]


def ways(treatment: Treatment) -> list[Way]:
    """How it can be done here, by what it says of itself."""
    found: list[Way] = []
    if treatment.changes:
        found.append("knobs")
    if treatment.intervention:
        found.append("intervention")
    return found or ["by hand"]


def _gravity(diagnosis: Diagnosis) -> int:
    return -1 if diagnosis.worst is None else SEVERITIES.index(diagnosis.worst)


def tried(job: Job) -> list[Trial]:
    """The trials of all that is proposed; none where no fault harmed the run."""
    untreated, twin = recorded(job), recorded(job.twin)
    if untreated is None or twin is None or untreated.error or twin.error:
        return []
    if not untreated.probe or damage(untreated, twin) < HARM:
        return []
    return [of_offer(job, offer, untreated, twin) for offer in offered(job)]


def of_offer(job: Job, offer: Offer, untreated: Result, twin: Result) -> Trial:
    """The trial of that."""
    trial = Trial(job, offer, untreated, twin)
    fault = faults()[job.fault]
    if offer.treatment is None:
        looks = f"{offer.rule} proposes looks alone"
        return replace(trial, reason=looks if offer.rule else "nothing was found")
    if offer.way == "by hand":
        if fault.cure is None or offer.rank or offer.rule not in fault.rules:
            return trial
        treated = kept(job, Given())
        return replace(trial, offer=replace(offer, way="cure"), treated=treated)
    treated = kept(job, Given((only(offer),), offer.part))
    if treated.error.startswith(NOT_APPLICABLE):
        return replace(trial, reason=treated.error.removeprefix(NOT_APPLICABLE))
    return replace(trial, treated=treated, reason=treated.error)


def only(offer: Offer) -> Treatment:
    """The treatment in the way of the offer alone."""
    assert offer.treatment is not None
    if offer.way == "knobs":
        return replace(offer.treatment, intervention="")
    return replace(offer.treatment, changes={})


def followed(trial: Trial) -> Trial:
    """The same run where whoever trains does as the doctor says, one knob after the other, until it
    says nothing that can be done so: `rounds` is how often, `reason` why it ended."""
    job, steps, result = trial.job, [only(trial.offer)], trial.treated
    part, reason = trial.offer.part, f"{ROUNDS} rounds were not enough"
    for _ in range(ROUNDS):
        given = Given(tuple(steps), part)
        result = kept(job, given, watched=True)
        if result.error:
            reason = result.error
            break
        proposed = offers(traces_in(_folder(job, given) / "run"))
        offer = next((one for one in proposed if one.way == "knobs"), proposed[0])
        if offer.way != "knobs":
            reason = f"{offer.rule}: {offer.way}" if offer.rule else "nothing was found"
            break
        steps.append(only(offer))
    return replace(trial, treated=result, reason=reason, rounds=len(given.treatments))


def kept(job: Job, given: Given, watched: bool = False) -> Result:
    """The run with that treatment, trained now or before; with its record where it is watched."""
    folder = _folder(job, given)
    path, out = folder / "result.json", folder / "run" if watched else None
    if path.exists() and (out is None or out.exists()):
        told = json.loads(path.read_text(encoding="utf-8"))["result"]
        return Result(**told | {"losses": tuple(told["losses"])})
    result = treated(job, given, out)
    folder.mkdir(parents=True, exist_ok=True)
    about = {"job": asdict(job), "given": _named(given), "result": asdict(result)}
    part = path.with_suffix(".part")
    part.write_text(json.dumps(about), encoding="utf-8")
    part.replace(path)
    return result


def treated(job: Job, given: Given, out: Path | None = None) -> Result:
    """The job's run, set up and trained once more with that treatment; under the doctor's eye where
    its record is wanted, which changes no number."""
    began = time.process_time()
    try:
        run = prepared(job, given)
        outcome = trained(run) if out is None else train(run, out)
    except Exception as error:
        spent = time.process_time() - began
        said = f"{type(error).__name__}: {error}"
        return Result(math.nan, math.nan, (), False, round(spent, 3), said)
    spent = round(time.process_time() - began, 3)
    return Result(outcome.eval_losses[0], outcome.final, outcome.losses, True, spent)


def traces_in(folder: Path) -> list[Trace]:
    """One for each optimizer."""
    parts = [part for part in sorted(folder.iterdir()) if (part / "run.json").is_file()]
    return [read(part) for part in parts or [folder]]


def _folder(job: Job, given: Given) -> Path:
    told = json.dumps([job.folder.name, _named(given)], sort_keys=True)
    return records.STORE / "trials" / digest(told + _code(given))


def _named(given: Given) -> list[object]:
    several = [[sorted(one.changes.items()), one.intervention] for one in given.treatments]
    return [several, given.part]


def _code(given: Given) -> str:
    """A hash of the code that treats: of interventions only where one is at work."""
    names = sorted(one.intervention for one in given.treatments if one.intervention)
    return records.meaning_of(HERE / "treating.py") + "".join(map(_code_of, names))


@cache
def _code_of(name: str) -> str:
    """The file of that intervention, with all that interventions share."""
    own = name.replace("-", "_")
    others = {other.replace("-", "_") for other in interventions()} - {own}
    files = sorted((ROOT / "optdoctor" / "treatments").glob("*.py"))
    return digest("".join(records.meaning_of(f) for f in files if f.stem not in others))


# Interventions on healthy runs: what they cost where nothing is wrong.


def healthy_jobs(drawn: Sequence[Job]) -> list[Job]:
    """Healthy runs of the open half that learnt what others of their family learnt: of each family
    one, of optimizers that differ as far as can be."""
    known = {job: result for job in drawn if (result := recorded(job)) and not result.error}
    falls: dict[tuple[str, str], float] = {}
    for job, result in known.items():
        key = job.setup.family, job.setup.size
        falls[key] = max(falls.get(key, 0.0), result.first - result.final)
    fit: dict[str, list[Job]] = {}
    for job, result in known.items():
        fall = falls[job.setup.family, job.setup.size]
        if not is_held(job.configuration) and result.first - result.final >= SANE * fall > 0:
            fit.setdefault(job.setup.family, []).append(job)
    chosen: list[Job] = []
    for _, jobs in sorted(fit.items(), key=lambda item: len(item[1])):
        used = [job.setup.optimizer for job in chosen]
        chosen.append(min(jobs, key=lambda job: (used.count(job.setup.optimizer), str(job))))
    return chosen[:HEALTHY]


def tried_in_health(asked: tuple[Job, str]) -> Trial:
    """(job, name of an intervention) -> the trial of it on that healthy run."""
    job, name = asked
    without = recorded(job)
    assert without is not None
    treatment = _alone(name)
    treated = kept(job, Given((treatment,)))
    offer = Offer(treatment=treatment, way="intervention")
    return Trial(job, offer, without, without, treated, treated.error)


def is_kept(asked: tuple[Job, str]) -> bool:
    """Whether that trial was made before."""
    job, name = asked
    return (_folder(job, Given((_alone(name),))) / "result.json").exists()


def _alone(name: str) -> Treatment:
    return Treatment(title=name, intervention=name)


def constructible() -> tuple[list[str], dict[str, str]]:
    """(interventions to be tried, {the others: why not})."""
    chosen, left = [], {}
    for name, one in interventions().items():
        if one.safety == "manual":
            left[name] = "manual: it needs the user's judgement or data"
            continue
        try:
            one()
        except (TypeError, ValueError) as error:
            left[name] = f"not without arguments: {error}"
        else:
            chosen.append(name)
    return chosen, left


def is_refusal(trial: Trial) -> bool:
    """Whether an intervention said that it cannot act on this run."""
    return trial.reason.startswith(f"{Refused.__name__}: ")
