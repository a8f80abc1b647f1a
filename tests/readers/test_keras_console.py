"""Keras' progress text: the last frame of an epoch's bar is its row."""

from optdoctor.trace import Trace
from tests.text_logs import read_lines, rows_of

BACK = "\x08" * 90


def read(*lines: str) -> Trace:
    return read_lines("keras-console", *lines)


def bar(loss: float | str, rest: str = "", of: int = 40) -> str:
    return f"{of}/{of} [==============================] - 3s 75ms/step - loss: {loss}{rest}"


def frame(seen: int, loss: float | str, of: int = 40) -> str:
    return f"{seen:2d}/{of} [=====>........................] - ETA: 2s - loss: {loss}"


def keras_3(seen: int, clock: str, loss: float | str, rest: str = "") -> str:
    return (
        f"\x1b[1m{seen}/40\x1b[0m \x1b[32m━━━━━━━━━━\x1b[0m\x1b[37m━━━━━━━━━━\x1b[0m "
        f"\x1b[1m{clock}\x1b[0m 75ms/step - accuracy: 0.2500 - loss: {loss}{rest}"
    )


def test_an_epoch_is_a_row_with_the_epochs_planned() -> None:
    trace = read("Epoch 1/9", bar(2.25, " - val_loss: 2.5"), "Epoch 2/9", bar(1.5))
    assert rows_of(trace) == [(1, 2.25), (2, 1.5)]
    assert rows_of(trace, "eval_loss") == [(1, 2.5)]
    assert rows_of(trace, "epoch") == [(1, 1.0), (2, 2.0)]
    assert trace.facts["total_steps"] == 9
    assert trace.facts["loss_form"] == "running mean"
    assert trace.facts["loss_kind"] == "falling"


def test_keras_1_counts_samples_and_says_no_time_per_step() -> None:
    line = "5000/5000 [==============================] - 45s - loss: {} - acc: 0.1250"
    trace = read("Epoch 1/9", line.format(2.5), "Epoch 2/9", line.format(2.25))
    assert rows_of(trace) == [(1, 2.5), (2, 2.25)]
    assert rows_of(trace, "metric:acc") == [(1, 0.125), (2, 0.125)]


def test_verbose_2_writes_one_line_an_epoch_with_or_without_the_count() -> None:
    for line in (
        "19s - loss: {} - val_loss: 0.5000",
        " - 19s - loss: {} - val_loss: 0.5000",
        " - 19s 76ms/step - loss: {} - val_loss: 0.5000",
        "40/40 - 19s - loss: {} - val_loss: 0.5000 - 19s/epoch - 76ms/step",
        "40/40 - 19s - 76ms/step - loss: {} - val_loss: 0.5000",
    ):
        trace = read("Epoch 1/2", line.format("0.7500"), "Epoch 2/2", line.format("1.2500e-04"))
        assert rows_of(trace) == [(1, 0.75), (2, 0.000125)]
        assert rows_of(trace, "eval_loss") == [(1, 0.5), (2, 0.5)]
        assert set(trace.series) == {"loss", "eval_loss", "epoch"}


def test_the_last_frame_of_a_bar_is_its_row_whatever_parts_the_frames() -> None:
    for mark in ("\r", BACK, BACK + "\r", "\n"):
        frames = mark.join([frame(1, 3.5), frame(20, 2.5), bar(2.25), bar(2.25, " - val_loss: 2")])
        trace = read("Epoch 1/9", frames, "Epoch 2/9", mark.join([frame(1, 1.5), bar(1.25)]))
        assert rows_of(trace) == [(1, 2.25), (2, 1.25)]
        assert rows_of(trace, "eval_loss") == [(1, 2.0)]


def test_keras_3_bars_are_read_through_their_colours() -> None:
    full = BACK + "\r" + keras_3(40, "3s", "2.1250") + "\n"
    whole = full + BACK + "\r" + keras_3(40, "3s", "2.1250", " - val_loss: 2.2500")
    trace = read(
        *("Epoch 1/2", keras_3(1, "1:03", "2.5000") + whole),
        *("Epoch 2/2", keras_3(1, "12s", "2.0000") + whole.replace("2.1250", "1.7500")),
    )
    assert rows_of(trace) == [(1, 2.125), (2, 1.75)]
    assert rows_of(trace, "eval_loss") == [(1, 2.25), (2, 2.25)]
    assert rows_of(trace, "metric:accuracy") == [(1, 0.25), (2, 0.25)]


def test_a_log_without_its_head_takes_the_first_epoch_from_the_next_line() -> None:
    trace = read(bar(2.5), "Epoch 34/90", bar(2.25), "Epoch 35/90", bar(2.0))
    assert rows_of(trace) == [(33, 2.5), (34, 2.25), (35, 2.0)]


def test_an_epoch_that_never_ended_is_no_row() -> None:
    trace = read("Epoch 1/9", bar(2.5), "Epoch 2/9", frame(20, 7.5))
    assert rows_of(trace) == [(1, 2.5)]


