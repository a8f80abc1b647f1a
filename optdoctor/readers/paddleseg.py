"""PaddleSeg: means over the iterations since the last line."""

from optdoctor.reading.text_format import Line, TextFormat

READER = TextFormat(
    name="paddleseg",
    lines=(
        Line(r"\[TRAIN\] epoch[:=] <epoch>, iter[:=] <step>/<total>,", pairs=":", mark="[TRAIN]"),
        Line(r"\[EVAL\] #Images", pairs=":", mark="[EVAL] #", claims=False),
    ),
    aliases={"batch_cost": "", "reader_cost": "", "ips": ""},
    facts={"loss_kind": "falling", "loss_form": "mean"},
    from_zero=False,
    is_window_mean=True,
    sample="""2026-01-02 03:04:05 [INFO]	[TRAIN] epoch: 1, iter: 10/9000, loss: 2.7500, \
lr: 0.009991, batch_cost: 0.2500, reader_cost: 0.06250, ips: 16.0000 samples/sec | ETA 00:37:28
2026-01-02 03:04:08 [INFO]	[TRAIN] epoch: 1, iter: 20/9000, loss: 1.6250, \
lr: 0.009982, batch_cost: 0.2500, reader_cost: 0.06250, ips: 16.0000 samples/sec | ETA 00:37:25
2026-01-02 03:04:18 [INFO]	[EVAL] #Images: 100 mIoU: 0.1250 Acc: 0.5000 Kappa: 0.2500
""",
).reader
