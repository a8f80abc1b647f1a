"""NeMo Automodel: fields parted by bars, a key and its value by a blank."""

from optdoctor.reading.text_format import Line, TextFormat

_UNUSED = ("mem", "tps", "num_label_tokens", "num_tokens_per_step", "tps_per_gpu", "mfu")

READER = TextFormat(
    name="nemo-automodel",
    lines=(
        Line(
            r"^(?!.*\[val\]).*?\bstep <step> \| epoch <epoch> \| loss <loss> \|",
            pairs=" ",
            mark="| epoch ",
        ),
        Line(
            r"\[val\] (?:name \"[^\"]*\" \| )?step <step> \| epoch <epoch> \| loss <eval_loss>",
            mark="[val]",
        ),
    ),
    aliases=dict.fromkeys(_UNUSED, ""),
    facts={"loss_kind": "falling", "loss_base": "nats", "loss_form": "mean"},
    sample="""2026-01-02 03:04:05 | INFO | root | step 1 | epoch 0 | loss 2.1250 | \
grad_norm 1.7500 | lr 1.00e-05 | mem 24.25 GiB | tps 31250.50(3906.25/gpu) | num_label_tokens 45500
2026-01-02 03:04:07 | INFO | root | step 2 | epoch 0 | loss 1.8750 | \
grad_norm 1.5000 | lr 1.00e-05 | mem 24.25 GiB | tps 31250.50(3906.25/gpu) | num_label_tokens 45500
2026-01-02 03:04:08 | INFO | root | [val] name "main" | step 2 | epoch 0 | loss 1.9375 | \
lr 1.00e-05 | num_label_tokens 9000
""",
).reader
