"""RWKV's train_log.txt: no header, several runs."""

from tests.readers.language_model_logs import read, rows

ROW = "{} {} 3.4903 0.00001250 2026-01-02 03:10:05.678901 {}"


def test_columns_are_known_by_their_place() -> None:
    trace = read("rwkv", ROW.format(3, "1.25", 0), ROW.format(4, "nan", 1))
    assert list(rows(trace).values()) == [1.25, "nan"]
    assert list(rows(trace, "epoch").values()) == [3.0, 4.0]
    assert list(rows(trace, "lr").values()) == [1.25e-05, 1.25e-05]


def test_of_several_runs_the_last_is_read() -> None:
    trace = read(
        "rwkv",
        "NEW RUN 2026-01-02-03-04-05",
        "{'load_model': '', 'lr_init': 1e-05}",
        ROW.format(0, "1.25", 0),
        ROW.format(1, "0.75", 1),
        "NEW RUN 2026-01-03-03-04-05",
        ROW.format(0, "1.5", 0),
    )
    assert rows(trace) == {1: 1.5}
    assert trace.lines_skipped == 0
