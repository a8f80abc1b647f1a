"""Which finding can be the cause of which."""

from collections.abc import Sequence

import numpy as np
import pytest
from made_up import RUN, causes_of, finding, rule, static

from optdoctor.engine import diagnose
from optdoctor.findings import (
    Abstain,
    Differential,
    Evidence,
    Finding,
    NotExamined,
    Severity,
    Status,
    Treatment,
)
from optdoctor.rule import SYMPTOMS, Limits, Rule
from optdoctor.rules import RULES
from optdoctor.synthetic import make_trace, small_gpt
from optdoctor.trace import Trace

SPIKE = "loss-spike"
SYMPTOM = rule(SPIKE, finding(300))


def cause(name: str, *found: Finding, explains: Sequence[str] = (SPIKE,), **more: object) -> Rule:
    return rule(name, *found, explains=tuple(explains), **more)


def differential(*causes: Rule, trace: Trace = RUN) -> Differential:
    return causes_of(diagnose(trace, [SYMPTOM, *causes]), SPIKE)


def test_a_cause_that_began_no_later_is_found() -> None:
    assert differential(cause("cause", finding(299))).found == ("cause",)
    assert differential(cause("cause", finding(300))).found == ("cause",)


def test_a_cause_that_began_later_is_neither_found_nor_clear() -> None:
    assert differential(cause("cause", finding(301))) == Differential()


@pytest.mark.parametrize(("onset", "reach"), [(300, 64), (2048, 64), (2080, 65), (6400, 200)])
def test_a_cause_within_reach_of_an_estimated_onset_is_found(onset: int, reach: int) -> None:
    """A shape shows from which block on, not from which step: decision 0012."""
    trace = make_trace(loss=[1.0] * 7000)

    def found(by: int, estimated: bool) -> Differential:
        kind = "estimated" if estimated else "exact"
        symptom = rule(SPIKE, finding(onset), onset=kind)
        return causes_of(diagnose(trace, [symptom, cause("cause", finding(onset + by))]), SPIKE)

    assert found(reach, estimated=True) == Differential(found=("cause",))
    assert found(reach + 1, estimated=True) == Differential()
    assert found(0, estimated=False) == Differential(found=("cause",))
    assert found(1, estimated=False) == Differential()


def test_what_comes_again_has_to_be_seen_by_the_second_time() -> None:
    def found(at: int, **more: int) -> tuple[str, ...]:
        symptom = rule(SPIKE, finding(71, **more), onset="estimated")
        return causes_of(diagnose(RUN, [symptom, cause("cause", finding(at))]), SPIKE).found

    assert found(141, period=70) == ("cause",)
    assert found(142, period=70) == ()
    assert found(136) == ()
    assert found(71 + 64, period=2) == ("cause",)


def test_the_onsets_of_shapes_are_estimates_and_those_of_facts_are_not() -> None:
    kinds = {r.name: r.onset for r in RULES if r.name in SYMPTOMS}
    assert {name for name, kind in kinds.items() if kind == "exact"} == {
        "nan-pulse",
        "nonfinite-gradient",
        "loss-spike",
        "gradient-outlier",
        "loss-scale-collapse",
    }


def test_the_earliest_of_its_findings_counts() -> None:
    assert differential(cause("cause", finding(400), finding(7))).found == ("cause",)


def test_a_note_is_no_cause() -> None:
    note = cause("cause", finding(1, severity=Severity.NOTE))
    assert differential(note) == Differential(clear=("cause",))


def test_a_cause_that_looked_and_found_nothing_is_clear() -> None:
    assert differential(cause("cause")) == Differential(clear=("cause",))


def test_of_two_symptoms_of_one_step_neither_is_the_cause_of_the_other() -> None:
    """A NaN loss gives a NaN gradient at the same step: only an earlier one can be the cause."""

    def named(onset: int) -> tuple[Differential, bool]:
        gradient = rule("nonfinite-gradient", finding(onset), explains=("nan-pulse",))
        diagnosis = diagnose(RUN, [rule("nan-pulse", finding(300)), gradient])
        causes = [c for c in diagnosis.causes if c.explains]
        return causes_of(diagnosis, "nan-pulse"), bool(causes)

    assert named(299) == (Differential(found=("nonfinite-gradient",)), True)
    assert named(300) == (Differential(), False)
    assert named(301) == (Differential(), False)


