"""`analyze --explain-reading` says who read a log and why, and what became of its names."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from optdoctor.cli import main

LOG = (
    "step 0: train loss 4.2874, val loss 4.2823\n"
    + "".join(f"iter {n}: loss {4 - n / 100}, time 48.77ms, mfu 7.09%\n" for n in range(40))
    + "iter 40: loss is odd here\n"
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "train.log"
    path.write_text(LOG)
    return path


def explained(path: Path, *more: str) -> str:
    result = CliRunner().invoke(main, ["analyze", "--explain-reading", str(path), *more])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_reader_reason_names_and_skipped_lines_stand_above_the_report(path: Path) -> None:
    told = explained(path)
    head, _, report = told.partition("\n\n")
    lines = head.splitlines()
    assert lines[0] == "train.log read by nanogpt"
    assert "41 rows of nanogpt" in lines[1]
    assert "loss             -> loss, 40 rows, steps 0-39" in head
    assert "-> eval_loss, 1 row, step 0" in head
    assert "dropped    mfu" in head
    assert "loss_kind falling" in head
    assert "skipped    1 line" in head
    assert "iter 40: loss is odd here" in head
    assert report.startswith("optdoctor")


def test_a_guess_is_called_one(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text("".join(f"cost {3 - n / 50}\n" for n in range(40)))
    told = explained(path)
    assert "guessed, not known" in told
    assert "names      cost -> loss" in told


def test_a_guess_says_how_to_tell_the_loss_and_that_works(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text("".join(f"it={n} cost {3 - n / 50} elapsed 1s\n" for n in range(60)))
    assert "sed 's/NAME/loss/' LOG | optdoctor analyze -" in " ".join(explained(path).split())
    renamed = path.read_text().replace("cost", "loss")
    assert "HEALTHY" in CliRunner().invoke(main, ["analyze", "-"], input=renamed).stdout


def test_json_holds_the_reading_only_when_asked(path: Path) -> None:
    plain = CliRunner().invoke(main, ["analyze", str(path), "--format", "json"]).stdout
    assert "reading" not in json.loads(plain)["runs"][0]
    (run,) = json.loads(explained(path, "--format", "json"))["runs"]
    assert run["reading"]["names"]["loss"] == "loss"
    assert run["reading"]["guessed"] is False
    assert run["reading"]["skipped"][0]["text"] == "iter 40: loss is odd here"


def test_what_a_log_says_steers_no_terminal(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(LOG + "iter 41: loss \x9b31m\u202e\x07 odd\n")
    told = explained(path)
    assert not any(mark in told for mark in ("\x9b", "\u202e", "\x07"))


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_read_prints_the_channels(path: Path, form: str) -> None:
    result = CliRunner().invoke(main, ["read", str(path), "--format", form])
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 40 + (form == "csv")
    assert "loss" in result.stdout.splitlines()[0]


def test_read_of_no_log_is_one_sentence_and_exit_2(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("words\n")
    result = CliRunner().invoke(main, ["read", str(tmp_path / "notes.txt")])
    assert (result.exit_code, result.stdout) == (2, "")
    assert len(result.stderr.splitlines()) == 1


def test_read_writes_parquet_to_a_file(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    result = CliRunner().invoke(main, ["read", str(path), "--format", "parquet", "-o", str(out)])
    assert (result.exit_code, result.output) == (0, "")
    assert out.read_bytes()[:4] == b"PAR1"
