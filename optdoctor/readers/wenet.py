"""WeNet and WeKws: `TRAIN Batch <epoch>/<batch> loss ..` of one batch, from each rank; from 0."""

from optdoctor.reading.text_format import Line, TextFormat

READER = TextFormat(
    name="wenet",
    lines=(
        Line(
            r"\bTRAIN\b.{0,60}?\bBatch <epoch>/<iter> loss <loss>",
            pairs=" ",
            mark="TRAIN",
        ),
        Line(
            r"\bEpoch \d+(?: Step \d+)? CV info .{0,200}?\bcv_loss <eval_loss>",
            mark="CV info",
            claims=False,
        ),
    ),
    aliases={"rank": ""},
    facts={"loss_kind": "falling", "loss_form": "mean", "loss_window": 1},
    from_zero=True,
    sample="""2026-01-02 03:04:05,678 DEBUG TRAIN Batch 0/0 loss 310.250000 loss_att 280.500000 \
loss_ctc 380.125000 lr 0.00000004 rank 0
2026-01-02 03:05:05,678 DEBUG TRAIN Batch 0/100 loss 150.125000 loss_att 120.500000 \
loss_ctc 220.125000 lr 0.00000404 rank 0
2026-01-02 03:05:25,678 DEBUG CV Batch 0/0 loss 101.500000 history loss 100.250000 rank 0
2026-01-02 03:05:35,678 INFO Epoch 0 CV info cv_loss 99.5
2026-01-02 03:06:05,678 DEBUG TRAIN Batch 1/0 loss 90.125000 loss_att 70.500000 \
loss_ctc 110.125000 lr 0.00000804 rank 0
""",
).reader
