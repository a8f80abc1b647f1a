"""SpeechBrain."""

from text_logs import read_lines, rows_of


def test_the_rate_of_the_model_goes_before_that_of_its_front_end() -> None:
    trace = read_lines(
        "speechbrain", "epoch: 1, lr_model: 5.00e-01, lr_wav2vec: 1.00e-05 - train loss: 2.25"
    )
    assert rows_of(trace, "lr") == [(1, 0.5)]
    assert rows_of(trace) == [(1, 2.25)]


def test_a_line_is_an_epoch() -> None:
    trace = read_lines(
        "speechbrain",
        "speechbrain.utils.train_logger - epoch: 1, lr: 1.00e+00 - train loss: 2.25 - valid loss: "
        "1.75, valid CER: 40.50",
        "epoch: 2, lr: 8.00e-01, wave2vec_lr: 4.30e-06 - train loss: 7.50e-01 - valid loss: nan, "
        "valid CER: 1.50e+02",
        "Epoch loaded: 2 - test loss: 9.25, test CER: 11.50",
    )
    assert rows_of(trace) == [(1, 2.25), (2, 0.75)]
    assert rows_of(trace, "eval_loss") == [(1, 1.75), (2, None)]
    assert rows_of(trace, "lr") == [(1, 1.0), (2, 0.8)]
    assert rows_of(trace, "epoch") == [(1, 1.0), (2, 2.0)]
    assert rows_of(trace, "metric:valid CER") == [(1, 40.5), (2, 150.0)]
    assert trace.facts["step_source"] == "epochs"
    assert trace.lines_skipped == 0
