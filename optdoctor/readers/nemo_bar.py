"""NeMo's progress bar: one update, beside the steps that are finished."""

from optdoctor.reading.text_format import Line, TextFormat

READER = TextFormat(
    name="nemo-bar",
    lines=(
        Line(
            r"\bEpoch <epoch>:.{0,300}?\breduced_train_loss=<loss>"
            r"(?=.{0,300}\bglobal_step=<step>[],])",
            pairs=":",
            mark="reduced_train_loss=",
        ),
    ),
    aliases={"consumed_samples": "", "train_step_timing in s": ""},
    facts={"loss_kind": "falling", "loss_form": "mean", "loss_window": 1},
    repeated=frozenset({"val_loss"}),
    from_zero=True,
    sample="""Epoch 0: :   1%|          | 10/900 [00:10<15:03, v_num=0-56, \
reduced_train_loss=9.750, global_step=9.000, consumed_samples=80.00, train_step_timing in s=0.625]
Epoch 0: :   2%|1         | 20/900 [00:20<14:53, v_num=0-56, \
reduced_train_loss=nan.0, global_step=19.00, consumed_samples=160.0, \
train_step_timing in s=0.625, val_loss=8.500]
""",
).reader
