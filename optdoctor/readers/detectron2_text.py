"""detectron2's console: medians of the newest 20 iterations, which count from 0.

A loss that is not finite ends the run; the message about it is then its only trace.
"""

import math

from optdoctor.reading.text_format import Line, TextFormat

READER = TextFormat(
    name="detectron2",
    lines=(
        Line(
            r"\biter: <step>\s+(?=.{0,4000}\btotal_loss:)", pairs=":", mark="total_loss:", offset=1
        ),
        Line(
            r"\bLoss became infinite or NaN at iteration=<step>",
            values={"total_loss": math.nan},
            mark="Loss became infinite",
            claims=False,
            offset=1,
        ),
    ),
    aliases={"last_time": "", "last_data_time": ""},
    facts={"loss_kind": "falling", "loss_form": "window median"},
    from_zero=False,
    sample="""[01/02 03:04:05 d2.utils.events]: eta: 1 day, 5:41:49  iter: 19  total_loss: 1.750  \
loss_cls: 1.250  loss_box_reg: 0.500  time: 0.2293  data_time: 0.0033  lr: 0.000125  max_mem: 3782M
[01/02 03:04:10 d2.utils.events]: eta: 5:41:49  iter: 39  total_loss: 1.625  \
loss_cls: 1.125  loss_box_reg: 0.500  time: 0.2293  data_time: 0.0033  lr: 0.000250  max_mem: 3782M
""",
).reader
