"""MosaicML Composer, llm-foundry and LLM-Shearing: a block of lines a record, a key a line.

The console's block has its step in the first line; the file logger's lines name it each.
"""

from optdoctor.reading.text_format import Line, TextFormat

_TASKS = ("LanguageCrossEntropy", "CrossEntropy")
_OPTIMIZERS = ("DecoupledAdamW", "AdamW", "Adam", "DecoupledSGDW", "SGD", "DecoupledLionW")
_CLOCKS = (
    *("batch", "batch_in_epoch", "sample", "sample_in_epoch", "token", "token_in_epoch"),
    *("train", "val", "total", "remaining_estimate"),
)

READER = TextFormat(
    name="composer",
    lines=(
        Line(r"^\[batch=<step>/<total>\]:?$", mark="[batch=", claims=False),
        Line(r"^\[epoch=<epoch>(?:/\d+)?\]\[batch=<iter>(?:/<per_epoch>)?\]:?$", mark="[epoch="),
        Line(r"^\s*Train (?=[\w.-]+/\S+: )", pairs=":", mark="Train "),
        Line(r"^\s*Eval (?=[\w.-]+/\S+: )", pairs=":", mark="Eval "),
        Line(r"^\[Eval batch=", mark="[Eval batch=", claims=False),
        Line(r"^\[metric\]\[batch=<step>\]:", pairs=":", mark="[metric]"),
    ),
    aliases={
        "loss/train/total": "loss",
        **{f"metrics/train/{task}": "loss" for task in _TASKS},
        **{f"metrics/eval/{task}": "eval_loss" for task in _TASKS},
        **{f"lr-{optimizer}/group0": "lr" for optimizer in _OPTIMIZERS},
        "l2_norm/grad/global": "grad_norm",
        "time/epoch": "epoch",
        **{f"time/{clock}": "" for clock in _CLOCKS},
        "trainer/device_train_microbatch_size": "",
    },
    facts={"loss_kind": "falling", "loss_base": "nats"},
    sample="""[batch=1/900]:
\t Train time/epoch: 0
\t Train loss/train/total: 11.7500
\t Train metrics/train/LanguageCrossEntropy: 11.7500
\t Train l2_norm/grad/global: 3.1250
[batch=2/900]:
\t Train time/epoch: 0
\t Train loss/train/total: 11.2500
\t Train metrics/train/LanguageCrossEntropy: 11.2500
\t Train l2_norm/grad/global: nan
[Eval batch=1/2] Eval on eval data
[Eval batch=2/2] Eval on eval data:
\t Eval metrics/eval/LanguageCrossEntropy: 11.1250
""",
).reader
