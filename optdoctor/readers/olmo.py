"""OLMo and OLMo-core: a block a record, the step in its first line, `name=value` in the others."""

from optdoctor.reading.text_format import Line, TextFormat

_VALIDATION = ("c4_en-validation", "pile-validation", "c4_en", "pile", "v3-small-ppl-validation")

READER = TextFormat(
    name="olmo",
    lines=(
        Line(
            r"\[step=<step>/(?:<total>|\?+)(?:,epoch=<epoch>)?(?:,[^\[\]]*)?\] $",
            mark="[step=",
        ),
        # Names of this form are found in bars and prints of many others.
        Line(r"\b(?=train/[^=]{1,60}=)", pairs=":", mark="train/", claims=False),
        Line(r"\b(?=optim/[^=]{1,60}=)", pairs=":", mark="optim/", claims=False),
        Line(r"\b(?=eval/[^=]{1,80}=)", pairs=":", mark="eval/", claims=False),
    ),
    aliases={
        "train/CrossEntropyLoss": "loss",
        "train/CE loss": "loss",
        **{f"eval/{data}/CrossEntropyLoss": "eval_loss" for data in _VALIDATION},
        **{f"eval/lm/{data}/CE loss": "eval_loss" for data in _VALIDATION},
        "optim/total_grad_norm": "grad_norm",
        "optim/total grad norm": "grad_norm",
        "optim/LR (group 0)": "lr",
        "optim/LR": "lr",
        "optim/learning_rate_group0": "lr",
        "optim/step skipped": "step_skipped",
    },
    facts={"loss_kind": "falling", "loss_base": "nats"},
    sample="""2026-01-02 03:04:05.678	host:0	olmo.train:967	INFO	[step=1/900,epoch=0]
    optim/total_grad_norm=9.125
    train/CrossEntropyLoss=11.25
    train/Perplexity=76,879
    throughput/total_tokens=4,194,304
2026-01-02 03:04:15.678	host:0	olmo.train:967	INFO	[step=2/900,epoch=0]
    optim/total_grad_norm=8.500
    train/CrossEntropyLoss=10.75
    train/Perplexity=46,630
    throughput/total_tokens=8,388,608
""",
).reader
