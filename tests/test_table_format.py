"""Tables: both ways to the numbers are one, headers that change, epochs that come again."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optdoctor.readers import read_source
from optdoctor.reading import table_format
from optdoctor.reading.reader import Source, Unreadable
from optdoctor.reading.table_rows import Block, Table, from_bytes, from_cells
from optdoctor.trace import Trace
from tests.readers.tables import facts, read, steps, values

NUMBER = st.one_of(
    st.floats().map(repr),
    st.integers(-(10**17), 10**17).map(str),
    st.sampled_from(
        ["", "nan", "NaN", "-nan", "inf", "-Infinity", "+1.5", ".5", "5.", " 7 ", "1e3"]
    ),
)
CELL = st.one_of(
    NUMBER, NUMBER, st.sampled_from(["NA", "None", "1.#QNAN", "oops", '"2.5"', "1_0", "0x1", "1,5"])
)
LINE = st.one_of(
    st.tuples(st.integers(0, 30).map(str), *[NUMBER] * 3).map(",".join),
    st.tuples(st.integers(0, 30).map(str), *[NUMBER] * 3).map(",".join),
    st.lists(CELL, min_size=1, max_size=5).map(",".join),
    st.sampled_from(["", " ", "# a comment", "step,loss,lr,acc", "step,loss,lr,acc,epoch", "text"]),
)
END = st.sampled_from(["\n", "\n", "\n", "\r\n", "\r", "\r\r\n", "\n\n"])


def all_of(trace: Trace) -> dict[str, object]:
    series = {
        name: (s.steps.tolist(), [repr(float(v)) for v in s.values])
        for name, s in trace.series.items()
    }
    return {"skipped": trace.lines_skipped, "facts": dict(trace.facts), **series}


def read_both(
    data: bytes, monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, object], dict[str, object]]:
    """What the cells alone give, and what pyarrow gives where it may read down to two bytes."""
    found = []
    for large, small in ((1 << 40, 1 << 40), (2, 2)):
        with monkeypatch.context() as patch:
            patch.setattr(table_format, "_LARGE", large)
            patch.setattr(table_format, "_SMALL", small)
            found.append(all_of(read_source(Source(data, "log"), "csv")))
    return found[0], found[1]


@given(lines=st.lists(st.tuples(LINE, END), max_size=30), tail=LINE)
@settings(deadline=None, max_examples=300)
def test_blocks_and_cells_give_the_same_rows(lines: list[tuple[str, str]], tail: str) -> None:
    data = "step,loss,lr,acc\n" + "1,2.5,0.1,0.5\n" * 5 + "".join(map("".join, lines)) + tail
    with pytest.MonkeyPatch.context() as monkeypatch:
        by_cell, by_block = read_both(data.encode(), monkeypatch)
    assert by_block == by_cell


@given(rows=st.lists(st.tuples(NUMBER, NUMBER), min_size=1, max_size=20))
@settings(deadline=None)
def test_a_block_that_pyarrow_takes_holds_the_numbers_of_its_cells(
    rows: list[tuple[str, str]],
) -> None:
    table = Table(",", 2, {"a": 0, "b": 1})
    block = from_bytes(table, "".join(f"{a},{b}\n" for a, b in rows).encode())
    expected = from_cells(table, rows)
    if block is None:
        return
    assert block.columns.keys() == expected.columns.keys()
    for name, column in block.columns.items():
        other = expected.columns[name]
        assert np.array_equal(np.ma.getmaskarray(column), np.ma.getmaskarray(other))
        here = ~np.ma.getmaskarray(column)
        assert np.array_equal(np.asarray(column)[here], np.asarray(other)[here], equal_nan=True)


def test_regular_blocks_are_taken_by_pyarrow() -> None:
    """Else the test of equality would compare the cells with themselves."""
    table = Table(",", 3, {"a": 0, "b": 1, "c": 2}, integers=frozenset({"a"}))
    block = from_bytes(table, b"1,nan,\n2,-inf,2.5\n3,1e-320,\n")
    assert block is not None
    assert block.length == 3
    assert np.ma.getmaskarray(block.columns["c"]).tolist() == [True, False, True]
    assert block.columns["b"][1] == -np.inf


def test_a_block_gives_arrays_that_a_log_keeps() -> None:
    table = Table(",", 2, {"a": 0, "b": 1}, integers=frozenset({"a", "b"}), step="a")
    block = from_bytes(table, b"1,2\n2,3\n")
    assert block is not None
    assert [block.columns[name].dtype for name in "ab"] == [np.int64, np.float64]
    assert not any(column.flags.writeable for column in block.columns.values())


def test_a_delimiter_in_quotes_parts_no_cells_in_a_large_file_either() -> None:
    rows = [f"{i},a,b,2.5\n" for i in range(1, 60_000)]
    rows[40_000] = '40001,"a,b",2.25\n'
    trace = read("step,note,more,loss\n" + "".join(rows))
    assert trace.series["loss"].rows == 59_998
    assert trace.lines_skipped == 1


@pytest.mark.parametrize("odd", ["1.#QNAN", '"2.5"', "oops", "2.5,9", "1_0", "2.5\x00"])
def test_one_odd_row_in_a_large_file_leaves_the_others_as_they_are(odd: str) -> None:
    rows = [f"{i},{2 + i % 7 / 8}\n" for i in range(1, 60_000)]
    rows[40_000] = f"40001,{odd}\n"
    by_cell = read("step,loss\n" + "".join(rows[39_990:40_010]))
    whole = read("step,loss\n" + "".join(rows))
    assert whole.series["loss"].rows == 59_999 - 20 + by_cell.series["loss"].rows
    assert whole.lines_skipped == by_cell.lines_skipped


@pytest.mark.parametrize("note", ["", "warm", "2020-01-02 10:00:00"])
def test_late_fractions_and_columns_of_text_are_not_read_cell_by_cell(
    note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_cell: list[int] = []

    def counted(table: Table, rows: Sequence[Sequence[str]]) -> Block:
        by_cell.append(len(rows))
        return from_cells(table, rows)

    monkeypatch.setattr(table_format, "from_cells", counted)
    rows = "".join(f"{i},{i % 9},{note}\n" for i in range(1, 60_000))
    trace = read(f"step,loss,note\n{rows}60000,2.5,{note}\n60001,2.25,{note}\n")
    assert trace.series["loss"].rows == 60_001
    assert trace.series["loss"].values[-1] == 2.25
    assert not by_cell


def test_a_row_without_any_value_is_no_damage() -> None:
    trace = read("step,loss,acc\n1,2.5,\n2,2.25,\n3,2,\n,,\n,NA,None\n,oops,\n")
    assert values(trace) == [2.5, 2.25, 2.0]
    assert trace.lines_skipped == 1


def test_a_small_table_is_read_without_pyarrow(tmp_path: Path) -> None:
    log = tmp_path / "metrics.csv"
    log.write_text("step,loss\n" + "".join(f"{i},2.5\n" for i in range(1, 101)))
    code = (
        "import sys, optdoctor\n"
        f"assert optdoctor.read({str(log)!r}).series['loss'].rows == 100\n"
        "assert 'pyarrow' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_columns_follow_their_names_where_a_longer_header_comes_in_the_middle() -> None:
    trace = read("step,loss\n1,2.5\n2,2.25\nacc,lr,loss,step\n0.5,0.1,2.0,3\n0.6,0.1,1.75,4\n")
    assert steps(trace) == [1, 2, 3, 4]
    assert values(trace) == [2.5, 2.25, 2.0, 1.75]
    assert values(trace, "metric:acc") == [0.5, 0.6]
    assert steps(trace, "lr") == [3, 4]


def test_a_header_that_pandas_writes_with_each_row_is_no_resume() -> None:
    trace = read("".join(f"epoch,loss\n{i},{3 - i / 8}\n" for i in range(6)))
    assert steps(trace) == [1, 2, 3, 4, 5, 6]
    assert not trace.events


def test_epochs_that_begin_anew_are_another_run() -> None:
    trace = read("epoch,loss,val_loss\n0,9,9\n1,8,8\n2,7,7\n0,2.5,3\n1,2.25,2.75\n")
    assert steps(trace) == [1, 2]
    assert values(trace) == [2.5, 2.25]
    assert values(trace, "eval_loss") == [3.0, 2.75]
    assert [event.kind for event in trace.events] == ["start"]
    assert facts(trace, "step_source") == ["counted rows"]


def test_epochs_that_go_back_are_a_resume_at_their_row() -> None:
    trace = read("epoch,loss\n0,9\n1,8\n2,7\n3,6\n2,2.5\n3,2.25\n4,2\n")
    assert steps(trace) == [1, 2, 3, 4, 5]
    assert values(trace) == [9.0, 8.0, 2.5, 2.25, 2.0]
    assert [(event.kind, event.step) for event in trace.events] == [("resume", 3)]


def test_several_rows_an_epoch_are_counted_through() -> None:
    trace = read("epoch,loss\n0,9\n0,8\n1,7\n1,6\n2,5\n1,4\n1,3\n2,2\n")
    assert steps(trace) == [1, 2, 3, 4, 5]
    assert values(trace) == [9.0, 8.0, 4.0, 3.0, 2.0]


def test_a_column_of_text_is_no_metric_and_a_comment_no_damage() -> None:
    trace = read("step,loss,note\n# begun\n1,2.5,warm\n2,2.25,cold\n3,2.0,\n")
    assert values(trace) == [2.5, 2.25, 2.0]
    assert "metric:note" not in trace.series
    assert trace.lines_skipped == 0


def test_the_download_of_tensorboard_is_a_loss_only_if_the_file_says_so() -> None:
    text = "Wall time,Step,Value\n1700000000.5,10,2.5\n1700000001.5,20,2.25\n"
    loss = read(text, name="run-a-tag-train_loss.csv")
    assert steps(loss) == [10, 20]
    assert values(loss) == [2.5, 2.25]
    assert loss.facts["loss_kind"] == "falling"
    assert read(text, name="run-a-tag-epoch_loss.csv").facts["loss_kind"] == "unknown"
    assert values(read(text, name="run-a-tag-val_loss.csv"), "eval_loss") == [2.5, 2.25]
    other = read(text, name="export.csv")
    assert values(other, "metric:Value") == [2.5, 2.25]
    assert "loss" not in other.series
    assert "metric:Wall time" not in other.series


def test_the_index_of_a_data_frame_is_no_metric() -> None:
    trace = read(",loss,learning_rate,epoch,step,eval_loss\n0,2.5,0.1,0.5,10,\n1,,,0.5,10,2.75\n")
    assert sorted(trace.series) == ["epoch", "eval_loss", "loss", "lr"]
    assert steps(trace) == steps(trace, "eval_loss") == [10]


def test_tabs_with_one_at_the_end_are_a_table() -> None:
    trace = read(
        "Learning Rate\tTrain Loss\tValid Loss\tTrain Acc.\t\n0.1\t2.5\t2.75\t40.5\t\n"
        "0.1\t2.25\t2.5\t50.5\t\n"
    )
    assert values(trace) == [2.5, 2.25]
    assert values(trace, "eval_loss") == [2.75, 2.5]
    assert values(trace, "lr") == [0.1, 0.1]


def test_line_ends_of_two_carriage_returns_are_one() -> None:
    trace = read("loss,val_loss\r\r\n2.5,2.75\r\r\n2.25,2.5\r\r\n")
    assert values(trace) == [2.5, 2.25]
    assert trace.lines_skipped == 0


def test_epochs_in_any_order_end_in_reasonable_time() -> None:
    order = np.random.default_rng(0).integers(0, 50, 20_000)
    trace = read("epoch,loss\n" + "".join(f"{epoch},2.5\n" for epoch in order))
    assert trace.series["loss"].rows


def test_a_table_of_another_tool_is_refused_by_name() -> None:
    with pytest.raises(Unreadable, match="header"):
        read("step,loss\n1,2.5\n", reader="algoperf")
