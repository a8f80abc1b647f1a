"""fastText: one line that is written over and over."""

from tests.text_logs import read_lines, rows_of


def test_each_time_that_the_line_is_written_is_a_row() -> None:
    line = "Progress: {}% words/sec/thread:   51250 lr:  {} {}  {} ETA:   0h 0m 9s"
    for name in ("avg.loss:", "loss:"):
        lines = [
            line.format(p, lr, name, x) for p, lr, x in (("0.5", 0.075, 4.125), ("99.5", 0, 2))
        ]
        trace = read_lines("fasttext", "Read 0M words", "\r".join(lines))
        assert rows_of(trace) == [(1, 4.125), (2, 2.0)]
        assert rows_of(trace, "lr") == [(1, 0.075), (2, 0.0)]
        assert set(trace.series) == {"loss", "lr"}
        assert trace.facts["loss_form"] == "running mean"
