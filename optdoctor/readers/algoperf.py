"""measurements.csv of the AlgoPerf benchmark: rows of training and rows of evaluation.

`loss` is that of a minibatch in training mode; `train/loss` is the plain loss on training data, a
series of its own, as is the `ctc_loss` of speech workloads.
"""

from optdoctor.reading.table_format import Meaning, table_reader

_MINIBATCH = ("loss", "train_loss")
_TRAIN = ("train/loss", "train/ctc_loss")
_DROPPED = (
    "score",  # seconds
    "total_duration",
    "accumulated_submission_time",
    "accumulated_eval_time",
    "accumulated_logging_time",
    "preemption_count",
    "train/num_examples",
    "validation/num_examples",
    "test/num_examples",
)


def _claim(names: tuple[str, ...], _: str) -> Meaning | None:
    if not {"global_step", "accumulated_submission_time"} <= set(names):
        return None
    minibatch = [name for name in _MINIBATCH if name in names]
    losses = minibatch or [name for name in _TRAIN if name in names]
    return Meaning(
        aliases=dict.fromkeys(losses[:1], "loss")
        | {"validation/loss": "eval_loss", "validation/ctc_loss": "eval_loss"}
        | {"grad_norm": "grad_norm", "gradient_norm": "grad_norm"}
        | {"lr": "lr", "learning_rate": "lr"}
        | dict.fromkeys(_DROPPED, ""),
        step="global_step",
        # Minibatches have dropout, weight decay, mixed and smoothed labels; evaluations have not.
        facts={"loss_kind": "falling", "loss_form": "mean"}
        | ({"losses_comparable": "no", "loss_window": 1} if minibatch else {}),
    )


READER = table_reader(
    "algoperf",
    _claim,
    marks=("accumulated_submission_time",),
    sample="""accumulated_submission_time,global_step,grad_norm,loss,score,train/loss,validation/loss
,0,2.5,6.75,,,
30.5,1,,,30.5,6.75,6.75
,100,2.25,6.5,,,
,200,2.25,6.25,,,
""",
)
