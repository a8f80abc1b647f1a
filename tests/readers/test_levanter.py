"""levanter: a step in thousands."""

from tests.readers.language_model_logs import read, rows

LINE = "INFO :: Progress on:train {} rate:3.1it/s remaining:48:13 elapsed:00:48 postfix:loss={}"


def test_the_step_is_in_thousands_from_a_thousand_on() -> None:
    trace = read(
        "levanter",
        LINE.format("1.00it/9.00kit", "11.2"),
        LINE.format("30.0it/9.00kit", "9.75"),
        "2026-01-02T03:04:05 - 0 - levanter.eval - eval.py:350 - INFO :: eval loss: 9.500",
        LINE.format("1.92kit/9.00kit", "nan"),
    )
    assert rows(trace) == {1: 11.2, 30: 9.75, 1920: "nan"}
    assert rows(trace, "eval_loss") == {30: 9.5}
    assert trace.facts["total_steps"] == 9000


def test_a_bar_without_a_loss_is_no_row() -> None:
    trace = read(
        "levanter",
        LINE.format("1.00it/900it", "11.2"),
        "INFO :: Progress on:train 2.00it/900it rate:3.1it/s remaining:48:13 elapsed:00:48",
        "INFO :: Progress on:eval 2.00it/9.00it rate:3.1it/s remaining:00:13 elapsed:00:48",
    )
    assert rows(trace) == {1: 11.2}
