"""The table of `spacy train`: sums since the row before."""

from optdoctor.trace import Trace
from tests.text_logs import read_lines, rows_of

HEADER = "E    #       LOSS TRANS...  LOSS NER  LOSS TAGGER  ENTS_F  SCORE"
ROWS = (
    "  0       0          90.25     50.25        30.25    0.00    0.00",
    "  1     200        9000.25   2000.25      1000.50   41.25    0.41",
    "  2     400       40000.25   1000.25       500.50   61.25    0.61",
)


def read(*lines: str) -> Trace:
    return read_lines("spacy", *lines)


def test_the_loss_is_the_sum_of_the_tasks_since_the_row_before() -> None:
    trace = read(HEADER, "---  ------  ---  ---", *ROWS)
    assert rows_of(trace) == [(200, 3000.75), (400, 1500.75)]  # row 0 holds one update
    assert rows_of(trace, "metric:LOSS NER") == [(0, 50.25), (200, 2000.25), (400, 1000.25)]
    assert rows_of(trace, "metric:LOSS TRANS...")[2] == (400, 40000.25)
    assert rows_of(trace, "metric:SCORE") == [(0, 0.0), (200, 0.41), (400, 0.61)]
    assert rows_of(trace, "epoch") == [(0, 0.0), (200, 1.0), (400, 2.0)]
    assert trace.facts["loss_form"] == "sum"


def test_a_column_alone_is_the_loss_whatever_it_is_called() -> None:
    trace = read("E    #       LOSS TOK2VEC  SCORE", "  0     100        9.25   0.50")
    assert rows_of(trace) == [(100, 9.25)]


def test_a_clock_in_front_of_each_line_is_no_column() -> None:
    trace = read(*(f"02/18-02:52:3{i} {line}" for i, line in enumerate([HEADER, *ROWS])))
    assert rows_of(trace) == [(200, 3000.75), (400, 1500.75)]


def test_a_row_that_is_cut_loses_its_last_number() -> None:
    trace = read(HEADER, *ROWS, "  3     600       30000.25    800.25       400.50   7")
    assert rows_of(trace)[-1] == (600, 1200.75)
    assert rows_of(trace, "metric:ENTS_F")[-1] == (400, 61.25)
    assert len(rows_of(read(HEADER, *ROWS, "  3     600       30000.25    800.25   4"))) == 2


def test_version_2_numbers_iterations() -> None:
    trace = read(
        "Itn  Tag Loss   NER Loss    NER P   Token %  CPU WPS",
        "---  ---------  ---------  -------  -------  -------",
        "  1   1000.500   2000.250   50.250  100.000    11250",
        "  2    500.500   1000.250   60.250  100.000    11500",
    )
    assert rows_of(trace) == [(1, 3000.75), (2, 1500.75)]


def test_other_lines_between_the_rows_are_none() -> None:
    trace = read(HEADER, ROWS[1], "Epoch 3:  20%|##     | 40/200 [00:10<00:40]", "", ROWS[2])
    assert len(rows_of(trace)) == 2


def test_a_nan_is_a_loss() -> None:
    trace = read(HEADER, ROWS[1], "  2     400         nan     nan       nan   0.00    0.00")
    assert rows_of(trace) == [(200, 3000.75), (400, None)]
