"""Long tables: a name and a number a row."""

import pytest

from optdoctor.reading.reader import Unreadable
from tests.readers.tables import read, steps, values


def test_series_that_follow_one_another_are_told_by_their_key() -> None:
    trace = read(
        "run_id,key,value,step,timestamp\na1,loss,2.5,1,9\na1,loss,2.25,2,9\n"
        "a1,lr,0.5,1,9\na1,lr,0.25,2,9\na1,val_loss,3.5,2,9\n"
    )
    assert trace.reader == "long-table"
    assert steps(trace) == steps(trace, "lr") == [1, 2]
    assert values(trace) == [2.5, 2.25]
    assert values(trace, "lr") == [0.5, 0.25]
    assert values(trace, "eval_loss") == [3.5]
    assert not trace.events


def test_the_table_of_tbparse_is_one() -> None:
    trace = read("step,tag,value\n10,train/loss,2.5\n20,train/loss,2.25\n10,acc,0.5\n")
    assert trace.reader == "long-table"
    assert steps(trace) == [10, 20]
    assert values(trace, "metric:acc") == [0.5]


def test_several_runs_are_refused() -> None:
    with pytest.raises(Unreadable, match="several runs"):
        read("run_id,key,value,step\na1,loss,2.5,1\nb2,loss,2.25,1\n")


def test_a_line_that_is_no_row_is_counted_and_shown() -> None:
    trace = read("key,value,step\nloss,2.5,1\nloss,oops,2\nloss,2.25,3\n")
    assert steps(trace) == [1, 3]
    assert trace.lines_skipped == 1