def test_a_static_cause_that_found_nothing_is_ruled_out() -> None:
    facts = make_trace(loss=[1.0] * 400, eps=1e-8)
    silent = static("cause", needs=("eps",), explains=(SPIKE,))
    assert differential(silent, trace=facts) == Differential(ruled_out=("cause",))


def test_a_static_cause_that_found_something_is_found() -> None:
    facts = make_trace(loss=[1.0] * 400, eps=1e-8)
    before = finding(0, evidence=(Evidence("eps", "x", 0.0, 1.0, "1"),))
    found = static("cause", before, needs=("eps",), explains=(SPIKE,))
    assert differential(found, trace=facts) == Differential(found=("cause",))


def test_a_cause_without_its_channel_was_not_examined() -> None:
    skipped = cause("cause", needs=("grad_norm", "lr|eps"))
    assert differential(skipped).not_examined == (
        NotExamined("cause", missing=("grad_norm", "lr|eps")),
    )
    assert differential(static("cause", needs=("eps",), explains=(SPIKE,))).not_examined == (
        NotExamined("cause", missing=("eps",)),
    )


def test_a_cause_that_the_optimizer_cannot_have_is_ruled_out_without_its_channels() -> None:
    """SGD has no epsilon: that none was measured leaves nothing open."""
    blind = cause("cause", needs=("eps", "moment2_zero"), spares=("sgd",))
    for family, expected in (
        ("sgd", Differential(ruled_out=("cause",))),
        ("other", Differential(not_examined=(NotExamined("cause", ("eps", "moment2_zero")),))),
        (None, Differential(not_examined=(NotExamined("cause", ("eps", "moment2_zero")),))),
    ):
        facts = make_trace(loss=[1.0] * 400, optimizer_family=family)
        assert differential(blind, trace=facts) == expected
        status = Status.CLEAR if family == "sgd" else Status.SKIPPED
        assert diagnose(facts, [blind]).outcomes["cause"].status is status


def test_a_rule_that_cannot_do_without_the_second_moment_spares_sgd() -> None:
    def of_moment(need: tuple[str, ...]) -> bool:
        return all(n in ("eps", "beta2") or n.startswith("moment2_") for n in need)

    of_it = [r for r in RULES if any(of_moment(need) for need in r.needed)]
    assert len(of_it) >= 3
    assert [r.name for r in of_it if "sgd" not in r.spares] == []


def test_a_cause_that_abstained_or_crashed_was_not_examined() -> None:
    abstained = cause("abstained", check=lambda trace, limits: Abstain("too noisy"))
    crashed = cause("crashed", check=lambda trace, limits: 1 / 0)
    few = cause("few", limits=Limits(rows=401))
    assert differential(abstained, crashed, few) == Differential(
        not_examined=(
            NotExamined("abstained", reason="too noisy"),
            NotExamined("crashed", reason="the rule crashed"),
            NotExamined("few", reason="400 rows of loss, needs 401"),
        )
    )


@pytest.mark.parametrize(
    ("onset", "sampled", "gap"),
    [
        (300, [1, 236, 390], None),
        (300, [1, 235, 390], (235, 390)),
        (300, [300], None),
        (300, [1, 235], (235, 300)),
        (300, [301, 390], (1, 301)),
        (6400, [6200, 6900], None),
        (6400, [6199, 6900], (6199, 6900)),
    ],
)
def test_clear_only_with_a_row_within_reach(
    onset: int, sampled: list[int], gap: tuple[int, int] | None
) -> None:
    trace = make_trace(loss=[1.0] * 7000, lr=[0.1] * len(sampled), steps={"lr": sampled})
    silent = cause("cause", needs=("lr",))
    result = causes_of(diagnose(trace, [rule(SPIKE, finding(onset)), silent]), SPIKE)
    expected = (NotExamined("cause", unsampled=gap),) if gap else ()
    assert (result.not_examined, bool(result.clear)) == (expected, not gap)


def test_a_cause_brings_about_what_its_effect_brings_about() -> None:
    middle = cause("middle", finding(200))
    root = cause("root", finding(100), explains=("middle",))
    assert differential(middle, root).found == ("middle", "root")


def test_rules_that_explain_each_other_do_not_hang_it() -> None:
    one = cause("one", finding(1), explains=("other",))
    other = cause("other", finding(1), explains=("one", SPIKE))
    assert causes_of(diagnose(RUN, [one, other, SYMPTOM]), SPIKE).found == ("one", "other")


