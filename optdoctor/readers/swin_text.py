"""Swin Transformer's main.py and its kin: `Train: [0/300][10/1251]`, then names and values.

The first number is the loss of one update, that in brackets the mean of the epoch so far. The
gradient norm is infinite where the scaler skipped the update. Epochs and updates count from 0.
"""

from optdoctor.reading.text_format import Line, TextFormat

READER = TextFormat(
    name="swin",
    lines=(
        Line(
            r"\bTrain: \[ <epoch>/\d+\]\[ <iter>/<per_epoch>\]\s+(?=eta )",
            pairs=" ",
            mark="Train: [",
        ),
        Line(
            r"\bTest: \[ \d+/\d+\]\s.{0,200}?\bLoss \S{1,20} \( <eval_loss>\)",
            mark="Test: [",
            claims=False,
        ),
    ),
    aliases={"wd": ""},
    facts={"loss_kind": "falling", "loss_form": "mean", "loss_window": 1},
    first_epoch=0,
    from_zero=True,
    sample="""[2026-01-02 03:04:05 swin_tiny] (main.py 220): INFO Train: [0/300][0/900]	\
eta 20:30:15 lr 0.000001	time 5.2500 (5.2500)	loss 6.9375 (6.9375)	\
grad_norm 2.5000 (2.5000)	mem 5000MB
[2026-01-02 03:04:15 swin_tiny] (main.py 220): INFO Train: [0/300][10/900]	\
eta 2:30:15 lr 0.000001	time 0.2500 (0.5000)	loss 6.8750 (6.9062)	\
grad_norm 1.5000 (inf)	mem 5000MB
[2026-01-02 03:04:25 swin_tiny] (main.py 270): INFO Test: [0/98]	Time 1.250 (1.250)	\
Loss 6.7500 (6.7500)	Acc@1 0.500 (0.500)	Acc@5 1.250 (1.250)	Mem 5000MB
""",
).reader
