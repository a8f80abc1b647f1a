"""The recorded curves: what is kept of a run, and that the healthy ones are healthy."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np

from curves.figures import OTHER_SYMPTOMS, SHAPES
from curves.recorded import recorded
from curves.records import Record, load, save

SMALLEST_DIGIT = 2.0**-15
"""Largest relative error of a kept number."""
MOST_ABOVE = 0.05
"""Share of its best by which the last evaluation loss of a healthy run may lie above it."""


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    all_ones = float(np.array([0x7FFFFFFF], np.uint32).view(np.float32)[0])  # a NaN too
    loss = np.array([np.nan, all_ones, np.inf, -np.inf, 0.0, -1.2345678, 3e-12, 1.0000001, 7e37])
    record = _record(loss)
    save(tmp_path / "a.npz", [record, replace(record, seed=4, truth="nan-pulse", onset=0)])
    first, second = load(tmp_path / "a.npz")
    finite = np.isfinite(loss)
    np.testing.assert_array_equal(first.loss[~finite], loss[~finite])
    np.testing.assert_allclose(first.loss[finite], loss[finite], rtol=SMALLEST_DIGIT)
    assert (second.seed, second.truth, second.onset) == (4, "nan-pulse", 0)
    np.testing.assert_array_equal(second.eval_steps, record.eval_steps)


def test_the_same_runs_give_the_same_bytes(tmp_path: Path) -> None:
    records = [_record(np.arange(8.0)), replace(_record(np.ones(3)), family="b")]
    save(tmp_path / "a.npz", records)
    save(tmp_path / "b.npz", records[::-1])
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_the_file_holds_many_families_and_every_symptom() -> None:
    families = Counter(record.family for record in recorded() if record.healthy)
    assert len(families) >= 12
    assert min(families.values()) >= 8
    truths = {record.truth for record in recorded() if not record.healthy}
    assert {*SHAPES, "gradient-outlier"} <= truths <= {*SHAPES, *OTHER_SYMPTOMS}


def test_no_run_of_development_is_held_apart() -> None:
    assert not any(record.held for record in recorded())
    assert all(record.held for record in recorded(held=True))


def test_no_seed_of_development_is_one_of_those_held_apart() -> None:
    seeds = {record.seed for record in recorded()}
    assert seeds.isdisjoint(record.seed for record in recorded(held=True))


def test_the_file_held_apart_is_as_large_as_the_exam_asks_for() -> None:
    well = Counter(record.family for record in recorded(held=True) if record.healthy)
    sick = Counter(record.family for record in recorded(held=True) if not record.healthy)
    assert len(well) >= 9
    assert min(well.values()) >= 12
    assert len(sick) >= 8
    assert min(sick.values()) >= 4


def test_each_series_belongs_to_its_updates() -> None:
    for record in (*recorded(), *recorded(held=True)):
        assert len(record.loss) == len(record.grad_norm) == len(record.lr)
        assert len(record.eval_steps) == len(record.eval_loss)
        assert (np.diff(record.eval_steps) > 0).all()
        assert record.eval_steps[-1] < len(record.loss)
        assert record.onset is None or 0 <= record.onset < len(record.loss)


def test_a_healthy_run_learns_and_its_evaluation_loss_stays_down() -> None:
    for record in (*recorded(), *recorded(held=True)):
        if not record.healthy:
            continue
        level = np.convolve(record.eval_loss, np.ones(3) / 3, "valid")
        assert np.isfinite(record.loss).all(), record.family
        assert level.min() < record.eval_loss[0], record.family
        assert level[-1] - level.min() <= MOST_ABOVE * abs(level.min()), record.family


def _record(loss: np.ndarray) -> Record:
    return Record.of(
        "a", 3, held=False, group="pretraining", truth="healthy", onset=None,
        loss=loss, grad_norm=loss, lr=loss, eval_steps=[1, 299, 1499], eval_loss=[3.0, 2.0, 1.0],
    )  # fmt: skip
