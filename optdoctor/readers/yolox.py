"""YOLOX and ByteTrack: the newest update; sizes and clocks between the losses."""

from optdoctor.reading.text_format import Line, TextFormat

READER = TextFormat(
    name="yolox",
    lines=(
        Line(
            r"\bepoch: <epoch>/\d+, iter: <iter>/<per_epoch>,(?=.{0,400}\btotal_loss:)",
            pairs=":",
            mark="total_loss:",
        ),
    ),
    aliases={"gpu mem": "", "iter_time": "", "size": ""} | {"ETA": ""},
    facts={"loss_kind": "falling", "loss_form": "mean", "loss_window": 1},
    from_zero=False,
    sample="""2026-01-02 03:04:05 | INFO     | yolox.core.trainer:246 - epoch: 1/300, \
iter: 10/900, mem: 6736Mb, iter_time: 0.250s, data_time: 0.001s, total_loss: 14.5, iou_loss: 4.0, \
l1_loss: 0.0, conf_loss: 8.5, cls_loss: 2.0, lr: 6.250e-08, size: 640, ETA: 2 days, 3:34:03
2026-01-02 03:04:08 | INFO     | yolox.core.trainer:246 - epoch: 1/300, \
iter: 20/900, mem: 6736Mb, iter_time: 0.250s, data_time: 0.001s, total_loss: nan, iou_loss: nan, \
l1_loss: 0.0, conf_loss: 8.5, cls_loss: 2.0, lr: 2.500e-07, size: 576, ETA: 3:34:00
""",
).reader
