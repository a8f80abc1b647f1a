"""The engine: what becomes of each rule, and which finding can be the cause of which."""

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from made_up import RUN, causes_of, finding, rule, static

from optdoctor.engine import LEAST_LOSSES, RENAMED, diagnose, examine
from optdoctor.findings import (
    Abstain,
    Diagnosis,
    Differential,
    Evidence,
    Finding,
    Severity,
    Status,
    Treatment,
    Verdict,
)
from optdoctor.rule import Limits
from optdoctor.rules import RULES
from optdoctor.settings import Settings, SettingsError
from optdoctor.synthetic import falling_loss, make_trace, small_gpt
from optdoctor.trace import Reading, Recorder, Trace, Undeclared, Vitals

NOTE, WARN, CRITICAL = Severity.NOTE, Severity.WARN, Severity.CRITICAL


# Outcomes


def test_a_rule_that_finds_something_signs_it() -> None:
    outcome = examine(rule("illness", finding(3, 9), stage="stable"), RUN)
    assert outcome.status is Status.FOUND
    assert [(f.rule, f.stage, f.steps) for f in outcome.findings] == [("illness", "stable", (3, 9))]


def test_a_rule_that_finds_nothing_is_clear_and_says_what_it_lacked() -> None:
    outcome = examine(rule(uses=("lr", "loss", "eps")), RUN)
    assert (outcome.status, outcome.without) == (Status.CLEAR, ("lr", "eps"))


def test_a_rule_may_abstain() -> None:
    outcome = examine(rule(check=lambda trace, limits: Abstain("too noisy")), RUN)
    assert (outcome.status, outcome.reason) == (Status.ABSTAINED, "too noisy")


def test_too_few_rows_make_it_abstain_before_it_is_asked() -> None:
    short = make_trace(loss=[1.0] * 400, lr=[0.1] * 11)
    needy = rule("illness", finding(1), needs=("loss", "lr"), limits=Limits(rows=12))
    assert examine(needy, short).reason == "11 rows of lr, needs 12"
    assert examine(needy, short).status is Status.ABSTAINED
    enough = make_trace(loss=[1.0] * 400, lr=[0.1] * 12)
    assert examine(needy, enough).status is Status.FOUND


@pytest.mark.parametrize(
    ("needs", "missing"),
    [
        (("loss", "lr"), ("lr",)),
        (("loss|lr",), ()),
        (("lr|loss",), ()),
        (("lr|eps", "loss"), ("lr|eps",)),
        (("lr", "eps"), ("lr", "eps")),
    ],
)
def test_a_rule_is_skipped_for_want_of_a_channel(
    needs: tuple[str, ...], missing: tuple[str, ...]
) -> None:
    outcome = examine(rule("illness", finding(1), needs=needs, uses=("loss",)), RUN)
    assert outcome.missing == missing
    assert outcome.status is (Status.SKIPPED if missing else Status.FOUND)


def test_a_fact_that_is_not_known_is_missing() -> None:
    trace = make_trace(loss=[1.0], eps=None)
    assert examine(rule(needs=("eps",)), trace).missing == ("eps",)


@pytest.mark.parametrize(
    "read",
    [
        lambda trace: trace.series["lr"],
        lambda trace: trace.series.get("lr"),
        lambda trace: "lr" in trace.series,
        lambda trace: trace.facts["eps"],
        lambda trace: trace.facts.get("eps"),
        lambda trace: trace.has("eps"),
    ],
)
def test_reading_an_undeclared_channel_is_a_crash_whether_it_was_measured_or_not(
    read: Callable[[Trace], object],
) -> None:
    for trace in (RUN, make_trace(loss=[1.0], lr=[0.1], eps=1e-8)):
        outcome = examine(rule(check=lambda trace, limits: [read(trace)]), trace)
        assert outcome.status is Status.CRASHED
        assert "Undeclared" in (outcome.reason or "")


def test_undeclared_channels_are_not_listed() -> None:
    seen: list[str] = []
    trace = make_trace(loss=[1.0], lr=[0.1], eps=1e-8)
    examine(rule(check=lambda trace, limits: seen.extend([*trace.series, *trace.facts])), trace)
    assert seen == ["loss"]


def test_a_crash_is_an_outcome_with_its_traceback_and_short_paths() -> None:
    def check(trace: Trace, limits: Limits) -> list[Finding]:
        raise ZeroDivisionError("by zero rows")

    reason = examine(rule(check=check), RUN).reason or ""
    assert "ZeroDivisionError: by zero rows" in reason
    assert 'File "optdoctor/engine.py"' in reason
    assert 'File "tests/test_engine.py"' in reason
    assert 'File "/' not in reason


