"""Many runs at once: what a pattern names, other processes, any executor, nothing lost."""

import os
import pickle
import signal
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import optdoctor
from optdoctor.analysis import KEPT_ROWS, Analysis, analyze, analyze_many, expanded
from optdoctor.cli import main


def log(path: Path, rows: int = 60, sick: bool = False) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    losses = 2 + 2 / np.sqrt(np.arange(1, rows + 1))
    losses[rows // 2 :] += np.nan if sick else 0
    path.write_text("step,loss\n" + "".join(f"{i},{x:.6f}\n" for i, x in enumerate(losses, 1)))
    return path


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for i in range(6):
        log(tmp_path / "runs" / f"seed-{i}" / "metrics.csv", sick=i == 3)
    (tmp_path / "runs" / "notes.txt").write_text("nothing but words\n" * 9)
    (tmp_path / "runs" / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)))
    log(tmp_path / "runs" / "deep" / "deeper" / "train.csv")
    return tmp_path / "runs"


def verdicts(found: list[Analysis]) -> list[str]:
    return [str(one.diagnosis.verdict) if one.diagnosis else one.reason for one in found]


@pytest.fixture(params=["none", "threads", "processes"])
def executor(request: pytest.FixtureRequest) -> Iterator[Executor | None]:
    if request.param == "none":
        yield None
    elif request.param == "threads":
        with ThreadPoolExecutor(2) as threads:
            yield threads
    else:
        with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as processes:
            yield processes


def test_every_run_below_a_pattern_is_found_and_what_is_no_log_is_passed_over(
    runs: Path, executor: Executor | None
) -> None:
    found = analyze_many([f"{runs}/**"], executor=executor)
    names = [str(Path(one.path).relative_to(runs)) for one in found]
    assert names == ["deep/deeper/train.csv", *(f"seed-{i}/metrics.csv" for i in range(6))]
    assert verdicts(found) == ["healthy"] * 4 + ["sick"] + ["healthy"] * 2


def test_a_run_is_examined_once_however_many_paths_name_it(runs: Path) -> None:
    one = runs / "seed-1" / "metrics.csv"
    found = analyze_many([one, f"{runs}/seed-1/*", runs / "seed-1", one])
    assert [Path(f.path) for f in found] == [one]


def test_a_path_without_a_log_loses_none_of_the_others(runs: Path) -> None:
    one, missing = runs / "seed-1" / "metrics.csv", runs / "nowhere"
    found = analyze_many([missing, one, runs / "notes.txt", f"{runs}/*.nothing"])
    assert [f.diagnosis is None for f in found] == [True, False, True, True]
    assert all(f.reason and f.remedy for f in found if f.diagnosis is None)


def test_progress_is_told_to_the_end(runs: Path) -> None:
    told: list[tuple[int, int]] = []
    analyze_many([f"{runs}/**"], progress=lambda done, of: told.append((done, of)))
    assert told == [(i, 7) for i in range(1, 8)]


def test_what_comes_back_is_bounded_and_is_the_same_diagnosis(tmp_path: Path) -> None:
    path = log(tmp_path / "long.csv", rows=30_000, sick=True)
    whole = analyze(path)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        (slim,) = analyze_many([path], executor=executor)
    assert slim.diagnosis == whole.diagnosis
    assert slim.trace is not None
    assert slim.trace.series["loss"].steps.size <= KEPT_ROWS
    assert slim.trace.series["loss"].rows == 30_000
    assert len(pickle.dumps(slim)) < 2_000_000


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_dies_is_a_sentence_for_its_runs(runs: Path) -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        executor.submit(die)
        found = analyze_many([f"{runs}/**"], executor=executor)
    assert len(found) == 7
    broken = [one for one in found if one.diagnosis is None]
    assert broken
    assert all(one.is_ours and "died" in one.reason for one in broken)


@pytest.mark.slow
def test_a_dask_cluster_is_an_executor(runs: Path) -> None:
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, processes=True
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        found = optdoctor.analyze_many([f"{runs}/**"], executor=client.get_executor())
    assert verdicts(found) == verdicts(optdoctor.analyze_many([f"{runs}/**"]))


def test_patterns_that_are_names_of_files_are_files(tmp_path: Path) -> None:
    odd = log(tmp_path / "lr[1].csv")
    assert list(expanded(odd)) == [str(odd)]


def test_the_command_line_reads_many_in_processes_as_one_by_one(runs: Path) -> None:
    for i in range(6, 12):
        log(runs / f"seed-{i}" / "metrics.csv")
    alone = CliRunner().invoke(main, ["analyze", f"{runs}/**", "--jobs", "1", "--ascii"])
    together = CliRunner().invoke(main, ["analyze", f"{runs}/**", "--jobs", "2", "--ascii"])
    assert alone.exit_code == together.exit_code == 1
    assert "1 of 13 runs is sick, 12 healthy" in alone.stdout
    assert together.stdout == alone.stdout


def test_a_single_path_is_one_path_and_not_its_letters(runs: Path) -> None:
    assert len(analyze_many(f"{runs}/**")) == len(analyze_many([f"{runs}/**"])) == 7
    assert len(analyze_many(runs / "seed-1")) == 1


def test_what_python_shows_of_results_is_short(runs: Path) -> None:
    (found,) = analyze_many(runs / "seed-1")
    assert len(repr(found.trace)) < 300
    assert repr(found).endswith("metrics.csv': healthy>")
    assert {"read", "diagnose", "analyze_many", "watch", "Unreadable"} <= set(dir(optdoctor))
