"""MLX-LM: the mean loss since the last report, and a validation line before the updates begin."""

from optdoctor.reading.text_format import Line, TextFormat

READER = TextFormat(
    name="mlx-lm",
    lines=(
        Line(r"\bIter <step>: Train loss <loss>,", pairs=" ", mark="Train loss"),
        Line(r"\bIter <step>: Val loss <eval_loss>, Val took", mark="Val loss"),
        Line(r"^Starting training\.\.\., iters: <total>", mark="Starting training", claims=False),
        Line(r"^Test loss <test_loss>, Test ppl", mark="Test loss", claims=False),
    ),
    aliases={
        "eval_loss": "eval_loss",
        "Learning Rate": "lr",
        **dict.fromkeys(("It/sec", "Tokens/sec", "Trained Tokens", "Peak mem"), ""),
    },
    facts={"loss_kind": "falling", "loss_base": "nats", "loss_form": "mean"},
    from_zero=False,
    is_window_mean=True,
    sample="""Starting training..., iters: 900
Iter 1: Val loss 2.250, Val took 17.125s
Iter 10: Train loss 2.125, Learning Rate 1.000e-05, It/sec 0.875, Tokens/sec 387.500, \
Trained Tokens 4120, Peak mem 8.125 GB
Iter 20: Train loss 1.875, Learning Rate 1.000e-05, It/sec 0.875, Tokens/sec 387.500, \
Trained Tokens 8250, Peak mem 8.125 GB
Iter 20: Saved adapter weights to adapters/20_adapters.npz.
Iter 30: Train loss nan, Learning Rate 1.000e-05, It/sec 0.875, Tokens/sec 387.500, \
Trained Tokens 12375, Peak mem 8.125 GB
""",
).reader
