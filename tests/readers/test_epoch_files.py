"""AllenNLP's folder: each epoch is a file, and all of them are one run."""

import json
from pathlib import Path

import pytest

from optdoctor import readers


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for n in range(12):
        row = {
            "best_epoch": n,
            "training_duration": "0:01:30",
            "epoch": n,
            "training_loss": 2.0 - n / 16,
            "validation_loss": 2.5 - n / 16,
        }
        (tmp_path / f"metrics_epoch_{n}.json").write_text(json.dumps(row, indent=2))
    return tmp_path


def test_the_files_of_all_epochs_are_one_run_in_the_order_of_their_numbers(folder: Path) -> None:
    assert readers.runs_in(folder) == [folder]
    trace = readers.read(folder)
    assert trace.series["loss"].values.tolist() == [2.0 - n / 16 for n in range(12)]
    assert trace.series["eval_loss"].rows == 12
    assert trace.facts["step_source"] == "epochs"


def test_a_log_beside_them_is_a_run_of_its_own(folder: Path) -> None:
    (folder / "other.csv").write_text("step,loss\n" + "".join(f"{n},2.{n}\n" for n in range(1, 9)))
    assert readers.runs_in(folder) == [folder, folder / "other.csv"]


def test_an_epoch_that_is_half_written_loses_none_of_the_others(folder: Path) -> None:
    (folder / "metrics_epoch_12.json").write_text('{"best_epoch": 3, "training_loss": 1.')
    assert readers.read(folder).series["loss"].rows == 12
