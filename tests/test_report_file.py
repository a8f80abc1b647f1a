"""report.html beside a record, and the page and the Markdown from the command line."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from small_training import failures, net, quiet, train

import optdoctor
from optdoctor.cli import main
from optdoctor.live.doctor import Doctor
from optdoctor.sinks import report_page

sys.path.insert(0, str(Path(__file__).parent / "report"))
from test_page import Structure


def float16(out: Path | None, **options: object) -> Doctor:
    model = net(torch.float16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    doctor = quiet(model, optimizer, out, **options)
    train(model, optimizer, 60, doctor)
    return doctor


def healthy(out: Path, steps: int = 60) -> Doctor:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    doctor = quiet(model, optimizer, out)
    train(model, optimizer, steps, doctor)
    return doctor


def analyze(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["analyze", *map(str, arguments)])


# at the end of a training


def test_a_doctor_that_closes_leaves_its_page(tmp_path: Path) -> None:
    doctor = float16(tmp_path / "run")
    doctor.close()
    assert failures(doctor) == []
    said = Structure((tmp_path / "run" / "report.html").read_text("utf-8")).said
    assert "SICK" in said
    assert "second-moment-underflow" in said
    assert "of training time" in said
    assert not list((tmp_path / "run").glob("*.part"))


def test_the_page_of_the_record_read_again_differs_in_its_cost_only(tmp_path: Path) -> None:
    float16(tmp_path / "run").close()
    at_close = Structure((tmp_path / "run" / "report.html").read_text("utf-8"))
    again = Structure(analyze("--format", "html", tmp_path / "run").stdout)
    assert at_close.ids == [*again.ids, "cost"]
    live, read = at_close.said, again.said
    parts = [words[words.index("SICK") : words.index("The run")] for words in (live, read)]
    assert parts[0] == parts[1]


def test_without_a_folder_there_is_no_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    float16(None).close()
    assert list(tmp_path.iterdir()) == []


def test_each_of_several_optimizers_has_its_own(tmp_path: Path) -> None:
    model = net()
    halves = [list(model.parameters())[:3], list(model.parameters())[3:]]
    several = [torch.optim.SGD(half, lr=0.01) for half in halves]
    with quiet(model, several, tmp_path) as doctor:
        for _ in range(3):
            doctor.log(loss=1.0)
            for optimizer in several:
                optimizer.step()
    assert {p.parent.name for p in tmp_path.rglob("report.html")} == {"0", "1"}


def test_the_terminal_says_where_the_page_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    float16(Path("lr1e-05"), sinks=("console",)).close()
    said = capsys.readouterr().err
    assert re.search(r"^page +lr1e-05/report\.html$", said, re.MULTILINE)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "report.html").write_text("mine")
    float16(Path("mine"), sinks=("console",)).close()
    said = capsys.readouterr().err
    assert "of yours stays as it is" in said
    assert not re.search(r"^page ", said, re.MULTILINE)


def test_a_page_of_the_user_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("mine")
    doctor = healthy(tmp_path)
    doctor.close()
    assert (tmp_path / "report.html").read_text() == "mine"
    (failure,) = failures(doctor)
    assert failure.startswith("page failed, FileExistsError: report.html of yours stays")
    assert optdoctor.read(tmp_path).series["loss"].rows == 60


def test_a_folder_that_is_gone_hurts_nobody(tmp_path: Path) -> None:
    doctor = healthy(tmp_path / "run")
    shutil.rmtree(tmp_path / "run")
    doctor.close()
    assert any(text.startswith("page failed, FileNotFoundError") for text in failures(doctor))


def test_a_page_that_cannot_be_written_leaves_none_of_an_earlier_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    healthy(tmp_path).close()
    assert report_page.written(tmp_path) is not None
    write_text = Path.write_text

    def full(path: Path, text: str, *more: str) -> int:
        write_text(path, text[:100])
        raise OSError(28, "No space left on device")

    trace = optdoctor.read(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(OSError, match="No space"):
            report_page.write(tmp_path, optdoctor.diagnose(trace), trace, "")
    assert report_page.written(tmp_path) is None
    assert not list(tmp_path.glob("report*"))


def test_a_new_run_in_the_folder_takes_the_old_page_aside(tmp_path: Path) -> None:
    float16(tmp_path).close()
    healthy(tmp_path).close()
    assert "SICK" in (tmp_path / "earlier-1" / "report.html").read_text("utf-8")
    assert "SICK" not in (tmp_path / "report.html").read_text("utf-8")


def test_a_resumed_run_has_one_page_of_the_whole(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for first in (0, 40):
        with quiet(model, optimizer, tmp_path) as doctor:
            train(model, optimizer, 40, doctor, first=first)
    assert "steps 1 to 80" in Structure((tmp_path / "report.html").read_text("utf-8")).said
    assert not (tmp_path / "earlier-1").exists()


# on the command line


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("logs")
    for name, sick in (("good", False), ("sick", True)):
        rows = ["step,loss"]
        for step in range(1, 101):
            loss = "nan" if sick and step > 50 else f"{2 + 3 / step:.4f}"
            rows.append(f"{step},{loss}")
        (folder / f"{name}.csv").write_text("\n".join(rows))
    (folder / "empty.csv").touch()
    return folder


@pytest.mark.parametrize(
    ("names", "code"),
    [
        (["good.csv"], 0),
        (["sick.csv"], 1),
        (["good.csv", "sick.csv"], 1),
        (["empty.csv"], 2),
        (["sick.csv", "empty.csv"], 2),
        (["missing.csv"], 2),
    ],
)
def test_standard_output_is_a_whole_document_at_every_exit_code(
    logs: Path, names: list[str], code: int
) -> None:
    paths = [logs / name for name in names]
    as_html = analyze("--format", "html", *paths)
    assert as_html.exit_code == code
    found = Structure(as_html.stdout)
    assert ("errors" in found.ids) is (code == 2)
    as_markdown = analyze("--format", "markdown", *paths)
    assert as_markdown.exit_code == code
    assert as_markdown.stdout.startswith("## ")
    assert ("### Could not be read" in as_markdown.stdout) is (code == 2)


def test_settings_that_are_wrong_still_give_a_document(logs: Path) -> None:
    result = analyze("--format", "html", "--select", "no-such-rule", logs / "good.csv")
    assert result.exit_code == 2
    assert "no-such-rule" in Structure(result.stdout).said


def test_the_page_can_be_written_to_a_file(logs: Path, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    result = analyze("--format", "html", "-o", path, logs / "sick.csv")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "SICK" in Structure(path.read_text("utf-8")).said


def test_the_text_report_loads_neither_page_nor_markdown(logs: Path) -> None:
    code = (
        "import sys; from optdoctor.cli import main\n"
        "try: main(['analyze', sys.argv[1]])\n"
        "except SystemExit: pass\n"
        "print(*[n for n in sys.modules if n.startswith('optdoctor.report')])"
    )
    command = [sys.executable, "-c", code, str(logs / "good.csv")]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert "optdoctor.report.text" in loaded
    assert {"optdoctor.report.page", "optdoctor.report.markdown"}.isdisjoint(loaded)


def test_a_page_of_a_long_log_is_small(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    loss = (2 + 3 / np.arange(1, 100_001)) * np.exp(0.05 * rng.standard_normal(100_000))
    rows = "\n".join(f"{i},{v:.5f}" for i, v in enumerate(loss, 1))
    (tmp_path / "log.csv").write_text(f"step,loss\n{rows}")
    assert len(analyze("--format", "html", tmp_path / "log.csv").stdout) < 100_000
