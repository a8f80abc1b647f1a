"""CatBoost's rounds."""

from text_logs import read_lines, rows_of


def test_a_round_has_what_it_learned_and_what_it_was_tested_on() -> None:
    trace = read_lines(
        "catboost",
        "Learning rate set to 0.05",
        "0:\tlearn: 0.6875\ttest: 0.75\tbest: 0.75 (0)\ttotal: 1ms\tremaining: 9s",
        "1:\tlearn: 0.6250\ttest: 0.5\tbest: 0.5 (1)\ttotal: 2ms\tremaining: 8s",
    )
    assert rows_of(trace) == [(1, 0.6875), (2, 0.625)]
    assert rows_of(trace, "eval_loss") == [(1, 0.75), (2, 0.5)]
    assert trace.facts["loss_kind"] == "unknown"


def test_without_a_test_set_there_is_the_loss_alone() -> None:
    rows = (f"{n}:\tlearn: 0.{9 - n}\ttotal: {n}ms\tremaining: 9s" for n in (0, 1, 2))
    assert rows_of(read_lines("catboost", *rows)) == [(1, 0.9), (2, 0.8), (3, 0.7)]
