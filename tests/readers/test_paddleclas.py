"""PaddleClas."""

from text_logs import read_lines, rows_of

ROW = (
    "[2026/01/02 03:04:05] ppcls INFO: [Train][Epoch {epoch}/90][Iter: {at}/100]{lr}: 0.00125000, "
    "top1: 0.12500, CELoss: {loss}, loss: {loss}, batch_cost: 1.25000s, reader_cost: 0.50000, "
    "ips: 25.60000 samples/s, eta: 1:30:15"
)


def test_updates_of_an_epoch_count_from_zero_and_epochs_from_one() -> None:
    trace = read_lines(
        "paddleclas",
        ROW.format(epoch=1, at=0, lr="lr(LinearWarmup)", loss="4.62500"),
        ROW.format(epoch=1, at=10, lr="lr(LinearWarmup)", loss="nan"),
        ROW.format(epoch=2, at=0, lr="lr", loss="4.25000"),
    )
    assert rows_of(trace) == [(1, 4.625), (11, None), (101, 4.25)]
    assert rows_of(trace, "lr")[-1] == (101, 0.00125)
    assert trace.facts["loss_form"] == "running mean"
    assert set(trace.series) == {"epoch", "loss", "lr", "metric:CELoss", "metric:top1"}


def test_the_mean_of_an_epoch_is_no_row_and_its_evaluation_is() -> None:
    trace = read_lines(
        "paddleclas",
        ROW.format(epoch=1, at=0, lr="lr", loss="4.62500"),
        "ppcls INFO: [Train][Epoch 1/90][Avg]top1: 0.12500, CELoss: 9.5, loss: 9.50000",
        "ppcls INFO: [Eval][Epoch 1][Iter: 0/20]CELoss: 9.12500, loss: 9.12500, top1: 0.25",
        "ppcls INFO: [Eval][Epoch 1][Avg]CELoss: 9.12500, loss: 4.12500, top1: 0.25000",
    )
    assert rows_of(trace) == [(1, 4.625)]
    assert rows_of(trace, "eval_loss") == [(1, 4.125)]
    assert trace.lines_skipped == 0