def test_an_epoch_that_never_ended_is_a_row_where_it_shows_a_nan() -> None:
    glued = frame(8, 1.25) + "Batch 8: Invalid loss, terminating training"
    trace = read("Epoch 1/9", bar(1.5), "Epoch 2/9", glued, frame(9, "nan"))
    assert rows_of(trace) == [(1, 1.5), (2, None)]


def test_an_epoch_that_never_ended_is_a_row_where_there_is_no_other() -> None:
    assert rows_of(read("Epoch 1/9", frame(20, 7.5))) == [(1, 7.5)]


def test_text_glued_to_a_value_does_not_hide_it() -> None:
    trace = read("Epoch 1/2", bar("nanBatch 8: Invalid loss, terminating training"))
    assert rows_of(trace) == [(1, None)]
    glued = bar("0.5000Epoch 00001: val_loss improved from inf to 0.2500, saving model")
    trace = read("Epoch 1/2", glued, "Epoch 2/2", bar(0.25))
    assert rows_of(trace) == [(1, 0.5), (2, 0.25)]
    assert "eval_loss" not in trace.series


def test_lines_of_callbacks_are_no_epochs() -> None:
    trace = read(
        *("Epoch 1/9", bar(2.5), "Epoch 00001: val_loss improved from inf to 9.0, saving model"),
        *("Epoch 2/9", bar(2.25), "Epoch 2: ReduceLROnPlateau reducing learning rate to 0.0001."),
        *("Epoch 3/9", bar(2.0, " - lr: 1.0000e-04")),
    )
    assert rows_of(trace) == [(1, 2.5), (2, 2.25), (3, 2.0)]
    assert rows_of(trace, "lr") == [(3, 0.0001)]


def test_bars_of_evaluate_and_predict_are_no_training() -> None:
    other = bar(9.5, " - accuracy: 0.5", of=80)
    trace = read(
        *("Epoch 1/2", bar(2.5), other, "12/12 [==============================] - 0s 2ms/step"),
        *(frame(1, 9.5), frame(30, 9.25), bar(9.0)),  # on the training data
        *("Epoch 2/2", bar(2.25), other),
    )
    assert rows_of(trace) == [(1, 2.5), (2, 2.25)]
    assert "metric:accuracy" not in trace.series


def test_an_evaluation_before_the_training_is_no_epoch_of_it() -> None:
    trace = read(bar(9.5, " - acc: 0.5", of=12), "Epoch 1/2", bar(2.5), "Epoch 2/2", bar(2.25))
    assert rows_of(trace) == [(1, 2.5), (2, 2.25)]
    assert "metric:acc" not in trace.series
    assert not trace.events


def test_fit_in_a_loop_counts_its_epochs() -> None:
    named = read("Epoch 1/1", bar(2.5), "Epoch 1/1", bar(2.25), "Epoch 1/1", bar(2.0))
    assert rows_of(named) == [(1, 2.5), (2, 2.25), (3, 2.0)]
    unnamed = read(bar(2.5), bar(9.5, of=12), bar(2.25), bar(9.5, of=12), frame(1, 7.0), bar(2.0))
    assert rows_of(unnamed) == [(1, 2.5), (2, 2.25), (3, 2.0)]
    assert "total_steps" not in named.facts


def test_a_second_fit_is_another_run_once_it_has_a_row() -> None:
    first = ("Epoch 1/2", bar(2.5), "Epoch 2/2", bar(2.25), "Epoch 1/3")
    trace = read(*first, bar(3.5))
    assert rows_of(trace) == [(1, 3.5)]
    assert [event.kind for event in trace.events] == ["start"]
    assert rows_of(read(*first, frame(1, 9.5))) == [(1, 2.5), (2, 2.25)]


def test_a_generator_of_unknown_length_ends_with_the_next_epoch() -> None:
    unknown = "     {}/Unknown - 3s 75ms/step - loss: {}"
    trace = read(
        *("Epoch 1/3", unknown.format(1, 2.5), bar(2.25, " - val_loss: 3.5")),
        *("Epoch 2/3", unknown.format(1, 2.0), unknown.format(40, 1.75)),
        *("Epoch 3/3", frame(1, 2.0), bar(1.5)),
    )
    assert rows_of(trace) == [(1, 2.25), (2, 1.75), (3, 1.5)]
    assert rows_of(trace, "eval_loss") == [(1, 3.5)]
    loop = read(*("Epoch 1/1", unknown.format(40, 2.5), "Epoch 1/1", unknown.format(40, 2.25)) * 2)
    assert rows_of(loop) == [(1, 2.5), (2, 2.25), (3, 2.5)]


def test_a_bar_that_tells_a_time_still_to_go_is_not_over() -> None:
    line = "40/40 [==============================] - ETA: 0s - loss: {}"
    trace = read(*(line.format(2.5), bar(2.25), line.format(2.0), bar(1.75)))
    assert rows_of(trace) == [(1, 2.25), (2, 1.75)]


def test_indented_and_quoted_text_is_read() -> None:
    trace = read(">     Epoch 1/2", ">     " + bar(2.5), ">     Epoch 2/2", ">     " + bar(2.0))
    assert rows_of(trace) == [(1, 2.5), (2, 2.0)]