KINDS: dict[str, dict[str, bool]] = {
    "counter": {"mechanism": True},
    "statistic": {},
    "symptom too": {"mechanism": True, "symptom_too": True},
}
SAMPLED = make_trace(
    {"loss": np.ones(7000), "attention_entropy": np.ones(7000), "grad_norm": np.ones(7000)},
    update_ratio=np.ones((7000, 9)),
    tensors=small_gpt(),
)


@pytest.mark.parametrize(
    ("needs", "kind", "onset", "late"),
    [
        ("update_ratio", "counter", 300, 64),
        ("update_ratio", "counter", 6400, 200),
        ("update_ratio", "statistic", 300, 16),
        ("update_ratio", "statistic", 6400, 50),
        ("attention_entropy", "counter", 300, 64),
        ("attention_entropy", "statistic", 300, 16),
        ("grad_norm|grad_norm_used", "counter", 300, 0),
        ("update_ratio", "symptom too", 300, 16),
        ("loss", "counter", 300, 0),
        ("loss", "statistic", 300, 0),
    ],
)
def test_a_cause_read_from_samples_may_be_seen_after_what_it_brings_about(
    needs: str, kind: str, onset: int, late: int
) -> None:
    def found(at: int) -> Differential:
        seen = finding(at, evidence=(Evidence(needs.partition("|")[0], "x", 2.0, 1.0, "1"),))
        illness = cause("cause", seen, needs=(needs,), **KINDS[kind])
        effect = rule(SPIKE, finding(onset))
        return causes_of(diagnose(SAMPLED, [effect, illness]), SPIKE)

    assert found(onset + late) == Differential(found=("cause",))
    assert found(onset + late + 1) == Differential()


@pytest.mark.parametrize("effect", ["nan-pulse", "nonfinite-gradient"])
def test_a_sample_after_a_nan_shows_no_cause_of_it(effect: str) -> None:
    seen = finding(301, evidence=(Evidence("update_ratio", "x", 2.0, 1.0, "1"),))
    late = cause("cause", seen, needs=("update_ratio",), mechanism=True, explains=(effect,))
    diagnosis = diagnose(SAMPLED, [rule(effect, finding(300)), late])
    assert causes_of(diagnosis, effect) == Differential()


def test_a_symptom_read_from_samples_gets_no_such_grace() -> None:
    """Between a gradient and a loss that are not finite one step decides which came first."""
    seen = finding(301, evidence=(Evidence("grad_nonfinite", "x", 2.0, 1.0, "1"),))
    gradients = {"loss": np.ones(400), "grad_nonfinite": np.ones((400, 9))}
    trace = make_trace(gradients, tensors=small_gpt())
    gradient = rule("nonfinite-gradient", seen, needs=("grad_nonfinite",), explains=("nan-pulse",))
    diagnosis = diagnose(trace, [rule("nan-pulse", finding(300)), gradient])
    assert causes_of(diagnosis, "nan-pulse") == Differential()


SAME = Treatment("Restart in float32", {"state_dtype": ("float16", "float32")})
REWORDED = Treatment("Keep the state in float32", {"state_dtype": ("float16", "float32")})
OTHER = Treatment("Lower the rate", {"beta1": (0.9, 0.8)})
PLAIN = Treatment("Discard later checkpoints")
TELL_APART = Treatment("Look at the batch", when="check")


def left(found: Finding, *causes: Rule) -> tuple[Treatment, ...]:
    diagnosis = diagnose(RUN, [rule(SPIKE, found), *causes])
    return next(f for f in diagnosis.findings if f.rule == SPIKE).treatments


def test_a_symptom_whose_cause_is_found_keeps_only_treatments_that_differ() -> None:
    found = finding(300, treatments=(REWORDED, OTHER, PLAIN, TELL_APART))
    treated = cause("cause", finding(200, treatments=(SAME,)))
    assert left(found, treated) == (OTHER, PLAIN)
    assert left(found, cause("cause", finding(200, treatments=(PLAIN,)))) == (REWORDED, OTHER)


def test_a_symptom_whose_cause_is_not_found_keeps_all_its_treatments() -> None:
    found = finding(300, treatments=(REWORDED, OTHER, TELL_APART))
    assert left(found, cause("cause", finding(301, treatments=(SAME,)))) == found.treatments
    assert left(found) == found.treatments
