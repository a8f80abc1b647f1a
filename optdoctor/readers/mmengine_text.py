"""mmengine (MMDetection 3, XTuner ..): `Epoch(train)  [1][50/735]`, then fields parted by blanks.

A row is the mean of the newest iterations, 10 where the configuration does not say otherwise. The
second number of an evaluation is its own batch.
"""

from optdoctor.reading.text_format import Line, TextFormat

_NOT_MMCV = r"(?!\s*(?:lr\w*:\s*[-+.\de]+\s*)+,)"

READER = TextFormat(
    name="mmengine",
    lines=(
        Line(
            rf"\bEpoch\(train\) \[ <epoch>\]\[ <iter>/<per_epoch>\]{_NOT_MMCV}",
            pairs=":",
            mark="Epoch(train)",
        ),
        Line(rf"\bIter\(train\) \[ <step>/<total>\]{_NOT_MMCV}", pairs=":", mark="Iter(train)"),
        Line(
            r"\b(?:Epoch|Iter)\(val\) \[.{0,1000}?\bloss: <eval_loss>", mark="(val)", claims=False
        ),
        Line(
            r"\b(?:Epoch|Iter)\(val\) (?:\[ \d+(?:/\d+)?\])+(?!.{0,1000}\b(?:loss|eta):)",
            pairs=":",
            mark="(val)",
            claims=False,
        ),
        Line(r"\(val\) .{0,200}\beta: ", mark="(val)", claims=False),
    ),
    facts={"loss_kind": "falling", "loss_form": "mean"},
    from_zero=False,
    sample="""01/02 03:04:05 - mmengine - INFO - Epoch(train)   [1][ 50/900]  base_lr: 1.0000e-02 \
lr: 1.0000e-02  eta: 1 day, 0:39:15  time: 0.0625  data_time: 0.0017  memory: 2389  \
loss: 1.2500  loss_cls: 0.8125  loss_bbox: 0.4375  acc: 91.5000
01/02 03:04:45 - mmengine - INFO - Epoch(train)   [1][100/900]  base_lr: 1.0000e-02 \
lr: 1.0000e-02  eta: 0:38:15  time: 0.0625  data_time: 0.0017  memory: 2389  \
loss: nan  loss_cls: nan  loss_bbox: 0.3750  acc: 0.0000
01/02 03:05:05 - mmengine - INFO - Epoch(val)   [1][20/20]    coco/bbox_mAP: 0.0250  \
data_time: 0.0017  time: 0.0312
""",
).reader
