"""AllenNLP's metrics files, joined."""

from text_logs import read_lines, rows_of

ROW = (
    '{{"best_epoch": 0, "peak_cpu_memory_MB": 9, "training_duration": "0:01:30.125", '
    '"training_start_epoch": 0, "training_epochs": {epoch}, "epoch": {epoch}, '
    '"training_accuracy": 0.5, "training_loss": {loss}, "training_cpu_memory_MB": 9, '
    '"validation_accuracy": 0.625, "validation_loss": {val}, "best_validation_loss": 0.5, '
    '"best_validation_f1": 0.5}}'
)


def test_epochs_count_from_zero() -> None:
    trace = read_lines(
        "allennlp-json",
        ROW.format(epoch=0, loss=0.75, val=0.8125),
        ROW.format(epoch=1, loss=0.625, val="NaN"),
    )
    assert rows_of(trace) == [(1, 0.75), (2, 0.625)]
    assert rows_of(trace, "eval_loss") == [(1, 0.8125), (2, None)]
    assert trace.facts["step_source"] == "epochs"
    accuracies = {"metric:training_accuracy", "metric:validation_accuracy"}
    assert set(trace.series) == {"loss", "eval_loss"} | accuracies
