"""Public cases, acted out: the right cause is named, and what is no fault is left alone."""

from pathlib import Path

import pytest
from casing import Case, cases

from optdoctor.engine import ranked
from optdoctor.findings import Severity
from optdoctor.rules import RULES

NAMES = {rule.name for rule in RULES}


def _named(case: Case) -> object:
    marks = [pytest.mark.xfail(reason=case.missed, strict=True)] if case.missed else []
    return pytest.param(case, id=case.number, marks=marks)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", [_named(case) for case in cases().values()])
def test_the_doctor_answers_a_public_case(case: Case, tmp_path: Path) -> None:
    diagnosis = case.run(tmp_path)
    answers = ranked(diagnosis)
    if not case.rules:
        alarms = [f.summary for f in diagnosis.findings if f.severity is not Severity.NOTE]
        assert alarms == [], case.says
        return
    assert set(case.rules) <= NAMES
    assert {*answers[: 1 if case.first else 3]} & {*case.rules}, f"{case.says} {answers}"


def test_enough_cases_are_acted_out() -> None:
    answered = [case for case in cases().values() if case.rules and not case.missed]
    assert len(cases()) >= 35
    assert sum(case.first for case in answered) >= 25
