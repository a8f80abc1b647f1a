"""XGBoost and LightGBM."""

from optdoctor.trace import Trace
from tests.text_logs import read_lines, rows_of


def read(*lines: str) -> Trace:
    return read_lines("boosting", *lines)


def test_the_loss_is_that_of_the_training_data() -> None:
    trace = read(
        "[0]\ttrain-logloss:0.6875\ttrain-auc:0.5\tvalid-logloss:0.75\tvalid-auc:0.5",
        "[1]\ttrain-logloss:0.6250\ttrain-auc:0.75\tvalid-logloss:0.5\tvalid-auc:0.5",
    )
    assert rows_of(trace) == [(1, 0.6875), (2, 0.625)]
    assert rows_of(trace, "eval_loss") == [(1, 0.75), (2, 0.5)]
    assert rows_of(trace, "metric:train auc") == [(1, 0.5), (2, 0.75)]


def test_lightgbm_counts_from_one_and_names_the_data_otherwise() -> None:
    trace = read(
        "[1]\ttraining's binary_logloss: 0.6875\tvalid_1's binary_logloss: 0.75",
        "[2]\ttraining's binary_logloss: 0.6250\tvalid_1's binary_logloss: nan",
    )
    assert rows_of(trace) == [(1, 0.6875), (2, 0.625)]
    assert rows_of(trace, "eval_loss") == [(1, 0.75), (2, None)]


def test_cross_validation_gives_means_with_deviations() -> None:
    trace = read("[1]\ttrain-rmse:9.5+0.25\ttest-rmse:9.75+0.5", "[2]\ttrain-rmse:8.5+0.25")
    assert rows_of(trace) == [(1, 9.5), (2, 8.5)]
    assert rows_of(trace, "eval_loss") == [(1, 9.75)]


def test_a_tab_that_a_logger_escaped_is_one() -> None:
    trace = read("[0]#011train-rmse:9.5#011validation-rmse:9.75", "[1]#011train-rmse:8.5")
    assert rows_of(trace) == [(1, 9.5), (2, 8.5)]
    assert rows_of(trace, "eval_loss") == [(1, 9.75)]


def test_a_measure_that_should_rise_is_no_loss() -> None:
    trace = read("[1]\ttrain-auc:0.5\tvalid-auc:0.25", "[2]\ttrain-auc:0.75\tvalid-auc:0.5")
    assert not rows_of(trace)
    assert rows_of(trace, "metric:valid auc") == [(1, 0.25), (2, 0.5)]
