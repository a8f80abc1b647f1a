"""nnU-Net."""

from text_logs import read_lines, rows_of

TIME = "2026-01-02 03:04:05.123456: "


def test_an_epoch_has_a_line_for_each_number() -> None:
    trace = read_lines(
        "nnunet",
        TIME,
        TIME + "Epoch 0 ",
        TIME + "Current learning rate: 0.01 ",
        "using pin_memory on device 0",
        TIME + "train_loss 0.25 ",
        TIME + "val_loss 0.125 ",
        TIME + "Pseudo dice [0.0, nan] ",
        TIME + "Epoch time: 148.59 s",
        TIME + "Yayy! New best EMA pseudo Dice: 0.5",
        TIME + "Epoch 1",
        TIME + "Current learning rate: 0.00999",
        TIME + "train_loss nan",
        TIME + "val_loss nan",
        TIME + "Epoch 2",
        TIME + "Current learning rate: 0.00998",
        TIME + "train_loss -0.5",
        TIME + "val_loss -0.25",
    )
    assert rows_of(trace) == [(1, 0.25), (2, None), (3, -0.5)]
    assert rows_of(trace, "eval_loss") == [(1, 0.125), (2, None), (3, -0.25)]
    assert rows_of(trace, "lr") == [(1, 0.01), (2, 0.00999), (3, 0.00998)]
    assert trace.facts["step_source"] == "epochs"
    assert trace.facts["loss_kind"] == "falling"
    assert trace.lines_skipped == 0


def test_a_continued_training_repeats_epochs() -> None:
    rows = [f"{TIME}Epoch {n}\n{TIME}train_loss -0.{n + 1}" for n in (0, 1, 2, 1, 2)]
    trace = read_lines("nnunet", *rows)
    assert rows_of(trace) == [(1, -0.1), (2, -0.2), (3, -0.3)]


def test_version_1_is_read() -> None:
    trace = read_lines(
        "nnunet",
        TIME,
        "epoch:  6",
        TIME + "train loss : -0.6584",
        TIME + "validation loss: -0.7226",
        TIME + "Average global foreground Dice: [0.8837]",
        TIME + "lr: 0.009937",
        TIME + "This epoch took 137.136132 s",
        "epoch:  7",
        TIME + "train loss : nan",
    )
    assert rows_of(trace) == [(6, -0.6584), (7, None)]
    assert rows_of(trace, "eval_loss") == [(6, -0.7226)]
    assert rows_of(trace, "lr") == [(6, 0.009937)]
