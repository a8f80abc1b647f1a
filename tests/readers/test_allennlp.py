"""AllenNLP's console."""

import pytest
from text_logs import read_lines, rows_of


@pytest.mark.parametrize("logger", ["tensorboard_writer", "trainer", "callbacks.console_logger"])
def test_the_table_of_each_epoch_is_a_row(logger: str) -> None:
    head = f"2026-01-02 03:04:05,678 - INFO - allennlp.training.{logger} - "
    trace = read_lines(
        "allennlp",
        head + "                  Training |  Validation",
        head + "loss          |     0.750  |     0.812",
        head + "accuracy      |     0.500  |     0.625",
        head + "cpu_memory_MB |  1580.612  |       N/A",
        head + "loss          |       nan  |       nan",
        head + "accuracy      |     0.500  |       N/A",
        head + "loss          |     0.625  |       N/A",
    )
    assert rows_of(trace) == [(1, 0.75), (2, None), (3, 0.625)]
    assert rows_of(trace, "eval_loss") == [(1, 0.812), (2, None)]
    assert rows_of(trace, "metric:training_accuracy") == [(1, 0.5), (2, 0.5)]
    assert rows_of(trace, "metric:validation_accuracy") == [(1, 0.625)]
    assert trace.facts["step_source"] == "epochs"
    assert trace.lines_skipped == 0


def test_a_bar_is_no_row() -> None:
    trace = read_lines(
        "allennlp",
        "accuracy: 0.7, loss: 9.51 ||: 100%|##########| 165/165 [07:32<00:00,  2.7s/it]",
        "INFO - allennlp.training.tensorboard_writer - loss          |     0.750  |     0.812",
    )
    assert rows_of(trace) == [(1, 0.75)]
