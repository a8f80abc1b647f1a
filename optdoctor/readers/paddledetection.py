"""PaddleDetection: medians of the newest 20 updates; epochs and updates count from 0."""

from optdoctor.reading.text_format import Line, TextFormat

READER = TextFormat(
    name="paddledetection",
    lines=(
        Line(
            r"\bEpoch: \[ <epoch>\] \[ <iter>/ <per_epoch>\] (?=learning_rate: )",
            pairs=":",
            mark="learning_rate:",
        ),
    ),
    aliases={"batch_cost": "", "data_cost": "", "ips": "", "max_mem_reserved": ""}
    | {"max_mem_allocated": ""},
    facts={"loss_kind": "falling", "loss_form": "window median"},
    first_epoch=0,
    from_zero=True,
    sample="""[01/02 03:04:05] ppdet.engine INFO: Epoch: [0] [  0/900] learning_rate: 0.000000 \
loss_cls: 1.250000 loss_bbox: 0.500000 loss: 1.750000 eta: 1 day, 1:30:15 batch_cost: 1.2500 \
data_cost: 0.0005 ips: 0.8000 images/s
[01/02 03:04:15] ppdet.engine INFO: Epoch: [0] [ 20/900] learning_rate: 0.000125 \
loss_cls: 1.125000 loss_bbox: 0.500000 loss: 1.625000 eta: 20:30:15 batch_cost: 0.2500 \
data_cost: 0.0005 ips: 4.0000 images/s
""",
).reader
