"""What is proposed for a sick run is tried on it, and judged against its twin and itself."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import records
import torch
import trials
from course import Course, train
from faulting import faults
from records import Job, Result, record
from setups import Setup, families
from treating import Given, NotApplicable, prepared
from trials import Offer, Trial, followed, kept, of_offer, offered, treated, verdict
from trials_page import page, primary, template

from optdoctor.findings import Treatment

SICK = Job(Setup("digits-mlp", "adam"), "rate-too-high", 0)
RATE = families()["digits-mlp"].rates["adam"]
NONE = Treatment("Leave it as it is")
LOWER = Treatment("Lower the learning rate to 0.01", {"lr": (30 * RATE, RATE)})
MLP = Job(Setup("digits-mlp", "adam"))


def given(*treatments: Treatment) -> Given:
    return Given(treatments)


def with_knob(job: Job, knob: str, old: Any, new: Any) -> Course:
    return prepared(job, given(Treatment("Turn it", {knob: (old, new)})))


def ended(final: float) -> Result:
    return Result(2.3, final, (2.3, final), True, 1.0)


@pytest.fixture(scope="module")
def sick() -> Result:
    return treated(SICK, given(NONE))


@pytest.fixture(scope="module")
def twin() -> Result:
    return treated(SICK.twin, given(NONE))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(records, "STORE", tmp_path)
    return tmp_path


def trial(treatment: Treatment, sick: Result, twin: Result) -> Trial:
    offer = Offer("learning-rate-absurd", treatment, "knobs")
    return Trial(SICK, offer, sick, twin, treated(SICK, given(treatment)))


# What becomes of a run


def test_a_rate_that_is_lowered_to_the_healthy_one_recovers(sick: Result, twin: Result) -> None:
    lowered = trial(LOWER, sick, twin)
    assert lowered.verdict == "recovered"
    assert lowered.is_twin
    assert lowered.helped
    assert lowered.answers


def test_a_useless_treatment_leaves_a_run_unchanged(sick: Result, twin: Result) -> None:
    useless = trial(Treatment("Another epsilon", {"eps": (1e-8, 1e-9)}), sick, twin)
    assert useless.verdict == "unchanged"
    assert not useless.helped
    assert not useless.is_twin


def test_a_harmful_treatment_harms(sick: Result, twin: Result) -> None:
    worse = trial(Treatment("A higher rate", {"peak_lr": (1.0, 30.0)}), sick, twin)
    assert worse.verdict == "harmed"
    assert not worse.helped


def test_without_a_treatment_it_is_the_recorded_run_to_the_bit(sick: Result) -> None:
    watched = train(prepared(SICK, given(NONE)), None)
    assert watched.losses == sick.losses
    assert watched.final == sick.final


@pytest.mark.parametrize(
    ("treated", "untreated", "said"),
    [
        (0.104, 0.9, "recovered"),
        (0.9, 0.9, "unchanged"),
        (1.0, 0.9, "harmed"),
        (math.inf, 0.9, "harmed"),
        (math.inf, math.inf, "unchanged"),
        (5.0, math.inf, "unchanged"),
        (0.1, math.inf, "recovered"),
        (0.12, 0.11, "recovered"),  # below 1 % of what the twin began with
    ],
)
def test_a_verdict_is_by_the_measure_of_harm(treated: float, untreated: float, said: str) -> None:
    assert verdict(ended(treated), ended(untreated), ended(0.1)) == said


def test_half_of_the_damage_is_a_help(sick: Result) -> None:
    offer = Offer("learning-rate-absurd", NONE, "knobs")
    for untreated, after, helped in (
        (1.1, 0.6, True),
        (1.1, 0.7, False),
        (math.inf, 9.0, True),
        (math.inf, math.inf, False),
    ):
        one = Trial(SICK, offer, ended(untreated), ended(0.1), ended(after))
        assert one.helped is helped


# How a knob is turned


def test_a_knob_that_nobody_knows_is_told() -> None:
    tried = treated(SICK, given(Treatment("Turn it", {"no_such_knob": (1, 2)})))
    assert tried.error == "NotApplicable: no_such_knob"


@pytest.mark.parametrize(
    ("optimizer", "knob", "new", "held"),
    [
        ("adam", "eps", 1e-4, {"eps": 1e-4}),
        ("adam", "beta1", 0.5, {"betas": (0.5, 0.999)}),
        ("adam", "beta2", 0.9, {"betas": (0.9, 0.9)}),
        ("rmsprop", "beta2", 0.9, {"alpha": 0.9}),
        ("sgd", "momentum", 0.5, {"momentum": 0.5}),
    ],
)
def test_a_setting_is_written_into_the_groups(optimizer, knob, new, held) -> None:
    run = with_knob(Job(Setup("digits-mlp", optimizer)), knob, 1.0, new)
    for group in run.optimizers[0].param_groups:
        assert {key: group[key] for key in held} == held


@pytest.mark.parametrize(
    ("optimizer", "knob"),
    [("sgd", "eps"), ("sgd", "beta1"), ("adam", "momentum"), ("adam", "weight_decay")],
)
def test_a_setting_that_an_optimizer_lacks_is_told(optimizer: str, knob: str) -> None:
    with pytest.raises(NotApplicable, match=knob):
        with_knob(Job(Setup("digits-mlp", optimizer)), knob, 1.0, 0.5)


def test_decay_of_another_size() -> None:
    job = Job(Setup("digits-mlp", "adamw", weight_decay=0.1))
    groups = with_knob(job, "weight_decay", 0.1, 0.01).optimizers[0].param_groups
    assert {group["weight_decay"] for group in groups} == {0.01}


def test_rates_keep_their_ratios() -> None:
    job = Job(Setup("char-gpt", "adamw"), "attention-rate-high", 0)
    as_given = [g["lr"] for g in prepared(job, given(NONE)).optimizers[0].param_groups]
    lowered = [g["lr"] for g in with_knob(job, "lr", 1.0, 0.1).optimizers[0].param_groups]
    assert lowered == pytest.approx([0.1 * rate for rate in as_given])


def test_a_layer_gets_a_rate_of_its_own() -> None:
    job = Job(Setup("char-gpt", "adamw"))
    whole = prepared(job, given(NONE))
    run = with_knob(job, "tensor_lr:blocks.0", 1.0, 0.5)
    names = {id(p): name for name, p in run.model.named_parameters()}
    rest, layer = run.optimizers[0].param_groups
    assert all(names[id(p)].startswith("blocks.0.") for p in layer["params"])
    assert not any(names[id(p)].startswith("blocks.0.") for p in rest["params"])
    assert len(rest["params"]) + len(layer["params"]) == len(names)
    peak = whole.optimizers[0].param_groups[0]["lr"]
    assert (rest["lr"], layer["lr"]) == (peak, 0.5 * peak)
    with pytest.raises(NotApplicable, match="no tensor"):
        with_knob(job, "tensor_lr:block", 1.0, 0.5)


def test_a_clip_a_warm_up_and_a_schedule() -> None:
    assert with_knob(MLP, "max_grad_norm", None, 2.0).clip == 2.0
    assert with_knob(Job(replace(MLP.setup, clip=1.0)), "max_grad_norm", 1.0, 0).clip is None
    job = Job(replace(MLP.setup, schedule="constant"))
    rising = with_knob(job, "warmup_steps", 0, 10).schedule
    assert [rising(step, 100) for step in (0, 4, 9, 50)] == pytest.approx([0.1, 0.5, 1.0, 1.0])
    cosine = with_knob(job, "schedule", "constant", "cosine").schedule
    assert cosine(50, 100) == pytest.approx(0.5)
    with pytest.raises(NotApplicable, match="schedule = inverse_sqrt"):
        with_knob(job, "schedule", "constant", "inverse_sqrt")


def test_half_weights_become_float32_where_the_setup_has_them_so() -> None:
    job = Job(Setup("char-gpt", "adamw"), "epsilon-zero", 0)
    assert prepared(job, given(NONE)).model.get_parameter("head.weight").dtype == torch.float16
    run = with_knob(job, "param_dtype", "float16", "float32")
    assert run.model.get_parameter("head.weight").dtype == torch.float32
    assert run.autocast == torch.bfloat16
    by_hand = Job(Setup("char-gpt", "adamw"), "half-state", 0)
    with pytest.raises(NotApplicable, match="by hand"):
        with_knob(by_hand, "state_dtype", "bfloat16", "float32")


def test_an_intervention_goes_over_to_a_second_process() -> None:
    job = Job(Setup("digits-mlp", "adamw"), "state-lost-at-resume", 0)
    run = prepared(job, given(Treatment("Clip", intervention="adaptive-clipping")))
    ((first,),) = run.notes["interventions"]
    train(run, None)
    ((second,),) = run.notes["interventions"]
    assert not first.applied
    assert second.optimizer is run.optimizers[0]


def test_an_intervention_that_refuses_says_why() -> None:
    job = Job(replace(MLP.setup, clip=1.0))
    tried = treated(job, given(Treatment("Clip", intervention="adaptive-clipping")))
    assert tried.error.startswith("Refused: ")
    nobody = treated(job, given(Treatment("Do it", intervention="no-such-thing")))
    assert nobody.error == "NotApplicable: intervention no-such-thing, of which there is no file"


# What is proposed, what is kept, what is written


def test_what_the_first_answer_proposes_is_offered(store: Path) -> None:
    record(SICK)
    first, *_ = offered(SICK)
    assert first.rule in faults()["rate-too-high"].rules
    assert first.way == "knobs"
    assert first.rank == 0
    assert first.treatment is not None
    ((_, (old, new)),) = first.treatment.changes.items()
    assert old > new


def test_a_trial_is_made_once(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = kept(SICK, given(LOWER))
    assert len(list((store / "trials").glob("*/result.json"))) == 1
    monkeypatch.setattr(trials, "treated", lambda job, given, out: ended(9.0))
    assert kept(SICK, given(replace(LOWER, title="In other words"))) == first
    other = Treatment("More", {"lr": (30 * RATE, 2 * RATE)})
    assert kept(SICK, given(other)).final == 9.0
    assert kept(SICK.twin, given(LOWER)).final == 9.0


def test_a_search_is_followed_until_the_doctor_is_silent(store: Path) -> None:
    job = Job(Setup("digits-mlp", "sgd", schedule="constant"), "rate-too-high-sgd", 0)
    untreated, twin = record(job), treated(job.twin, given(NONE))
    first = of_offer(job, offered(job)[0], untreated, twin)
    assert first.treated is not None
    last = followed(first)
    assert last.treated is not None
    assert last.rounds > 1
    assert last.treated.final < 0.5 * first.treated.final
    assert last.reason


def test_what_is_by_hand_or_nothing_is_not_trained(store: Path, sick: Result, twin: Result) -> None:
    hand = Offer("learning-rate-absurd", Treatment("Look after it"), "by hand")
    unknown = Offer("learning-rate-absurd", Treatment("Turn", {"batch_size": (1, 2)}), "knobs")
    for offer, reason in (
        (hand, ""),
        (unknown, "batch_size"),
        (Offer(), "nothing was found"),
        (Offer("upward-drift"), "upward-drift proposes looks alone"),
    ):
        one = of_offer(SICK, offer, sick, twin)
        assert (one.treated, one.reason) == (None, reason)


def test_the_page_adds_up(sick: Result, twin: Result) -> None:
    def one(dose: int, verdict: float, rank: int = 0) -> Trial:
        offer = Offer("learning-rate-absurd", LOWER, "knobs", rank)
        return Trial(replace(SICK, dose=dose), offer, ended(0.9), ended(0.1), ended(verdict))

    hand = Offer("learning-rate-absurd", Treatment("Take it out"), "by hand")
    several = [
        one(0, 0.1),
        one(0, 9.0, rank=1),
        one(1, 0.3),
        Trial(replace(SICK, dose=2), hand, ended(0.9), ended(0.1)),
    ]
    assert len(primary(several)) == 3
    text = page(several, [], [], {"lookahead": "manual"}, "open")
    assert text.startswith("# What the proposed treatments do, measured\n")
    assert "3 runs that a fault harmed" in text
    assert "| done by hand, of a right first answer | 1 |" in text
    assert "| tried | 2 |" in text
    assert "| recovered | 1 of 2 = 50.0 %" in text
    assert "| harmed | 0 of 2 = 0.0 %" in text
    assert "1. Lower the learning rate to N | knobs | rate-too-high 2 | 2 | 1 of 2" in text
    assert "2. Lower the learning rate to N | knobs | rate-too-high 1 | 1 | 0 of 1" in text
    assert "- lookahead was not tried; manual" in text


def test_what_is_proposed_first_counts_by_knobs_where_they_can_be_turned() -> None:
    def one(way: trials.Way, rank: int, tried: bool) -> Trial:
        offer = Offer("learning-rate-absurd", LOWER, way, rank)
        made = ended(0.1) if tried else None
        return Trial(SICK, offer, ended(0.9), ended(0.1), made, "" if tried else "not here")

    def counted(*several: Trial) -> list[tuple[str, bool]]:
        return [(t.offer.way, t.treated is not None) for t in primary(several)]

    later = one("knobs", 1, True)
    assert counted(one("knobs", 0, False), later) == [("knobs", False)]
    by_either = one("knobs", 0, True), one("intervention", 0, True)
    assert counted(*by_either, later) == [("knobs", True)]
    by_one = one("knobs", 0, False), one("intervention", 0, True)
    assert counted(*by_one, later) == [("intervention", True)]


def test_titles_that_differ_in_numbers_are_one() -> None:
    for title in (
        "Try blocks.0.attn at half its rate, 0.2 to 1e-05",
        "Try h.1 at half its rate, 1 to 2",
    ):
        assert template(title) == "Try TENSOR at half its rate, N to N"
    assert template("beta1 = 0.9 in float32") == "beta1 = N in float32"
    for steps in (
        "batch of step 1,041",
        "batches of steps 1, 2 and 3",
        "batches of steps 1, 2, ...",
    ):
        assert template(f"Look at the {steps}") == "Look at the batch of step N"
