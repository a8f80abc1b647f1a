"""BigDL's optimizer on Spark."""

from optdoctor.trace import Trace
from tests.text_logs import read_lines, rows_of

LOG = "2026-01-02 03:04:05 INFO  DistriOptimizer$:295 - [Epoch 3 {}/90000][Iteration {}]"
OLD = (
    "[Wall Clock 9.5s] Train 1792 in 4.387814632seconds. Throughput is 408.40378 records/second. "
    "Loss is {}. Current learning rate is 0.25. Current weight decay is 1.0E-4."
)
NEW = (
    "[Wall Clock 9.5s] Trained 1792 records in 4.4 seconds. Throughput is 408.4 records/second. "
    "Loss is {}. Sequential1a2b's hyper parameters: Current learning rate is 0.25. "
    "Current dampening is 1.7976931348623157E308."
)


def read(*lines: str) -> Trace:
    return read_lines("bigdl", *lines)


def test_old_and_new_lines_hold_the_loss_and_the_rate_of_an_update() -> None:
    for line in (OLD, NEW):
        trace = read(
            LOG.format(0, 901) + line.format("1.2645824"),
            LOG.format(1792, 902) + line.format("Infinity"),
            LOG.format(3584, 903) + line.format("9.906E-5"),
        )
        assert rows_of(trace) == [(901, 1.2645824), (902, float("inf")), (903, 9.906e-05)]
        assert rows_of(trace, "lr") == [(901, 0.25), (902, 0.25), (903, 0.25)]
        assert set(trace.series) == {"loss", "lr", "epoch"}


def test_the_mean_of_a_validation_counts_and_not_its_sum() -> None:
    trace = read(
        LOG.format(0, 901) + OLD.format("1.25"),
        LOG.format(0, 901)
        + "[Wall Clock 9.5s] Loss is (Loss: 85.0, count: 40, Average Loss: 2.125)",
        LOG.format(0, 901)
        + "[Wall Clock 9.5s] Top1Accuracy is Accuracy(correct: 1, count: 4, accuracy: 0.25)",
    )
    assert rows_of(trace) == [(901, 1.25)]
    assert rows_of(trace, "eval_loss") == [(901, 2.125)]
    assert rows_of(trace, "metric:top1_accuracy") == [(901, 0.25)]