def test_a_crash_does_not_keep_other_rules_from_their_work() -> None:
    broken = rule("broken", check=lambda trace, limits: 1 / 0)
    diagnosis = diagnose(RUN, [broken, rule("illness", finding(1))])
    assert list(diagnosis.with_status(Status.CRASHED)) == ["broken"]
    assert [f.rule for f in diagnosis.findings] == ["illness"]


GOOD = {"eps": (1e-8, 1e-4), "tensor_lr:h.3": (1e-3, 1e-4)}
NO_FINDINGS = [
    finding(0, 3),
    finding(1, 401),
    finding(5, 4),
    finding(0, 0),
    finding(1, evidence=()),
    finding(1, evidence=(Evidence("lr", "x", 1, 1, "1"),)),
    finding(1, evidence=(Evidence("loss", "x", np.nan, 1, "1"),)),
    finding(1, evidence=(Evidence("loss", "x", 1, np.inf, "1"),)),
    finding(1, tensors=("h.9",)),
    *(
        finding(1, treatments=(Treatment("Turn it", changes),))
        for changes in (
            {"eps": (1e-8, 1e-8)},
            {"eps": (1e-8, np.inf)},
            {"eps": (np.nan, 1e-4)},
            {"epsilon": (1e-8, 1e-4)},
            {"loss": (1.0, 2.0)},
        )
    ),
]


@pytest.mark.parametrize("bad", NO_FINDINGS, ids=range(len(NO_FINDINGS)))
def test_a_finding_that_no_report_may_show_is_a_crash(bad: Finding) -> None:
    assert examine(rule("illness", finding(1), bad), RUN).status is Status.CRASHED


def test_a_sound_finding_is_no_crash() -> None:
    trace = make_trace(loss=[1.0, 2.0], tensors=small_gpt())
    sound = finding(1, 2, tensors=("wte.weight",), treatments=(Treatment("Turn it", GOOD),))
    assert examine(rule("illness", sound), trace).status is Status.FOUND


# Verdict


@pytest.mark.parametrize("severity", [WARN, CRITICAL])
def test_a_grave_finding_makes_a_run_sick(severity: Severity) -> None:
    diagnosis = diagnose(RUN, [rule("illness", finding(1, severity=severity))])
    assert (diagnosis.verdict, diagnosis.worst) == (Verdict.SICK, severity)
    assert diagnosis.reason is None


def test_a_note_leaves_a_run_healthy() -> None:
    diagnosis = diagnose(RUN, [rule("illness", finding(1, severity=NOTE))])
    assert (diagnosis.verdict, diagnosis.worst) == (Verdict.HEALTHY, NOTE)


def test_a_static_finding_beats_unknown() -> None:
    found = finding(0, evidence=(Evidence("eps", "x", 0.0, 1.0, "1"),))
    diagnosis = diagnose(make_trace(eps=1e-8), [static("illness", found, needs=("eps",))])
    assert diagnosis.verdict is Verdict.SICK


@pytest.mark.parametrize("kind", ["reward", "adversarial", "diffusion", "unknown"])
def test_a_loss_that_need_not_fall_proves_no_health(kind: str) -> None:
    diagnosis = diagnose(make_trace(loss=[1.0] * 400, loss_kind=kind), [rule()])
    assert diagnosis.verdict is Verdict.UNKNOWN
    word = "nobody knows" if kind == "unknown" else kind
    assert word in (diagnosis.reason or "")


TOO_FEW = "{} too few to call a run healthy: 30 are needed"


@pytest.mark.parametrize(
    ("loss", "verdict", "reason"),
    [
        ([1.0] * LEAST_LOSSES, Verdict.HEALTHY, None),
        ([1.0] * 29, Verdict.UNKNOWN, TOO_FEW.format("29 finite losses are")),
        ([1.0] * 29 + [np.nan] * 90, Verdict.UNKNOWN, TOO_FEW.format("29 finite losses are")),
        ([1.0], Verdict.UNKNOWN, TOO_FEW.format("1 finite loss is")),
        ([1.0] * 30 + [np.nan] * 90, Verdict.HEALTHY, None),
    ],
)
def test_thirty_finite_losses_are_needed_for_health(
    loss: list[float], verdict: Verdict, reason: str | None
) -> None:
    diagnosis = diagnose(make_trace(loss=loss, loss_kind="falling"), [rule()])
    assert (diagnosis.verdict, diagnosis.reason) == (verdict, reason)


