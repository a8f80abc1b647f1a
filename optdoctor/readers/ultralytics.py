"""results.csv of ultralytics YOLO, v5 (padded headers) to v8 and later: one row an epoch.

The training loss is the sum of its parts, whichever the task has: box, cls, dfl, obj, seg, pose.
"""

from optdoctor.reading.table_format import Meaning, table_reader

_LR = ("lr/pg1", "x/lr1", "lr/pg0", "x/lr0", "lr/0")
"""Group 1 holds the weights; group 0 the biases, whose warmup falls."""
_EVALUATION = ("val/", "test/")


def _claim(names: tuple[str, ...], _: str) -> Meaning | None:
    parts = [name for name in names if name.startswith("train/") and name.endswith("loss")]
    measured = any(name.startswith("metrics/") for name in names)
    rate = next((name for name in _LR if name in names), None)
    if not (parts and measured and rate and "epoch" in names):
        return None
    evaluated = [name for name in names if name.startswith(_EVALUATION) and name.endswith("loss")]
    return Meaning(
        aliases={"epoch": "epoch", "time": "", rate: "lr"},
        sums={"loss": tuple(parts)} | ({"eval_loss": tuple(evaluated)} if evaluated else {}),
        is_row_an_epoch=True,
        facts={"loss_kind": "falling", "loss_form": "mean"},
    )


READER = table_reader(
    "ultralytics",
    _claim,
    marks=("metrics/",),
    sample="""epoch,time,train/box_loss,train/cls_loss,metrics/mAP50(B),val/box_loss,val/cls_loss,lr/pg0
1,12.5,2.25,3.5,0.01,2.5,3.75,0.07
2,24.5,2.125,3.25,0.03,2.25,3.5,0.04
""",
)
