"""OpenCLIP: the loss of one update and, in brackets, the mean of the epoch so far.

`[ 4096/1000000 (0%)]` counts examples. How many make an update is not said, so that rows are
counted.
"""

from optdoctor.reading.text_format import Line, TextFormat

READER = TextFormat(
    name="open-clip",
    lines=(
        Line(
            r"\bTrain Epoch: <epoch> \[ \d+/\d+ \( \d+(?:\.\d+)?%\)\]"
            r"(?=.{0,400}\bLR: <lr>)(?:.{0,400}?\s)?Loss: <loss> \(",
            mark="Train Epoch:",
        ),
        Line(
            r"\bEval Epoch: \d++.{0,1000}?\bclip_val_loss: <eval_loss>",
            mark="Eval Epoch:",
            claims=False,
        ),
    ),
    facts={"loss_kind": "falling", "loss_form": "mean", "loss_window": 1},
    sample="""2026-01-02,03:04:05 | INFO | Train Epoch: 0 [  4096/1000000 (0%)] Data (t): 1.500 \
Batch (t): 3.250, 1260.31/s, 157.5/s/gpu LR: 0.000001 Logit Scale: 14.286 \
Contrastive_loss: 8.2500 (8.2500) Loss: 8.2500 (8.2500)
2026-01-02,03:04:45 | INFO | Train Epoch: 0 [413696/1000000 (41%)] Data (t): 0.500 \
Batch (t): 1.250, 3276.80/s, 409.6/s/gpu LR: 0.000050 Logit Scale: 14.250 \
Contrastive_loss: 7.7500 (8.0000) Loss: 7.7500 (8.0000)
2026-01-02,03:05:45 | INFO | Eval Epoch: 1 clip_val_loss: 7.5000	epoch: 1.0000
""",
).reader
