"""MLX-LM: window means, an evaluation before the first update."""

from tests.readers.language_model_logs import read, rows

REST = ", Learning Rate 1.000e-05, It/sec 0.9, Tokens/sec 387.6, Trained Tokens 9699, Peak mem 8 GB"


def test_a_loss_is_the_mean_of_the_updates_since_the_last_report() -> None:
    trace = read(
        "mlx-lm",
        "Starting training..., iters: 900",
        "Iter 1: Val loss 2.25, Val took 17.125s",
        f"Iter 25: Train loss 2.125{REST}",
        f"Iter 50: Train loss nan{REST}",
        "Iter 50: Val loss 2.5, Val took 17.125s",
        "Iter 50: Saved adapter weights to adapters/50_adapters.npz.",
        "Test loss 2.75, Test ppl 15.643.",
    )
    assert rows(trace) == {25: 2.125, 50: "nan"}
    assert rows(trace, "eval_loss") == {1: 2.25, 50: 2.5}
    assert rows(trace, "lr") == {25: 1e-05, 50: 1e-05}
    assert rows(trace, "metric:test_loss") == {50: 2.75}
    assert trace.facts["loss_window"] == 25
    assert trace.facts["total_steps"] == 900
    assert not any("sec" in name or "Tokens" in name or "mem" in name for name in trace.series)


def test_older_versions_have_no_rate() -> None:
    trace = read("mlx-lm", "Iter 10: Train loss 2.5, It/sec 0.25, Tokens/sec 100.5")
    assert rows(trace) == {10: 2.5}
    assert trace.series.keys() == {"loss"}
