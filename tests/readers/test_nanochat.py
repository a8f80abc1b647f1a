"""nanochat: per token and per byte are two quantities."""

from tests.readers.language_model_logs import read, rows


def test_bits_per_byte_are_a_metric_and_no_evaluation_loss() -> None:
    trace = read(
        "nanochat",
        "Step 00000 | Validation bpb: 3.25",
        "step 00000/00900 (0.00%) | loss: 11.0 | lrm: 1.00 | dt: 9.50ms | tok/sec: 55,188 | mfu: 5",
        "step 00001/00900 (0.11%) | loss: 10.5 | grad norm: 1.25 | lrm: 0.50 | dt: 9.50ms | mfu: 5",
    )
    assert rows(trace) == {1: 11.0, 2: 10.5}
    assert rows(trace, "grad_norm") == {2: 1.25}
    assert rows(trace, "metric:lrm") == {1: 1.0, 2: 0.5}
    assert rows(trace, "metric:validation_bpb") == {1: 3.25}
    assert "eval_loss" not in trace.series
    assert not {"metric:dt", "metric:tok/sec", "metric:mfu"} & trace.series.keys()
    assert trace.facts["total_steps"] == 900


def test_the_older_fine_tuning_prints_its_losses_with_names() -> None:
    trace = read(
        "nanochat",
        "Step 00000 | Validation loss: 1.75",
        "Step 00000/00090 | Training loss: 1.5| lrm: 1.000000| num_tokens: 1,234",
        "Step 00001/00090 | Training loss: 1.25| lrm: 0.988889| num_tokens: 1,500",
    )
    assert rows(trace) == {1: 1.5, 2: 1.25}
    assert rows(trace, "eval_loss") == {1: 1.75}
