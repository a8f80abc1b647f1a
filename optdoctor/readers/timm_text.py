"""timm's train.py and OpenPCDet's: the loss of one update and, in brackets, the epoch's so far."""

from optdoctor.reading.text_format import Line, TextFormat

READER = TextFormat(
    name="timm-console",
    lines=(
        Line(
            r"\bTrain: <epoch>(?:/\d+)? (?:\( \d+%\) )?\[ <iter>/ <per_epoch> \( \d+%\)\]\s+"
            r"Loss: <loss>",
            pairs=":",
            mark="Train:",
        ),
        Line(
            r"\bTest(?: \(\w+\))?: \[ \d+/ \d+\]\s.{0,200}?\bLoss: \S{1,20} \( <eval_loss>\)",
            mark="Test",
            claims=False,
        ),
    ),
    aliases={"LR": "lr", "Time": "", "Data": "", "Data time": ""}
    | {"Forward time": "", "Batch time": ""},
    facts={"loss_kind": "falling", "loss_form": "mean", "loss_window": 1},
    first_epoch=None,
    from_zero=True,
    sample="""Train: 0 [   0/900 (  0%)]  Loss: 6.938 (6.94)  Time: 5.250s,   24.38/s  \
(5.250s,   24.38/s)  LR: 1.000e-06  Data: 2.500 (2.500)
Train: 0 [  50/900 (  6%)]  Loss: 6.875 (6.91)  Time: 0.250s,  512.00/s  \
(0.350s,  365.71/s)  LR: 1.000e-06  Data: 0.012 (0.062)
Test: [   0/50]  Time: 1.250 (1.250)  Loss:  6.750 ( 6.750)  Acc@1:  0.500 ( 0.500)
""",
).reader
