"""PyTorch's ImageNet example and the many scripts that grew from it.

`Loss 2.24 (2.31)` is one update and, in brackets, the mean of the epoch so far. Updates count from
0, since 2022 from 1; epochs from 0, in some scripts from 1.
"""

from optdoctor.reading.text_format import Line, TextFormat

READER = TextFormat(
    name="torch-imagenet",
    lines=(
        Line(
            r"\bEpoch: \[ <epoch>\]\[ <iter>/ <per_epoch>\]\s++"
            r"(?=.{0,400}\bLoss \S{1,20} \( \S{1,20}\))",
            pairs=" ",
            mark="Epoch: [",
        ),
        Line(
            r"\b(?:Test|Val|val|Validation): ?\[ \d+/ \d+\]\s"
            r".{0,200}?\bLoss \S{1,20} \( <eval_loss>\)",
            mark="Loss ",
            claims=False,
        ),
        Line(
            r"\bval\[ \d+/ \d+\]\s.{0,200}?\bLoss \S{1,20} \( <eval_loss>\)",
            mark="val[",
            claims=False,
        ),
    ),
    aliases={"Loss": "loss", "LR": "lr", "Time": "", "Data": "", "Speed": ""},
    facts={"loss_kind": "falling", "loss_form": "mean", "loss_window": 1},
    first_epoch=None,
    sample="""Epoch: [0][  1/900]	Time  5.250 ( 5.250)	Data  2.500 ( 2.500)	\
Loss 6.9375e+00 (6.9375e+00)	Acc@1   0.50 (  0.50)	Acc@5   1.25 (  1.25)
Epoch: [0][ 11/900]	Time  0.250 ( 0.750)	Data  0.500 ( 0.500)	\
Loss 6.8750e+00 (6.9062e+00)	Acc@1   0.50 (  0.50)	Acc@5   1.25 (  1.25)
Test: [ 1/50]	Time  1.250 ( 1.250)	Loss 6.7500e+00 (6.7500e+00)	Acc@1   0.50 (  0.50)
 *   Acc@1 0.625 Acc@5 1.250
""",
).reader
