"""NeMo 2: a line a logged update; the last validation loss is in all lines that follow it."""

from optdoctor.reading.text_format import Line, TextFormat

_UNUSED = ("consumed_samples", "train_step_timing in s", "TFLOPS_per_GPU", "global_step")

READER = TextFormat(
    name="nemo-2",
    lines=(
        Line(
            r"\bTraining epoch <epoch>, iteration <iter>/\d+ \|(?=(?:.*?\bglobal_step: <step>)?)",
            pairs=":",
            mark="Training epoch",
        ),
    ),
    aliases={
        "reduced_train_loss": "loss",
        "peak_memory_usage": "",
        **dict.fromkeys(_UNUSED, ""),
    },
    facts={"loss_kind": "falling", "loss_base": "nats", "loss_form": "mean"},
    repeated=frozenset({"val_loss"}),
    sample="""Training epoch 0, iteration 0/899 | lr: 1e-06 | global_batch_size: 8 | \
global_step: 0 | reduced_train_loss: 10.75 | train_step_timing in s: 4.25
Training epoch 0, iteration 1/899 | lr: 2e-06 | global_batch_size: 8 | global_step: 1 | \
reduced_train_loss: 10.25 | train_step_timing in s: 0.75 | consumed_samples: 16 | val_loss: 10.5
Training epoch 0, iteration 2/899 | lr: 3e-06 | global_batch_size: 8 | global_step: 2 | \
reduced_train_loss: nan | train_step_timing in s: 0.75 | consumed_samples: 24 | val_loss: 10.5
""",
).reader