def test_no_loss_is_unknown() -> None:
    diagnosis = diagnose(make_trace(lr=[0.1] * 99), [rule()])
    assert (diagnosis.verdict, diagnosis.reason) == (
        Verdict.UNKNOWN,
        "no loss was recorded: doctor.log(loss=...) records it",
    )


def test_a_run_that_no_rule_could_look_at_is_not_healthy() -> None:
    blind = rule(needs=("moment2_zero",))
    diagnosis = diagnose(make_trace(loss=[1.0] * 99), [blind])
    assert diagnosis.verdict is Verdict.UNKNOWN
    assert diagnosis.reason == "none of 1 rules could look at it"


# Settings and order


def test_settings_choose_the_rules() -> None:
    one, other = rule("one", finding(1), explains=("other",)), rule("other", finding(2))
    diagnosis = diagnose(RUN, [one, other], Settings(ignore=("one",)))
    assert list(diagnosis.outcomes) == ["other"]
    assert causes_of(diagnosis, "other") == Differential()
    with pytest.raises(SettingsError, match="third"):
        diagnose(RUN, [one, other], Settings(select=("third",)))


def test_findings_stand_in_total_order_whatever_the_order_of_rules() -> None:
    rules = [
        rule("b", finding(5), finding(2, severity=CRITICAL)),
        rule("a", finding(5), finding(1, severity=NOTE)),
        rule("c", finding(4, 9), finding(4, 8)),
    ]
    expected = [("b", 2, 2), ("c", 4, 8), ("c", 4, 9), ("a", 5, 5), ("b", 5, 5), ("a", 1, 1)]
    for order in permutations(rules):
        diagnosis = diagnose(RUN, order)
        assert [(f.rule, *f.steps) for f in diagnosis.findings] == expected
        outcome = diagnosis.outcomes["b"]
        assert [f.steps for f in outcome.findings] == [(2, 2), (5, 5)]


def test_the_registry_diagnoses_the_same_run_the_same_way() -> None:
    for registered in RULES:
        assert diagnose(registered.sick()) == diagnose(registered.sick())


def test_a_rule_that_declares_every_metric_sees_metrics_and_nothing_else() -> None:
    trace = make_trace(**{"metric:wer": np.ones(3), "loss": np.ones(3)}).only({"metric:*"})
    assert list(trace.series) == ["metric:wer"]
    assert trace.has("metric:*")
    assert not make_trace(loss=np.ones(3)).has("metric:*")
    with pytest.raises(Undeclared):
        trace.series["loss"]


def test_a_run_of_which_nobody_can_tell_whether_it_diverges_is_not_healthy() -> None:
    falling = np.linspace(3, -3, 400) + np.sin(np.arange(400))
    for loss in (falling, falling[::-1]):
        diagnosis = diagnose(make_trace(loss=loss))
        assert (diagnosis.verdict, diagnosis.reason) == (
            Verdict.UNKNOWN,
            "no divergence could be looked for"
            " (losses below 0: whether a rise is good or bad is not known)",
        )
    assert diagnose(make_trace(loss=falling + 9)).verdict is Verdict.HEALTHY


def test_losses_that_are_all_exactly_0_prove_nothing() -> None:
    diagnosis = diagnose(make_trace(loss=np.zeros(200)))
    assert (diagnosis.verdict, diagnosis.reason) == (
        "unknown",
        "every loss is exactly 0, as a log prints where it hides NaN",
    )


# Updates that were skipped


def skipping(
    rows: int, at: Any, losses: int | None = None, distance: int = 1, **more: Any
) -> Diagnosis:
    """A run of rows so many steps apart, the updates `at` of which were skipped."""
    steps = distance * np.arange(1, rows + 1)
    losses = rows if losses is None else losses
    places = {"lr": steps, "loss": steps[:losses], "step_skipped": distance * np.asarray(at)}
    places |= {name: np.arange(1, len(v) + 1) for name, v in more.items()}
    channels = {"lr": np.ones(rows), "loss": np.ones(losses), "step_skipped": np.ones(len(at))}
    return diagnose(make_trace({**channels, **more}, steps=places, loss_kind="falling"), [rule()])


def test_a_run_whose_newest_updates_were_all_skipped_is_not_healthy() -> None:
    diagnosis = skipping(1500, range(901, 1501), losses=900)
    assert (diagnosis.verdict, diagnosis.reason) == (
        Verdict.UNKNOWN,
        "the last 600 updates were skipped: no loss since step 900",
    )
    goes_on = skipping(400, range(201, 401))
    assert goes_on.reason == "the last 200 updates were skipped: none was made after step 200"
    sparse = skipping(150, range(91, 151), losses=90, distance=10)
    assert sparse.reason == "the last 60 rows of updates were skipped: no loss since step 900"


