"""The page that shows how a format is added is tried as it stands."""

import re
import sys
from pathlib import Path

import pytest

from optdoctor import readers
from optdoctor.reading.reader import Head, Source

PAGE = Path(__file__).parent.parent / "docs" / "adding-a-format.md"
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", PAGE.read_text("utf-8"), re.S)
LOG = next(text for language, text in BLOCKS if not language)
CODE = next(text for language, text in BLOCKS if language == "python")


@pytest.fixture
def with_new_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_trainer.py").write_text(CODE, "utf-8")
    monkeypatch.setattr(readers, "__path__", [*readers.__path__, str(tmp_path)])
    readers.readers.cache_clear()
    monkeypatch.delitem(sys.modules, "optdoctor.readers.my_trainer", raising=False)
    yield
    sys.modules.pop("optdoctor.readers.my_trainer", None)
    readers.readers.cache_clear()


def test_a_text_format_is_less_than_20_lines() -> None:
    assert len([line for line in CODE.splitlines() if line.strip()]) < 20


@pytest.mark.usefixtures("with_new_format")
def test_the_file_on_the_page_reads_the_log_on_the_page() -> None:
    trace = readers.read_source(Source(LOG.encode(), "train.log"))
    assert trace.reader == "my-trainer"
    found = {name: (s.steps.tolist(), s.values.tolist()) for name, s in trace.series.items()}
    assert found == {"loss": ([10], [2.25]), "lr": ([10], [3e-05]), "eval_loss": ([10], [2.5])}
    assert trace.facts["total_steps"] == 90


@pytest.mark.usefixtures("with_new_format")
def test_no_other_reader_claims_its_sample() -> None:
    new = next(reader for reader in readers.readers() if reader.name == "my-trainer")
    head = Head(new.sample.encode())
    assert [r.name for r in readers.readers() if r.rank <= new.rank and r.sniff(head)] == [new.name]


def test_without_the_file_the_log_is_not_of_this_format() -> None:
    assert "my-trainer" not in {reader.name for reader in readers.readers()}
