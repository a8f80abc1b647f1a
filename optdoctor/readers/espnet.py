"""ESPnet2's train.log: means over the batches since the last line, those not finite left out.

`1epoch results:` repeats the training as the mean of the epoch; only its `[valid]` is new.
"""

from optdoctor.reading.text_format import Line, TextFormat

READER = TextFormat(
    name="espnet",
    lines=(
        Line(r"\b<epoch>epoch:train:\d+-<iter>batch:", pairs=":", mark="epoch:train:"),
        Line(
            r"epoch results: .{0,4000}?\[valid\](?:[^\[]{0,2000}?[\s,])?loss=<eval_loss>",
            mark="epoch results:",
            claims=False,
        ),
        Line("epoch results:", mark="epoch results:", claims=False),
    ),
    aliases={"optim0_lr0": "lr"}
    | dict.fromkeys(("iter_time", "forward_time", "backward_time", "optim_step_time"), "")
    | {"train_time": ""},
    facts={"loss_kind": "falling", "loss_form": "mean", "nan_filter": "on"},
    from_zero=False,
    is_window_mean=True,
    sample="""[node1] 2026-01-02 03:04:05,678 (trainer:737) INFO: 1epoch:train:1-100batch: \
iter_time=1.250e-04, forward_time=0.125, loss_ctc=310.500, loss_att=210.250, acc=0.125, \
loss=240.325, backward_time=0.250, grad_norm=52.250, clip=100.000, loss_scale=6.554e+04, \
optim_step_time=0.050, optim0_lr0=1.250e-05, train_time=0.500
[node1] 2026-01-02 03:04:55,678 (trainer:737) INFO: 1epoch:train:101-200batch: \
iter_time=1.250e-04, forward_time=0.125, loss_ctc=150.500, loss_att=110.250, acc=0.250, \
loss=122.325, backward_time=0.250, grad_norm=42.250, clip=100.000, loss_scale=6.554e+04, \
optim_step_time=0.050, optim0_lr0=2.500e-05, train_time=0.500
[node1] 2026-01-02 03:05:05,678 (trainer:343) INFO: 1epoch results: [train] iter_time=1.250e-04, \
loss_ctc=230.500, loss=181.325, time=1 minute and 5 seconds, total_count=200, [valid] \
loss_ctc=120.500, cer_ctc=0.500, loss=101.500, time=5.25 seconds, total_count=20
""",
).reader
