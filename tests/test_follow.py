"""A log is followed while it grows, is rotated, cut or written anew."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from optdoctor import follow
from optdoctor.analysis import analyze
from optdoctor.cli import watch
from optdoctor.findings import Diagnosis, Finding, Notice, Severity
from optdoctor.follow import Follower
from optdoctor.reading.reader import Unreadable
from optdoctor.synthetic import make_trace
from optdoctor.trace import Trace


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "POLL_S", 0.02)


def line(step: int, loss: float) -> str:
    return f"step: {step} loss: {loss}\n"


def lines(first: int, last: int, loss: float = 2.0) -> str:
    return "".join(line(step, loss + 1 / step) for step in range(first, last + 1))


def followed(
    path: Path, acts: list[Callable[[], object]], idle_s: float = 0.5
) -> tuple[Diagnosis, Trace, list[Notice]]:
    """Follows `path` while `acts` happen to it, a tenth of a second apart."""
    told: list[Notice] = []

    def happen() -> None:
        for act in acts:
            time.sleep(0.1)
            act()

    other = threading.Thread(target=happen)
    other.start()
    diagnosis, trace = Follower(path, lambda n, _: told.append(n), idle_s=idle_s).run()
    other.join()
    return diagnosis, trace, told


def append(path: Path, text: str) -> Callable[[], object]:
    def act() -> None:
        with path.open("a") as file:
            file.write(text)

    return act


def test_a_nan_that_appears_is_told_while_the_log_grows(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(lines(1, 50))
    acts = [
        append(path, lines(51, 60)),
        append(path, line(61, float("nan")) * 1 + line(62, float("nan"))),
    ]
    diagnosis, trace, told = followed(path, acts)
    assert [(n.what, n.finding.rule) for n in told] == [("appeared", "nan-pulse")]
    assert diagnosis.verdict == "sick"
    assert trace.series["loss"].rows == 62


def test_what_stands_in_the_log_already_is_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(lines(1, 50) + "".join(line(n, float("nan")) for n in range(51, 60)))
    _, _, told = followed(path, [])
    assert [n.finding.rule for n in told] == ["nan-pulse"]


def test_a_line_that_comes_in_two_pieces_is_one_row(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(lines(1, 40) + "step: 41 lo")
    _, trace, _ = followed(path, [append(path, "ss: 2.5\n")])
    assert trace.series["loss"].rows == 41
    assert trace.series["loss"].values[-1] == 2.5


def test_a_rotated_log_goes_on_in_the_new_file(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(lines(1, 40))

    def rotate() -> None:
        os.rename(path, tmp_path / "train.log.1")
        path.write_text(lines(41, 60))

    _, trace, _ = followed(path, [rotate, append(path, lines(61, 70))])
    assert trace.series["loss"].steps.tolist() == list(range(1, 71))


def test_a_log_that_is_cut_goes_on_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(lines(1, 60))
    _, trace, _ = followed(path, [lambda: path.write_text(lines(61, 70))])
    assert trace.series["loss"].steps.tolist() == list(range(1, 71))


def test_a_log_that_is_empty_at_first_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("")
    _, trace, _ = followed(path, [append(path, "starting up\n"), append(path, lines(1, 40))])
    assert trace.series["loss"].rows == 40


def test_a_document_that_is_written_anew_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "trainer_state.json"

    def written(rows: int) -> None:
        history = [{"loss": 2 + 1 / n, "step": n, "epoch": n / 9} for n in range(1, rows + 1)]
        path.write_text(json.dumps({"log_history": history, "max_steps": 99}))

    written(40)
    _, trace, _ = followed(path, [lambda: written(60)])
    assert trace.series["loss"].rows == 60


@pytest.mark.parametrize("shift", [0, 1])
def test_the_end_is_what_analyze_says_of_the_whole_file(tmp_path: Path, shift: int) -> None:
    path = tmp_path / "train.log"
    text = lines(1, 90).replace("step: ", f"step: {'' if shift else '0'}")
    rows = [f"step: {n - 1 + shift} loss: {2 + 1 / n}\n" for n in range(1, 91)]
    path.write_text("".join(rows[:40]))
    diagnosis, trace, _ = followed(path, [append(path, "".join(rows[40:]))])
    whole = analyze(path)
    assert whole.trace is not None
    assert text
    assert diagnosis == whole.diagnosis
    assert trace.steps == whole.trace.steps == (1, 90)


def test_a_log_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    _, trace, _ = followed(path, [lambda: path.write_text(lines(1, 40))])
    assert trace.series["loss"].rows == 40


def test_a_missing_or_hopeless_file_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(Unreadable):
        Follower(tmp_path / "nowhere.log", lambda *_: None, idle_s=0.1).run()
    (tmp_path / "words.log").write_text("nothing to see\n")
    with pytest.raises(Unreadable):
        Follower(tmp_path / "words.log", lambda *_: None, idle_s=0.1).run()


def test_the_command_prints_what_appears_and_then_the_report(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(lines(1, 50))
    command = [sys.executable, "-m", "optdoctor", "watch", str(path), "--idle", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        time.sleep(1.0)
        append(path, "".join(line(n, float("nan")) for n in range(51, 60)))()
        out, _ = process.communicate(timeout=240)
    assert process.returncode == 1
    first = out.splitlines()[0]
    assert "CRITICAL nan-pulse" in first
    assert "step 59" in first
    assert "SICK" in out


def test_the_command_says_that_a_rise_has_another_name_now(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before, now = (
        Finding(Severity.CRITICAL, "It rises.", (4, 9), (), rule=name)
        for name in ("upward-drift", "divergence")
    )
    trace = make_trace(loss=[1.0] * 9)
    watch._tell(Notice(9, "renamed", now, was=before.rule), trace)
    watch._tell(Notice(9, "ended", before), trace)
    renamed, ended = capsys.readouterr().out.splitlines()
    assert renamed.endswith("upward-drift is now divergence: CRITICAL divergence: It rises.")
    assert ended.endswith("upward-drift: no longer found")


def test_watching_a_log_needs_no_torch(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(lines(1, 50))
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from optdoctor.cli import main\n"
        f"main(['watch', {str(path)!r}, '--idle', '0'], standalone_mode=False)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
