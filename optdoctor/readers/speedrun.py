"""modded-nanogpt: the file begins with the program's own text; several seeds may follow each other.

Train lines carry the number of the update, validation lines that of the updates that are made.
Later records print no training loss.
"""

from optdoctor.reading.text_format import Line, TextFormat

READER = TextFormat(
    name="modded-nanogpt",
    lines=(
        Line(r"^ step:<step>/<total> train_loss:<loss> train_time:", mark="train_loss:"),
        Line(r"^ step:<step>/<total> val_loss:<eval_loss> train_time:", mark="val_loss:"),
    ),
    facts={"loss_kind": "falling", "loss_base": "nats"},
    new_run="step:0/",
    from_zero=False,
    sample="""import torch
step:0/900 val_loss:10.8750 train_time:250ms step_avg:nanms
step:1/900 train_loss:10.8125 train_time:4100ms step_avg:nanms
step:2/900 train_loss:9.2500 train_time:4250ms step_avg:nanms
step:125/900 train_loss:5.1250 train_time:20100ms step_avg:176.25ms
step:125/900 val_loss:5.0625 train_time:20350ms step_avg:176.25ms
""",
).reader
