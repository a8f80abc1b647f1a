"""Darknet (YOLO): a line an update with its loss and a decaying mean, lines a detection layer.

A layer that saw no box prints `-nan` with `count: 0`: it has no value, and nothing is wrong.
"""

import math

from optdoctor.reading.text_format import Line, TextFormat


def _fix(values: dict[str, float]) -> dict[str, float]:
    if values.get("count") != 0:
        return values
    return {name: value for name, value in values.items() if not math.isnan(value)}


READER = TextFormat(
    name="darknet",
    lines=(
        Line(
            r"(?<![\d.:,])<step>(?:, [\d.]+)?: <loss>, <avg_loss> avg(?: loss)?, <lr> rate,",
            mark=" rate,",
        ),
        Line(r"(?<![\d.:,])<step>: loss=<loss>, avg loss=<avg_loss>,", pairs=":", mark="avg loss="),
        Line(
            r"\bRegion(?: \d+)? (?=Avg (?:IOU:|\(IOU:).{0,400}\bcount: \d)",
            pairs=":",
            names={"loss": "layer loss", "total_loss": "layer total_loss"},
            mark="Region ",
        ),
        Line(r"mean average precision \(mAP@[\d.]+\) = <map>", mark="mAP@", claims=False),
    ),
    aliases={"rate": "lr", "count": ""},
    facts={"loss_kind": "falling", "loss_form": "mean", "loss_window": 1, "loss_base": "other"},
    fix=_fix,
    sample="""Region 82 Avg IOU: 0.312500, Class: 0.500000, Obj: 0.437500, No Obj: 0.453125, \
.5R: 0.125000, .75R: 0.000000,  count: 4
Region 94 Avg IOU: -nan, Class: -nan, Obj: -nan, No Obj: 0.453125, .5R: -nan, .75R: -nan,  count: 0

 1: 912.500000, 912.500000 avg, 0.000000 rate, 3.250000 seconds, 64 images
Loaded: 0.000025 seconds
 2: 887.250000, 909.975000 avg loss, 0.000000 rate, 3.250000 seconds, 128 images, 1.5 hours left
 3: -nan, -nan avg loss, 0.000001 rate, 3.250000 seconds, 192 images, 1.5 hours left
""",
).reader
