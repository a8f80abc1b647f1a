"""Which finding can be the cause of which, and how causes rank."""

from collections.abc import Sequence
from itertools import permutations

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
from optdoctor.synthetic import make_trace
from optdoctor.trace import Trace

SYMPTOM = rule("symptom", finding(300))


def cause(
    name: str, *found: Finding, explains: Sequence[str] = ("symptom",), **more: object
) -> Rule:
    return rule(name, *found, explains=tuple(explains), **more)


def differential(*causes: Rule, trace: Trace = RUN) -> Differential:
    return causes_of(diagnose(trace, [SYMPTOM, *causes]), "symptom")


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
        symptom = rule("symptom", finding(onset), onset=kind)
        return causes_of(diagnose(trace, [symptom, cause("cause", finding(onset + by))]), "symptom")

    assert found(reach, estimated=True) == Differential(found=("cause",))
    assert found(reach + 1, estimated=True) == Differential()
    assert found(0, estimated=False) == Differential(found=("cause",))
    assert found(1, estimated=False) == Differential()


def test_what_comes_again_has_to_be_seen_by_the_second_time() -> None:
    def found(at: int, **more: int) -> tuple[str, ...]:
        symptom = rule("symptom", finding(71, **more), onset="estimated")
        return causes_of(diagnose(RUN, [symptom, cause("cause", finding(at))]), "symptom").found

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
    assert all(r.onset == "exact" for r in RULES if r.name not in SYMPTOMS)


def test_the_earliest_of_its_findings_counts() -> None:
    assert differential(cause("cause", finding(400), finding(7))).found == ("cause",)


def test_a_note_is_no_cause() -> None:
    note = cause("cause", finding(1, severity=Severity.NOTE))
    diagnosis = diagnose(RUN, [SYMPTOM, note])
    assert causes_of(diagnosis, "symptom") == Differential(clear=("cause",))
    assert diagnosis.causes == ()


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
    silent = static("cause", needs=("eps",), explains=("symptom",))
    assert differential(silent, trace=facts) == Differential(ruled_out=("cause",))


def test_a_static_cause_that_found_something_is_found() -> None:
    facts = make_trace(loss=[1.0] * 400, eps=1e-8)
    before = finding(0, evidence=(Evidence("eps", "x", 0.0, 1.0, "1"),))
    found = static("cause", before, needs=("eps",), explains=("symptom",))
    assert differential(found, trace=facts) == Differential(found=("cause",))


def test_a_cause_without_its_channel_was_not_examined() -> None:
    skipped = cause("cause", needs=("grad_norm", "lr|eps"))
    assert differential(skipped).not_examined == (
        NotExamined("cause", missing=("grad_norm", "lr|eps")),
    )
    assert differential(static("cause", needs=("eps",), explains=("symptom",))).not_examined == (
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


def test_rules_of_the_second_moment_and_of_epsilon_spare_sgd() -> None:
    assert {r.name for r in RULES if r.spares} == {
        "epsilon-below-precision",
        "second-moment-saturated",
        "second-moment-underflow",
    }


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
    result = causes_of(diagnose(trace, [rule("symptom", finding(onset)), silent]), "symptom")
    expected = (NotExamined("cause", unsampled=gap),) if gap else ()
    assert (result.not_examined, bool(result.clear)) == (expected, not gap)


def test_a_cause_brings_about_what_its_effect_brings_about() -> None:
    middle = cause("middle", finding(200))
    root = cause("root", finding(100), explains=("middle",))
    diagnosis = diagnose(RUN, [SYMPTOM, middle, root])
    assert causes_of(diagnosis, "symptom").found == ("middle", "root")
    assert [(c.rule, c.explains) for c in diagnosis.causes] == [
        ("root", ("middle", "symptom")),
        ("middle", ("symptom",)),
    ]


def test_rules_that_explain_each_other_do_not_hang_it() -> None:
    one = cause("one", finding(1), explains=("other",))
    other = cause("other", finding(1), explains=("one", "symptom"))
    assert causes_of(diagnose(RUN, [one, other, SYMPTOM]), "symptom").found == ("one", "other")


def test_causes_rank_roots_then_mechanisms_then_the_earliest() -> None:
    rules = [
        SYMPTOM,
        cause("effect", finding(10), mechanism=True),
        cause("a-late-root", finding(9), explains=("symptom",)),
        cause("root-early", finding(8), explains=("symptom",)),
        cause("mechanism-root", finding(9), explains=("effect",), mechanism=True),
    ]
    ranked = ["mechanism-root", "root-early", "a-late-root", "effect"]
    for order in permutations(rules):
        assert [c.rule for c in diagnose(RUN, order).causes] == ranked


def test_causes_of_one_rank_stand_by_name() -> None:
    one, other = cause("b", finding(9)), cause("a", finding(9))
    assert [c.rule for c in diagnose(RUN, [SYMPTOM, one, other]).causes] == ["a", "b"]


def test_a_symptom_is_no_cause() -> None:
    assert diagnose(RUN, [SYMPTOM]).causes == ()


SAME = Treatment("Restart in float32", {"state_dtype": ("float16", "float32")})
REWORDED = Treatment("Keep the state in float32", {"state_dtype": ("float16", "float32")})
OTHER = Treatment("Lower the rate", {"beta1": (0.9, 0.8)})
PLAIN = Treatment("Discard later checkpoints")
TELL_APART = Treatment("Look at the batch", when="check")


def left(found: Finding, *causes: Rule) -> tuple[Treatment, ...]:
    diagnosis = diagnose(RUN, [rule("symptom", found), *causes])
    return next(f for f in diagnosis.findings if f.rule == "symptom").treatments


def test_a_symptom_whose_cause_is_found_keeps_only_treatments_that_differ() -> None:
    found = finding(300, treatments=(REWORDED, OTHER, PLAIN, TELL_APART))
    treated = cause("cause", finding(200, treatments=(SAME,)))
    assert left(found, treated) == (OTHER, PLAIN)
    assert left(found, cause("cause", finding(200, treatments=(PLAIN,)))) == (REWORDED, OTHER)


def test_a_symptom_whose_cause_is_not_found_keeps_all_its_treatments() -> None:
    found = finding(300, treatments=(REWORDED, OTHER, TELL_APART))
    assert left(found, cause("cause", finding(301, treatments=(SAME,)))) == found.treatments
    assert left(found) == found.treatments
