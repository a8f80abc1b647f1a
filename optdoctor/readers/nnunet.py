"""nnU-Net's training_log: means of an epoch, a line each. Its loss, Dice in it, falls below 0."""

from optdoctor.reading.text_format import Line, TextFormat

_TIME = r"\d\d:\d\d:\d\d\.\d+: "

READER = TextFormat(
    name="nnunet",
    lines=(
        Line(rf"{_TIME}Epoch (?:<step> $|time: )", mark=": Epoch ", claims=False),
        Line(rf"{_TIME}Current learning rate: <lr>", mark="Current learning rate", claims=False),
        Line(rf"{_TIME}train_loss <loss> $", mark="train_loss"),
        Line(rf"{_TIME}val_loss <eval_loss> $", mark="val_loss", claims=False),
        # Version 1.
        Line(r"^ epoch: <step> $", mark="epoch:", claims=False),
        Line(rf"{_TIME}lr: <lr> $", mark=": lr:", claims=False),
        Line(rf"{_TIME}train loss : <loss> $", mark=": train loss :"),
        Line(rf"{_TIME}validation loss: <eval_loss> $", mark="validation loss:", claims=False),
    ),
    facts={"loss_kind": "falling", "loss_form": "mean", "step_source": "epochs"},
    from_zero=True,
    sample="""2026-01-02 03:04:05.123456: Epoch 0
2026-01-02 03:04:05.123457: Current learning rate: 0.01
2026-01-02 03:06:05.123456: train_loss 0.25
2026-01-02 03:06:05.123457: val_loss 0.125
2026-01-02 03:06:05.123458: Pseudo dice [0.125, nan]
2026-01-02 03:06:05.123459: Epoch time: 120.0 s
2026-01-02 03:06:05.123460:
2026-01-02 03:06:05.123461: Epoch 1
2026-01-02 03:06:05.123462: Current learning rate: 0.00999
2026-01-02 03:08:05.123456: train_loss -0.125
2026-01-02 03:08:05.123457: val_loss -0.25
""",
).reader