@pytest.mark.parametrize(
    ("rows", "skipped", "verdict"),
    [
        (1000, range(972, 1001), Verdict.HEALTHY),
        (1000, range(971, 1001), Verdict.UNKNOWN),
        (100, range(92, 101), Verdict.HEALTHY),
        (100, range(91, 101), Verdict.UNKNOWN),
        (30, range(29, 31), Verdict.HEALTHY),
        (32, range(30, 33), Verdict.HEALTHY),
        (1000, range(100, 200), Verdict.HEALTHY),
        (1000, range(900, 1000), Verdict.HEALTHY),
        (1000, range(20, 1001, 20), Verdict.HEALTHY),
    ],
)
def test_a_few_skipped_updates_and_those_that_others_followed_are_healthy(
    rows: int, skipped: range, verdict: Verdict
) -> None:
    assert skipping(rows, skipped).verdict is verdict


def test_a_loss_that_ends_before_other_channels_needs_skipped_updates_to_prove_nothing() -> None:
    losses = {"loss": np.ones(400), "loss_kind": "falling"}
    evaluated = make_trace(losses, eval_loss=np.ones(900))
    assert diagnose(evaluated, [rule()]).verdict is Verdict.HEALTHY
    assert skipping(400, [1, 2, 3], eval_loss=np.ones(900)).verdict is Verdict.HEALTHY
    skips = np.ones(400)
    skips[395] = 0
    made_late = make_trace(losses | {"loss": np.ones(100)}, step_skipped=skips)
    assert diagnose(made_late, [rule()]).verdict is Verdict.HEALTHY
    told_as_made = make_trace(losses, lr=np.ones(900), step_skipped=np.zeros(900))
    assert diagnose(told_as_made, [rule()]).verdict is Verdict.HEALTHY


def test_a_finding_beats_skipped_updates() -> None:
    found = rule("illness", finding(1))
    trace = make_trace(loss=np.ones(400), step_skipped=np.ones(400), loss_kind="falling")
    assert diagnose(trace, [rule()]).verdict is Verdict.UNKNOWN
    assert diagnose(trace, [found]).verdict is Verdict.SICK


def test_skipped_updates_are_seen_in_rows_that_were_thinned() -> None:
    for healthy in (False, True):
        recorder = Recorder(step_capacity=64)
        for step in range(1, 3001):
            values = {"loss": 1.0}
            if step > 2000 and not (healthy and step == 3000):
                values["step_skipped"] = 1.0
            recorder.add(Vitals(step, values))
        trace = recorder.trace({"loss_kind": "falling"})
        verdict = diagnose(trace, [rule()]).verdict
        assert verdict is (Verdict.HEALTHY if healthy else Verdict.UNKNOWN)


@pytest.mark.parametrize(
    ("reading", "what"),
    [
        (Reading(guessed=True), "what these numbers mean"),
        (Reading(), "whether this is the loss"),
    ],
)
def test_what_was_guessed_is_said_as_the_reader_knows_it(reading: Reading, what: str) -> None:
    trace = replace(make_trace(loss=[1.0] * 400, loss_kind="unknown"), reading=reading)
    assert diagnose(trace, [rule()]).reason == (
        f"{what} was guessed; a column or key named `loss` is judged; {RENAMED}"
    )


def test_what_a_loop_has_told_was_not_guessed() -> None:
    seen = np.ones((400, len(small_gpt())))
    trace = make_trace(loss=[1.0] * 400, grad_rms=seen, loss_kind="unknown", tensors=small_gpt())
    for reading in (None, Reading(guessed=True)):  # watched, and read from its folder
        told = diagnose(replace(trace, reading=reading), [rule()])
        assert told.verdict is Verdict.UNKNOWN
        assert told.reason == (
            "nobody knows whether this loss should fall: its curve alone shows no health"
        )


@pytest.mark.parametrize("name", ["reward", "Episode_Return", "rollout/ep_rew_mean"])
def test_a_loss_beside_rewards_need_not_fall(name: str) -> None:
    loss = np.append(falling_loss(200), 5 * falling_loss(200))
    rewards = {"loss": loss, f"metric:{name}": np.arange(400.0)}
    diagnosis = diagnose(make_trace(rewards))
    assert not {"divergence", "upward-drift"} & {f.rule for f in diagnosis.findings}
    assert "reward loss" in (diagnosis.reason or "")
    assert diagnose(make_trace(rewards, loss_kind="falling")).verdict is Verdict.SICK
    other = {"loss": loss, "metric:rewards_seen": np.arange(400.0)}
    assert diagnose(make_trace(other)).verdict is Verdict.SICK
