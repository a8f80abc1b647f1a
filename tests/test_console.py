"""What a training's standard error is told, and what it is spared."""

import pytest
from made_up import finding

from optdoctor.findings import Differential, Notice, Severity, Treatment
from optdoctor.sinks import Place, make


def told(capsys: pytest.CaptureFixture[str], *notices: Notice) -> str:
    make("console", Place(None)).tell(list(notices))
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def test_a_root_is_told_with_its_step_and_its_first_treatment(capsys) -> None:
    root = finding(3, rule="illness", treatments=(Treatment("Do this"), Treatment("Or that")))
    said = told(capsys, Notice(4, "appeared", root))
    assert " ".join(said.split()) == "optdoctor step 4 WARN illness: A number, 2. do: Do this"


def test_what_is_found_before_the_first_update_says_so(capsys) -> None:
    assert "before step 1" in told(capsys, Notice(0, "appeared", finding(0, rule="illness")))


@pytest.mark.parametrize(
    "notice",
    [
        Notice(4, "ended", finding(3, rule="illness")),
        Notice(4, "appeared", finding(3, severity=Severity.NOTE, rule="illness")),
        Notice(4, "appeared", finding(3, rule="symptom", causes=Differential(found=("illness",)))),
    ],
    ids=["ended", "note", "explained"],
)
def test_an_end_a_note_and_an_explained_symptom_are_not_told(notice: Notice, capsys) -> None:
    assert told(capsys, notice) == ""


def test_a_long_sentence_keeps_to_80_columns(capsys) -> None:
    long = finding(3, rule="illness", treatments=(Treatment("word " * 60),))
    assert max(map(len, told(capsys, Notice(4, "appeared", long)).splitlines())) <= 80
