"""The command line as a user meets it: exit codes, one sentence an error, valid documents."""

import csv
import json
import math
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from jsonschema import Draft202012Validator

from optdoctor.cli import main
from optdoctor.readers import read
from optdoctor.reading.reader import Unreadable
from optdoctor.report import document

needs_full_device = pytest.mark.skipif(
    not (Path("/dev/full").exists() and shutil.which("bash")), reason="needs bash and /dev/full"
)


def analyze(*arguments: object, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(main, ["analyze", *map(str, arguments)], input=stdin)


def as_json(*arguments: object) -> tuple[int, dict]:
    result = analyze("--format", "json", *arguments)
    read = json.loads(result.stdout)
    Draft202012Validator(document.schema()).validate(read)
    return result.exit_code, read


@pytest.fixture(scope="module")
def healthy_rows() -> list[list[float]]:
    """10,000 noisy steps with warm-up and cosine."""
    rng = np.random.default_rng(0)
    rows = []
    for step in range(1, 10_001):
        rate = 1e-3 * min(step / 500, 0.5 * (1 + math.cos(math.pi * step / 10_000)))
        loss = (1.5 + 4 * step**-0.4) * math.exp(0.05 * rng.standard_normal())
        rows.append([step, loss, rate, math.exp(0.3 * rng.standard_normal())])
    return rows


def write_csv(path: Path, rows: list[list[float]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["step", "loss", "lr", "grad_norm"])
        writer.writerows(rows)
    return path


def graver_than_a_note(read):
    return [f for f in read["runs"][0]["findings"] if f["severity"] != "note"]


def test_ten_thousand_healthy_noisy_steps_are_healthy(tmp_path, healthy_rows):
    code, read = as_json(write_csv(tmp_path / "train.csv", healthy_rows))
    assert (code, read["runs"][0]["verdict"], read["runs"][0]["findings"]) == (0, "healthy", [])


def test_the_same_with_nan_from_step_7000_is_a_nan_pulse(tmp_path, healthy_rows):
    rows = [[s, math.nan if s >= 7000 else loss, *more] for s, loss, *more in healthy_rows]
    code, read = as_json(write_csv(tmp_path / "train.csv", rows))
    (finding,) = graver_than_a_note(read)
    assert (code, finding["rule"], finding["steps"]) == (1, "nan-pulse", [7000, 10_000])
    assert finding["severity"] == "critical"
    assert "permanent" in finding["evidence"][0]["what"]


def test_one_nan_in_ten_thousand_steps_is_isolated_and_no_failure_by_default(
    tmp_path, healthy_rows
):
    rows = [[s, math.nan if s == 7000 else loss, *more] for s, loss, *more in healthy_rows]
    path = write_csv(tmp_path / "train.csv", rows)
    code, read = as_json(path)
    (finding,) = graver_than_a_note(read)
    assert (code, finding["severity"], finding["steps"]) == (0, "warn", [7000, 7000])
    assert analyze("--fail-on", "warn", path).exit_code == 1
    assert analyze("--fail-on", "never", path).exit_code == 0


@pytest.mark.parametrize("kind", ["empty", "png", "folder", "missing", "binary", "text"])
def test_what_is_no_log_gets_one_sentence_and_exit_2(tmp_path, kind):
    path = tmp_path / "thing"
    if kind == "empty":
        path.touch()
    elif kind == "png":
        path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40)
    elif kind == "binary":
        path.write_bytes(np.random.default_rng(0).bytes(100_000))
    elif kind == "text":
        path.write_text("It was a dark and stormy night, and nothing was trained.\n" * 50)
    elif kind == "folder":
        path.mkdir()
        (path / "notes.txt").write_text("nothing here")
    result = analyze(path)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert str(path) in result.stderr
    assert ";" in result.stderr  # the reason, then the remedy
    code, read = as_json(path)
    assert (code, read["runs"], len(read["errors"])) == (2, [], 1)


def test_an_unreadable_path_does_not_hide_the_others(tmp_path, healthy_rows):
    good = write_csv(tmp_path / "good.csv", healthy_rows[:100])
    code, read = as_json(tmp_path / "missing.log", good)
    assert (code, len(read["runs"]), len(read["errors"])) == (2, 1, 1)


@pytest.mark.parametrize("where", [0.3, 0.5, 0.77, 0.999])
def test_a_log_cut_in_the_middle_of_a_line_is_read_as_far_as_it_goes(tmp_path, healthy_rows, where):
    whole = write_csv(tmp_path / "whole.csv", healthy_rows).read_bytes()
    cut = whole[: int(len(whole) * where)]
    (tmp_path / "cut.csv").write_bytes(cut)
    code, read = as_json(tmp_path / "cut.csv")
    assert code == 0
    assert read["runs"][0]["steps"][1] >= cut.count(b"\n") - 1
    assert read["runs"][0]["verdict"] == "healthy"


def test_mixed_encodings_and_nul_bytes_are_read_and_counted(tmp_path):
    rows = [b"{'loss': %.4f, 'grad_norm': 1.0, 'epoch': 0.1}" % (3 - i / 50) for i in range(60)]
    dirt = [b"\xff\xfe caf\xe9", "schön".encode(), "schön".encode("latin-1"), b"\0\0\0"]
    lines = [line for row in zip(rows, dirt * 15, strict=True) for line in row]
    path = tmp_path / "train.log"
    path.write_bytes(b"\n".join(lines) + b"\n{'loss': 1.2, 'grad_")
    code, read = as_json(path)
    run = read["runs"][0]
    assert (code, run["steps"], run["verdict"]) == (0, [1, 60], "healthy")
    assert run["lines_skipped"] >= 1


def test_standard_input_is_a_log_too():
    log = "\n".join(f"{{'loss': '{3 - i / 50:.4g}', 'epoch': '0.1'}}" for i in range(40))
    result = analyze("-", stdin=log)
    assert result.exit_code == 0
    assert "HEALTHY" in result.stdout


def test_a_reader_can_be_named_and_a_wrong_name_is_told(tmp_path, healthy_rows):
    path = write_csv(tmp_path / "train.csv", healthy_rows[:50])
    assert analyze("--reader", "csv", path).exit_code == 0
    result = analyze("--reader", "tarot", path)
    assert result.exit_code == 2
    assert "csv" in result.stderr


def test_a_reader_that_fails_is_one_sentence_and_exit_3(tmp_path, healthy_rows, monkeypatch):
    from optdoctor import readers

    def broken(*_: object) -> None:
        raise RuntimeError("on purpose")

    monkeypatch.setattr(readers, "read_source", broken)
    result = analyze(write_csv(tmp_path / "train.csv", healthy_rows[:50]))
    assert result.exit_code == 3
    assert len(result.stderr.splitlines()) == 1
    assert "on purpose" in result.stderr


def test_a_crashed_rule_is_an_outcome_and_no_failure(tmp_path, healthy_rows, monkeypatch):
    from dataclasses import replace

    from optdoctor import engine

    def broken(*_: object) -> list:
        raise RuntimeError("on purpose")

    rules = tuple(replace(r, check=broken) if r.name == "nan-pulse" else r for r in engine.RULES)
    monkeypatch.setattr(engine, "RULES", rules)
    path = write_csv(tmp_path / "train.csv", healthy_rows[:50])
    code, read = as_json(path)
    assert code == 0
    assert "on purpose" in read["runs"][0]["outcomes"]["crashed"]["nan-pulse"]
    assert "crashed" in analyze(path).stdout


def test_rules_can_be_selected_and_ignored_and_an_unknown_one_is_wrong_usage(
    tmp_path, healthy_rows
):
    path = write_csv(tmp_path / "train.csv", [[s, math.nan, 0, 0] for s in range(1, 50)])
    assert analyze(path).exit_code == 1
    assert analyze("--ignore", "nan-pulse,labels-masked", path).exit_code == 0
    assert analyze("--select", "epsilon-below-precision", path).exit_code == 0
    result = analyze("--select", "nan-puls", path)
    assert result.exit_code == 2
    assert "did you mean nan-pulse?" in result.stderr


def test_settings_come_from_pyproject_and_an_unknown_key_is_wrong_usage(
    tmp_path, healthy_rows, monkeypatch
):
    path = write_csv(tmp_path / "train.csv", [[s, math.nan, 0, 0] for s in range(1, 50)])
    monkeypatch.chdir(tmp_path)
    settings = tmp_path / "pyproject.toml"
    settings.write_text('[tool.optdoctor]\nignore = ["nan-pulse", "labels-masked"]\n')
    assert analyze(path).exit_code == 0
    settings.write_text("[tool.optdoctor]\nfortune = 7\n")
    result = analyze(path)
    assert result.exit_code == 2
    assert "fortune" in result.stderr


def test_a_folder_of_checkpoints_is_one_run_with_the_newest_history(tmp_path):
    for step in (5, 40, 9):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        history = [{"loss": 3 - i / 50, "step": i} for i in range(1, step + 1)]
        (folder / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    code, read = as_json(tmp_path)
    assert (code, len(read["runs"]), read["runs"][0]["steps"]) == (0, 1, [1, 40])


def test_a_folder_of_logs_is_one_run_a_file(tmp_path, healthy_rows):
    for name in ("a.csv", "b.csv"):
        write_csv(tmp_path / name, healthy_rows[:40])
    (tmp_path / "notes.txt").write_text("nothing here")
    code, read = as_json(tmp_path)
    assert (code, len(read["runs"])) == (0, 2)
    assert "2 runs" in analyze(tmp_path).stdout


def test_the_report_can_go_to_a_file(tmp_path, healthy_rows):
    path = write_csv(tmp_path / "train.csv", healthy_rows[:50])
    result = analyze("-o", tmp_path / "report.json", "--format", "json", path)
    assert (result.exit_code, result.stdout) == (0, "")
    assert json.loads((tmp_path / "report.json").read_text())["schema"] == "optdoctor/diagnosis-1"
    assert analyze("-o", tmp_path / "no" / "such" / "folder", path).exit_code == 2
    nowhere = analyze("-o", "", path)
    assert (nowhere.exit_code, len(nowhere.stderr.splitlines())) == (2, 1)


def test_every_rule_has_a_page():
    listed = json.loads(CliRunner().invoke(main, ["rules", "--format", "json"]).stdout)
    for entry in listed if isinstance(listed, list) else listed["rules"]:
        page = CliRunner().invoke(main, ["explain", entry["name"]])
        assert page.exit_code == 0
        assert "What to do" in page.stdout


def test_analyzing_a_console_log_loads_no_heavy_package(tmp_path):
    log = tmp_path / "train.log"
    log.write_text("{'loss': 2.0, 'grad_norm': 1.0, 'learning_rate': 1e-05, 'epoch': 0.1}\n" * 40)
    command = [sys.executable, "-X", "importtime", "-m", "optdoctor", "analyze", str(log)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = {line.rpartition("|")[2].strip() for line in result.stderr.splitlines()}
    assert "optdoctor.engine" in loaded
    assert not loaded & {"torch", "pandas", "scipy", "pyarrow", "transformers"}


def test_runs_one_level_below_a_folder_are_found_beside_its_logs(tmp_path, healthy_rows):
    write_csv(tmp_path / "a.csv", healthy_rows[:40])
    checkpoint = tmp_path / "outputs" / "checkpoint-40"
    checkpoint.mkdir(parents=True)
    history = [{"loss": 3 - i / 50, "step": i} for i in range(1, 41)]
    (checkpoint / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    code, read = as_json(tmp_path)
    assert (code, [Path(run["origin"]).name for run in read["runs"]]) == (
        0,
        ["a.csv", "trainer_state.json"],
    )


def test_a_log_of_evaluations_alone_counts_them(tmp_path):
    log = "".join(f"{{'eval_loss': {2 - i / 99:.4f}, 'epoch': {i}.0}}\n" for i in range(40))
    (tmp_path / "eval.log").write_text(log)
    _, read = as_json(tmp_path / "eval.log")
    assert read["runs"][0]["steps"] == [1, 40]
    assert read["runs"][0]["verdict"] == "unknown"


def test_a_log_that_counts_from_zero_keeps_its_numbers(tmp_path, healthy_rows):
    rows = [[step - 1, *more] for step, *more in healthy_rows[:100]]
    assert "steps 0-99" in analyze(write_csv(tmp_path / "train.csv", rows)).stdout


def run_in_shell(tail: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """The command as a user types it, with what follows it in a shell."""
    words = [sys.executable, "-m", "optdoctor", *map(str, arguments)]
    command = f"set -o pipefail; {shlex.join(words)} {tail}"
    # Buffered, as it is by default: what was not written must not fail again at the end.
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=plain)


@needs_full_device
@pytest.mark.parametrize("tail", [">/dev/full", ">&-"])
@pytest.mark.parametrize("form", ["text", "json", "coloured", "explain", "rules"])
def test_standard_output_that_takes_no_text_is_one_sentence_and_exit_3(
    tmp_path, healthy_rows, form, tail
):
    path = write_csv(tmp_path / "train.csv", healthy_rows[:50])
    arguments = {
        "text": ["analyze", path],
        "json": ["analyze", "--format", "json", path],
        "coloured": ["analyze", "--color", "always", path],
        "explain": ["explain", "nan-pulse"],
        "rules": ["rules"],
    }[form]
    result = run_in_shell(tail, *arguments)
    assert (result.returncode, len(result.stderr.splitlines())) == (3, 1)
    assert "standard output" in result.stderr


@needs_full_device
def test_help_on_a_full_disk_is_no_finding():
    for arguments in (["--help"], ["analyze", "--help"]):
        result = run_in_shell(">/dev/full", *arguments)
        assert (result.returncode, len(result.stderr.splitlines())) == (3, 1)


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
@pytest.mark.parametrize("options", [["--format", "json"], ["--color", "always"], []])
@pytest.mark.parametrize("code", [0, 1])
def test_a_reader_of_the_output_that_leaves_changes_no_exit_code(
    tmp_path, healthy_rows, options, code
):
    sick = [[s, math.nan, rate, norm] for s, _, rate, norm in healthy_rows[:50]]
    path = write_csv(tmp_path / "train.csv", sick if code else healthy_rows[:50])
    result = run_in_shell("| true", "analyze", *options, path)
    assert (result.returncode, result.stderr) == (code, "")


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
def test_a_closed_standard_input_is_one_sentence_and_exit_2():
    result = run_in_shell("<&-", "analyze", "-")
    assert (result.returncode, len(result.stderr.splitlines())) == (2, 1)
    assert "standard input is closed" in result.stderr
    assert "Error" not in result.stderr


def test_an_empty_path_is_not_the_working_folder(tmp_path, healthy_rows, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path / "train.csv", healthy_rows[:50])
    result = analyze("")
    assert (result.exit_code, result.stdout, len(result.stderr.splitlines())) == (2, "", 1)
    with pytest.raises(Unreadable, match="empty"):
        read("")


def test_a_path_that_is_too_long_is_unreadable():
    result = analyze("a" * 5000)
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)


@pytest.mark.parametrize(
    ("text", "options", "where"),
    [
        ("[tool.optdoctor]\nfortune = 7\n", [], "pyproject.toml"),
        ("tool = 3\n", [], "pyproject.toml"),
        ('[tool.optdoctor]\nselect = ["tarot"]\n', [], "pyproject.toml"),
        ("", ["--select", "tarot"], "--select"),
        ("", ["--ignore", "tarot"], "--ignore"),
    ],
)
def test_wrong_settings_are_an_entry_of_a_valid_document_and_one_line(
    tmp_path, healthy_rows, monkeypatch, text, options, where
):
    path = write_csv(tmp_path / "train.csv", healthy_rows[:50])
    (tmp_path / "pyproject.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    code, read = as_json(*options, path)
    (error,) = read["errors"]
    assert (code, read["runs"], error["path"]) == (2, [], where)
    result = analyze(*options, path)
    assert (result.exit_code, result.stdout) == (2, "")
    line = f"optdoctor: {where}: {error['reason']}; {error['remedy']}\n"
    assert result.stderr == analyze("--format", "json", *options, path).stderr == line


def test_a_missing_package_is_named_with_its_remedy(tmp_path, healthy_rows, monkeypatch):
    from optdoctor import readers

    def broken(*_: object) -> None:
        raise ModuleNotFoundError("No module named 'pyarrow.ipc'", name="pyarrow.ipc")

    monkeypatch.setattr(readers, "read_source", broken)
    path = write_csv(tmp_path / "train.csv", healthy_rows[:50])
    result = analyze(path)
    said = f"optdoctor: {path}: needs pyarrow; pip install pyarrow\n"
    assert (result.exit_code, result.stderr) == (2, said)


@pytest.mark.parametrize("form", ["text", "json", "markdown", "html"])
def test_losses_as_large_as_a_float_can_be_have_a_report_without_a_word_of_numpy(tmp_path, form):
    rows = [[step, 1e308 if step % 3 else -1e308, 1e-3, 1.0] for step in range(1, 201)]
    paths = [write_csv(tmp_path / f"{name}.csv", rows) for name in ("one", "two")]
    for given in (paths[:1], paths):
        command = [sys.executable, "-m", "optdoctor", "analyze", "--format", form, *map(str, given)]
        result = subprocess.run(command, capture_output=True, encoding="utf-8")
        assert result.returncode in (0, 1)
        assert result.stderr == ""
        assert result.stdout


@pytest.mark.parametrize("form", ["text", "json", "markdown", "html"])
def test_a_report_that_fails_is_one_sentence_and_exit_3(tmp_path, healthy_rows, monkeypatch, form):
    from optdoctor.cli import analyze as command

    def broken(*_: object) -> str:
        raise ValueError("on purpose")

    monkeypatch.setattr(command, "_text", broken)
    monkeypatch.setattr(command, "_document", broken)
    result = analyze("--format", form, write_csv(tmp_path / "train.csv", healthy_rows[:50]))
    assert (result.exit_code, result.stdout) == (3, "")
    assert len(result.stderr.splitlines()) == 1
    assert "on purpose" in result.stderr


def test_an_examination_that_fails_is_one_sentence_and_exit_3(tmp_path, healthy_rows, monkeypatch):
    from optdoctor import engine

    def broken(*_: object, **__: object) -> None:
        raise ValueError("on purpose")

    monkeypatch.setattr(engine, "diagnose", broken)
    result = analyze(write_csv(tmp_path / "train.csv", healthy_rows[:50]))
    assert result.exit_code == 3
    assert len(result.stderr.splitlines()) == 1


def test_a_folder_with_a_record_says_which_logs_it_passed_over(tmp_path, healthy_rows):
    path = write_csv(tmp_path / "train.csv", healthy_rows[:50])
    record = tmp_path / "optdoctor-run"
    record.mkdir()
    (record / "run.json").write_text("{}")
    other = tmp_path / "other" / "checkpoint-5"
    other.mkdir(parents=True)
    (other / "trainer_state.json").write_text("{}")
    first = analyze(tmp_path).stderr.splitlines()[0]
    assert first.endswith("1 run record read; 2 logs passed over, name them: train.csv, ..")
    path.unlink()
    assert "1 log passed over, name it: other" in analyze(tmp_path).stderr
    assert "passed over" not in analyze(record).stderr
    assert "passed over" not in analyze(other).stderr


@pytest.mark.parametrize(
    ("name", "said"), [("deadunits", "did you mean dead-units?"), ("tarot", "lists them")]
)
def test_a_name_that_no_rule_has_is_wrong_usage_and_the_nearest_is_told(name, said):
    result = CliRunner().invoke(main, ["explain", name])
    assert result.exit_code == 2
    assert said in result.stderr


def test_a_demo_without_its_framework_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "optdoctor.demo.lightning", None)
    result = CliRunner().invoke(main, ["demo", "--framework", "lightning"])
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert "pip install 'optdoctor[lightning]'" in result.stderr
    assert "in a clone pip install '.[lightning]'" in result.stderr


@pytest.mark.parametrize(
    ("adapter", "missing"),
    [("huggingface", ("transformers",)), ("lightning", ("lightning.pytorch", "pytorch_lightning"))],
)
def test_an_adapter_without_its_framework_says_how_to_get_it(adapter, missing):
    block = "".join(f"sys.modules[{name!r}] = None; " for name in missing)
    code = f"import sys; {block}import optdoctor.adapters.{adapter}"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8")
    last = result.stderr.splitlines()[-1]
    assert last.startswith("ImportError: ")
    assert f"pip install 'optdoctor[{adapter}]'" in last
