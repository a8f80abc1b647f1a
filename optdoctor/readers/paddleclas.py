"""PaddleClas: means since the epoch began; updates of an epoch count from 0."""

from optdoctor.reading.text_format import Line, TextFormat

READER = TextFormat(
    name="paddleclas",
    lines=(
        Line(
            r"\[Train\]\[Epoch <epoch>/\d+\]\[Iter: <iter>/<per_epoch>\]lr(?:\(\w+\))?: <lr>",
            pairs=":",
            mark="[Train][Epoch",
        ),
        Line(r"\[Train\]\[Epoch \d+/\d+\]\[Avg\]", mark="[Train][Epoch", claims=False),
        Line(
            r"\[Eval\]\[Epoch \d+\]\[Avg\].{0,400}?(?<!\w)loss: <eval_loss>",
            mark="[Eval]",
            claims=False,
        ),
        Line(r"\[Eval\]\[Epoch \d+\]", mark="[Eval]", claims=False),
    ),
    aliases={"reader_cost": "", "batch_cost": "", "ips": ""},
    facts={"loss_kind": "falling", "loss_form": "running mean"},
    from_zero=True,
    sample="""[2026/01/02 03:04:05] ppcls INFO: [Train][Epoch 1/90][Iter: 0/100]\
lr(LinearWarmup): 0.00125000, top1: 0.00000, top5: 0.12500, CELoss: 4.62500, loss: 4.62500, \
batch_cost: 1.25000s, reader_cost: 0.50000, ips: 25.60000 samples/s, eta: 1:30:15
[2026/01/02 03:04:06] ppcls INFO: [Train][Epoch 1/90][Iter: 10/100]\
lr(LinearWarmup): 0.00250000, top1: 0.12500, top5: 0.25000, CELoss: 4.50000, loss: 4.50000, \
batch_cost: 0.25000s, reader_cost: 0.00050, ips: 128.00000 samples/s, eta: 0:30:15
[2026/01/02 03:04:16] ppcls INFO: [Train][Epoch 1/90][Avg]top1: 0.12500, loss: 4.25000
[2026/01/02 03:04:18] ppcls INFO: [Eval][Epoch 1][Avg]CELoss: 4.12500, loss: 4.12500, top1: 0.25000
""",
).reader
