"""NeMo 2: a validation loss that is said again and again."""

from tests.readers.language_model_logs import read, rows

LINE = "Training epoch {}, iteration {}/149 | lr: 3e-05 | {}reduced_train_loss: {}{}"


def test_a_validation_loss_counts_once() -> None:
    trace = read(
        "nemo-2",
        LINE.format(0, 9, "consumed_samples: 10 | global_step: 9 | ", 2.5, ""),
        LINE.format(0, 19, "global_step: 19 | ", 2.25, " | val_loss: 2.75"),
        LINE.format(0, 29, "global_step: 29 | ", "nan", " | val_loss: 2.75"),
        LINE.format(0, 39, "global_step: 39 | ", 2.0, " | val_loss: 2.125"),
    )
    assert rows(trace) == {10: 2.5, 20: 2.25, 30: "nan", 40: 2.0}
    assert rows(trace, "eval_loss") == {20: 2.75, 40: 2.125}
    assert rows(trace, "lr")[10] == 3e-05
    assert not any("samples" in name for name in trace.series)


def test_the_global_step_goes_before_the_iteration_of_the_epoch() -> None:
    trace = read(
        "nemo-2",
        LINE.format(0, 149, "global_step: 149 | ", 2.5, ""),
        LINE.format(1, 149, "global_step: 299 | ", 2.25, ""),
    )
    assert rows(trace) == {150: 2.5, 300: 2.25}
