"""NeMo's bar."""

from text_logs import read_lines, rows_of

BAR = (
    "Epoch 0: :   1%|          | {n}/900 [00:10<15:03, {old}v_num=0-56, reduced_train_loss={loss}, "
    "global_step={step}, consumed_samples=6.3e+5, train_step_timing in s=0.625{more}]"
)


def test_steps_count_from_zero_and_nan_has_a_decimal() -> None:
    trace = read_lines(
        "nemo-bar",
        BAR.format(n=10, old="", loss="9.750", step="9.000", more=""),
        BAR.format(n=20, old="loss=9.25, ", loss="nan.0", step="19.00", more=""),
        BAR.format(n=30, old="", loss="8.750", step="29.0", more=""),
    )
    assert rows_of(trace) == [(10, 9.75), (20, None), (30, 8.75)]
    assert trace.facts["loss_window"] == 1
    assert not {"metric:consumed_samples", "metric:v_num"} & trace.series.keys()


def test_the_loss_of_an_evaluation_stands_until_the_next() -> None:
    trace = read_lines(
        "nemo-bar",
        *(
            BAR.format(n=10 * i, old="", loss=9.75, step=10 * i - 1, more=f", val_loss={loss}")
            for i, loss in enumerate((8.5, 8.5, 8.25), start=1)
        ),
    )
    assert rows_of(trace, "eval_loss") == [(10, 8.5), (30, 8.25)]
