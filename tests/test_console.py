"""What a training's standard error is told, and what it is spared."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from made_up import RUN, finding

from optdoctor.engine import diagnose
from optdoctor.findings import Diagnosis, Differential, Notice, Severity, Treatment, Verdict
from optdoctor.report import text
from optdoctor.sinks import Place, make
from optdoctor.sinks.report_page import OURS
from optdoctor.synthetic import falling_loss, make_trace
from optdoctor.trace import TensorInfo


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


def test_a_cause_is_told_once_and_a_symptom_again_when_it_worsens(capsys) -> None:
    for rule, times in {"illness": 1, "divergence": 2}.items():
        first, second = (finding(3, severity=s, rule=rule) for s in (Severity.WARN, "critical"))
        said = told(capsys, Notice(4, "appeared", first), Notice(9, "worsened", second))
        assert said.count(f"{rule}:") == times


def test_a_rise_with_a_new_name_is_told_as_the_illness_it_was(capsys) -> None:
    drift, fast = (finding(3, rule=rule) for rule in ("upward-drift", "divergence"))
    first = Notice(4, "appeared", drift)
    said = told(capsys, first, Notice(9, "renamed", fast, was="upward-drift"))
    assert "upward-drift is now divergence: " in " ".join(said.split())


def test_a_cause_that_was_a_note_is_told_when_it_worsens(capsys) -> None:
    note, worse = (finding(3, severity=s, rule="illness") for s in (Severity.NOTE, Severity.WARN))
    notices = [Notice(4, "appeared", note), Notice(9, "worsened", worse)]
    assert "step 9" in told(capsys, *notices)


def test_the_line_of_a_healthy_run_keeps_to_80_columns(capsys, monkeypatch) -> None:
    long = "optdoctor  HEALTHY  " + "second-moment-underflow " * 20
    monkeypatch.setattr(text, "one_line", lambda diagnosis, trace: long)
    make("console", Place(None)).close(Diagnosis(Verdict.HEALTHY, {}, (), ()), RUN, "")
    lines = capsys.readouterr().err.splitlines()
    assert max(map(len, lines)) <= 80
    assert all(line.startswith(" " * 11 + "second-") for line in lines[1:])
    assert " ".join(" ".join(lines).split()) == " ".join(long.split())


@pytest.mark.parametrize(
    ("rules", "named"),
    [
        (("a-rule",), "shows it: a-rule."),
        (("a-rule", "b-rule"), "shows them: a-rule and b-rule."),
        (tuple("abcde"), "shows them: a, b, c and 2 more."),
    ],
)
def test_notes_are_named_with_the_way_to_read_them(rules, named, tmp_path, capsys) -> None:
    notes = tuple(finding(3, severity=Severity.NOTE, rule=rule) for rule in rules)
    healthy = Diagnosis(Verdict.HEALTHY, {}, notes, ())

    def said(folder: Path | None) -> str:
        make("console", Place(folder)).close(healthy, RUN, "")
        return " ".join(capsys.readouterr().err.split())

    assert said(None).endswith(f" doctor.diagnosis {named}")
    folder = tmp_path / "a run"
    assert said(folder).endswith(f" doctor.diagnosis {named}"), "nothing was written"
    folder.mkdir()
    assert said(folder).endswith(f" optdoctor analyze '{folder}' {named}")
    with TemporaryDirectory() as gone:
        assert said(Path(gone)).endswith(f" doctor.diagnosis {named}")


def test_a_page_in_a_folder_that_goes_with_its_program_is_not_pointed_at(tmp_path, capsys) -> None:
    sick = Diagnosis(Verdict.SICK, {}, (finding(3, rule="illness"),), ())

    def shown(folder: Path) -> str:
        (folder / "report.html").write_bytes(OURS)
        make("console", Place(folder)).close(sick, RUN, "")
        return "".join(capsys.readouterr().err.split())

    assert "report.html" in shown(tmp_path)
    with TemporaryDirectory() as folder:
        inside = Path(folder) / "optdoctor-run"
        inside.mkdir()
        assert "report.html" not in shown(inside)


def test_what_was_told_and_passed_is_taken_back(capsys: pytest.CaptureFixture[str]) -> None:
    console = make("console", Place(None))
    passed = finding(3, 9, rule="upward-drift")
    console.tell([Notice(9, "appeared", passed)])
    console.close(diagnose(RUN), RUN, "")
    said = " ".join(capsys.readouterr().err.split())
    assert said.endswith("Told while training and found no longer: upward-drift.")


@pytest.mark.parametrize(("last", "told"), [(95, False), (60, True)])
def test_a_healthy_line_says_when_tensors_were_last_looked_at(
    last: int, told: bool, capsys
) -> None:
    steps = np.arange(1, last + 1, 5)
    trace = make_trace(
        {"param_rms": np.ones((len(steps), 1))},
        loss=falling_loss(100),
        tensors=(TensorInfo("w", (3,)),),
        steps={"param_rms": steps},
    )
    make("console", Place(None)).close(diagnose(trace), trace, "")
    said = " ".join(capsys.readouterr().err.split())
    assert ("Tensors were last looked at in step" in said) is told
