"""summary.csv of timm's training script: one row an epoch.

It trains with smoothed labels (its default), mixed ones or a binary cross entropy, and evaluates
with a plain cross entropy: its two losses are different functions.
"""

from optdoctor.reading.table_format import Meaning, table_reader


def _claim(names: tuple[str, ...], _: str) -> Meaning | None:
    if not {"epoch", "train_loss", "eval_loss", "eval_top1"} <= set(names):
        return None
    return Meaning(
        aliases={"epoch": "epoch", "train_loss": "loss", "eval_loss": "eval_loss", "lr": "lr"},
        is_row_an_epoch=True,
        facts={"loss_kind": "falling", "loss_form": "mean", "losses_comparable": "no"},
    )


READER = table_reader(
    "timm-summary",
    _claim,
    marks=("eval_top1",),
    sample="""epoch,train_loss,eval_loss,eval_top1,eval_top5
0,6.75,6.5,0.25,1.5
1,6.5,6.25,0.75,3.5
2,6.25,6.125,1.5,5.25
""",
)
