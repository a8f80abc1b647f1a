"""nanochat: pretraining with a smoothed loss, and evaluations in bits per byte."""

from optdoctor.reading.text_format import Line, TextFormat

READER = TextFormat(
    name="nanochat",
    lines=(
        Line(
            r"\bstep <step>(?:/ <total>)? \(\S+%\) \| loss: <loss> \|",
            pairs=":",
            mark="| loss:",
        ),
        Line(
            r"\bStep <step>/ <total> \| Training loss: <loss> \|", pairs=":", mark="Training loss"
        ),
        Line(r"\bStep <step> \| Validation loss: <eval_loss>", mark="Validation loss"),
        # Per byte, not per token as the training loss: another quantity.
        Line(r"\bStep <step> \| Validation bpb: <validation_bpb>", mark="Validation bpb"),
    ),
    aliases={
        "grad norm": "grad_norm",
        **dict.fromkeys(("dt", "tok/sec", "mfu", "total time", "epoch", "bf16_mfu"), ""),
        **dict.fromkeys(("num_tokens", "eta"), ""),
    },
    facts={"loss_kind": "falling", "loss_base": "nats"},
    sample="""Step 00000 | Validation bpb: 3.2500
step 00000/09000 (0.00%) | loss: 11.090355 | grad norm: 0.3125 | lrm: 1.00 | dt: 9500.10ms | \
tok/sec: 55,188 | mfu: 5.10 | total time: 0.00m
step 00001/09000 (0.01%) | loss: 10.750000 | grad norm: 1.2500 | lrm: 1.00 | dt: 510.25ms | \
tok/sec: 1,027,500 | mfu: 47.50 | total time: 0.00m
step 00002/09000 (0.02%) | loss: 10.500000 | grad norm: 2.1250 | lrm: 1.00 | dt: 509.75ms | \
tok/sec: 1,028,500 | mfu: 47.52 | total time: 0.00m
""",
).reader
