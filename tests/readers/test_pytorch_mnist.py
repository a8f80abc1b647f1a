"""PyTorch's MNIST example."""

from text_logs import read_lines, rows_of


def test_examples_are_no_steps_so_that_rows_are_counted() -> None:
    trace = read_lines(
        "pytorch-mnist",
        "Train Epoch: 1 [0/60000 (0%)]\tLoss: 2.312500",
        "Train Epoch: 1 [640/60000 (1%)]\tLoss: nan",
        "",
        "Test set: Average loss: 0.0625, Accuracy: 9750/10000 (98%)",
        "",
        "Train Epoch: 2 [0/60000 (0%)]\tLoss: 0.250000",
    )
    assert rows_of(trace) == [(1, 2.3125), (2, None), (3, 0.25)]
    assert rows_of(trace, "epoch") == [(1, 1.0), (2, 1.0), (3, 2.0)]
    assert rows_of(trace, "eval_loss") == [(2, 0.0625)]
    assert rows_of(trace, "metric:accuracy") == [(2, 98.0)]
    assert trace.facts["step_source"] == "counted rows"
    assert trace.facts["loss_window"] == 1


def test_a_process_may_stand_in_front() -> None:
    trace = read_lines("pytorch-mnist", "4711\tTrain Epoch: 1 [0/60000 (0%)]\tLoss: 2.312500")
    assert rows_of(trace) == [(1, 2.3125)]
