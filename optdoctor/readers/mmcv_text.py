"""MMCV before 2: `Epoch [1][50/5808]` or `Iter [50/160000]`, then fields parted by commas.

A row is the mean of the iterations since the one before it: one NaN makes all of them NaN.
"""

from optdoctor.reading.text_format import Line, TextFormat

READER = TextFormat(
    name="mmcv",
    lines=(
        Line(
            r"\b(?:Epoch(?:\(train\))? \[ <epoch>\]\[ <iter>/<per_epoch>\]"
            r"|Iter(?:\(train\))? \[ <step>/<total>\])"
            r"\s+(?=(?:lr\w*:\s*[-+.\de]+\s*)+,)",
            pairs=":",
            mark=", eta: ",
        ),
        Line(
            r"\b(?:Epoch|Iter)\(val\) \[.{0,1000}?\bloss: <eval_loss>", mark="(val)", claims=False
        ),
        Line(
            r"\b(?:Epoch|Iter)\(val\) (?:\[ \d+(?:/\d+)?\])+(?!.{0,1000}\bloss:)",
            pairs=":",
            mark="(val)",
            claims=False,
        ),
    ),
    facts={"loss_kind": "falling", "loss_form": "mean"},
    from_zero=False,
    is_window_mean=True,
    sample="""2026-01-02 03:04:05,678 - mmdet - INFO - Epoch [1][50/900]	lr: 1.000e-02, \
eta: 1 day, 5:02:49, time: 0.784, data_time: 0.085, memory: 8104, loss_cls: 0.8125, \
loss_bbox: 0.4375, acc: 91.5000, loss: 1.2500, grad_norm: 3.5000
2026-01-02 03:04:45,678 - mmdet - INFO - Epoch [1][100/900]	lr: 1.000e-02, \
eta: 4:49:14, time: 0.784, data_time: 0.085, memory: 8104, loss_cls: 0.7500, \
loss_bbox: nan, acc: 92.5000, loss: nan, grad_norm: nan
2026-01-02 03:05:05,678 - mmdet - INFO - Epoch(val) [1][100]	bbox_mAP: 0.0250
""",
).reader
