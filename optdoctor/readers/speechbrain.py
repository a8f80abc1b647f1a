"""SpeechBrain's train_log.txt: one line an epoch."""

from optdoctor.reading.text_format import Line, TextFormat

READER = TextFormat(
    name="speechbrain",
    lines=(
        Line(
            r"\bepoch: <epoch>(?=,? .{0,400}- train loss: <loss>)", pairs=":", mark=" - train loss:"
        ),
    ),
    aliases={"train loss": "", "valid loss": "eval_loss", "lr_model": "lr"},
    facts={"loss_kind": "falling", "loss_form": "mean", "step_source": "epochs"},
    sample="""epoch: 1, lr: 1.00e+00 - train loss: 2.25 - valid loss: 1.75, valid CER: 40.50
epoch: 2, lr: 8.00e-01 - train loss: 1.25 - valid loss: 1.50, valid CER: 1.25e+01
Epoch loaded: 2 - test loss: 1.25, test CER: 11.50
""",
).reader
