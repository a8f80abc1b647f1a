"""The MetricLogger of torchvision's references, DETR, DeiT, MAE and their kin.

`loss: 6.9 (7.1)` is the median of the newest 20 updates and, in brackets, the mean of the epoch so
far. `Averaged stats` repeats the newest values. Epochs and updates count from 0.
"""

import math

from optdoctor.reading.text_format import Line, TextFormat

READER = TextFormat(
    name="metric-logger",
    lines=(
        Line(
            r"\bEpoch: \[ <epoch>\]\s+\[ <iter>/ <per_epoch>\] (?=eta: )",
            pairs=":",
            mark="Epoch: [",
        ),
        Line(
            r"\bTest: \[ \d+/ \d+\] eta: .{0,1000}?\bloss: \S{1,20} \(<eval_loss>\)",
            mark="Test:",
            claims=False,
        ),
        Line(r"\*? Acc@1 <acc1> Acc@5 <acc5> loss <eval_loss>", mark="Acc@1", claims=False),
        Line(r"\bTest: ", mark="Test:", claims=False),
        # The update that broke has no number: it takes the place of the newest row.
        Line(
            r"\bLoss is (?:nan|-?inf), stopping training",
            values={"loss": math.nan},
            mark="stopping training",
            claims=False,
        ),
    ),
    aliases={"max mem": "", "img/s": ""},
    facts={"loss_kind": "falling", "loss_form": "window median"},
    first_epoch=0,
    from_zero=True,
    sample="""Epoch: [0]  [  0/900]  eta: 1:20:30  lr: 0.000001  loss: 6.9375 (6.9375)  \
time: 5.3685  data: 2.6134  max mem: 5000
Epoch: [0]  [ 20/900]  eta: 0:20:30  lr: 0.000001  loss: 6.8750 (6.9062)  \
time: 0.3685  data: 0.0002  max mem: 5000
Epoch: [0]  [ 40/900]  eta: 0:20:15  lr: 0.000002  loss: 6.7500 (nan)  \
time: 0.3685  data: 0.0002  max mem: 5000
Averaged stats: lr: 0.000002  loss: 6.7500 (nan)
Test:  [ 0/50]  eta: 0:01:30  loss: 6.5000 (6.5000)  acc1: 0.5000 (0.5000)  time: 1.5  data: 1.0
""",
).reader
