"""Tesseract's lstmtraining: three counters, error rates, missing line ends."""

from optdoctor.trace import Trace
from tests.text_logs import read_lines, rows_of

LINE = (
    "At iteration {a}/{b}/{c}, Mean rms=4.125%, delta=8.5%, char train={x}%, word train=90.5%, "
    "skip ratio=0.5%,  wrote checkpoint."
)


def read(*lines: str) -> Trace:
    return read_lines("tesseract", *lines)


def test_the_error_of_characters_is_the_loss_at_the_iterations_trained() -> None:
    trace = read(LINE.format(a=98, b=100, c=103, x=180.5), LINE.format(a=190, b=200, c=205, x=95))
    assert rows_of(trace) == [(100, 180.5), (200, 95.0)]
    assert rows_of(trace, "metric:word_train") == [(100, 90.5), (200, 90.5)]
    assert rows_of(trace, "metric:mean_rms") == [(100, 4.125), (200, 4.125)]
    assert trace.facts["loss_base"] == "other"
    assert trace.facts["loss_form"] == "running mean"


def test_lines_without_an_end_between_them_are_all_read() -> None:
    lines = [LINE.format(a=n, b=n, c=n, x=n / 4) for n in (100, 200, 300)]
    assert rows_of(read("".join(lines))) == [(100, 25.0), (200, 50.0), (300, 75.0)]


def test_a_glued_evaluation_stands_at_its_line() -> None:
    evaluation = "At iteration 98, stage 0, {}=104.5, {}=100 wrote checkpoint."
    for names in (("Eval Char error rate", "Word error rate"), ("BCER eval", "BWER eval")):
        line = LINE.format(a=190, b=200, c=205, x=95).removesuffix(" wrote checkpoint.")
        trace = read(LINE.format(a=98, b=100, c=100, x=99), line + evaluation.format(*names))
        assert rows_of(trace) == [(100, 99.0), (200, 95.0)]
        assert rows_of(trace, "eval_loss") == [(200, 104.5)]


def test_version_5_has_other_names() -> None:
    line = (
        "At iteration 9/100/101, mean rms=0.5%, delta=0.25%, BCER train=1.25%, BWER train=2.5%, "
        "skip ratio=0%, New best BCER = 1.25 wrote checkpoint."
    )
    assert rows_of(read(line)) == [(100, 1.25)]


def test_a_saved_model_may_leave_out_all_but_two_rates() -> None:
    line = "At iteration 42/80/80, mean rms=1.25%, BCER train=17.5%, wrote best model:a_17.5_42.ck"
    assert rows_of(read(line)) == [(80, 17.5)]
