"""MaxText: numbered from 0, evaluations with an equals sign."""

from tests.readers.language_model_logs import read, rows

LINE = (
    "completed step: {}, seconds: 5.625, TFLOP/s/device: 7.125, Tokens/s/device: 401.500,"
    " total_weights: 32768, loss: {}"
)


def test_the_first_update_is_number_zero() -> None:
    trace = read(
        "maxtext",
        "I0102 03:04:05.678901 140 max_logging.py:40] " + LINE.format(0, 10.75),
        LINE.format(1, 10.5) + ", lm_loss: 10.25, perplexity: 28282.542",
        "eval metrics after step: 1, loss=10.125, total_weights=75264.0",
    )
    assert rows(trace) == {1: 10.75, 2: 10.5}
    assert rows(trace, "eval_loss") == {2: 10.125}
    assert rows(trace, "metric:lm_loss") == {2: 10.25}
    assert not any("device" in name or "weights" in name for name in trace.series)
