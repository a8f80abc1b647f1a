"""JoeyNMT's train.log: the loss of one update, and evaluations whose loss is a sum.

The loss of an evaluation is taken from its perplexity, which is per token in all versions.
"""

import math

from optdoctor.reading.text_format import Line, TextFormat

_EVALUATION = {"ppl": "eval_loss", "loss": ""}

READER = TextFormat(
    name="joeynmt",
    lines=(
        Line(r"\bEpoch +<epoch>,? +Step: +<step>,?(?= Batch)", pairs=":", mark="Batch Loss:"),
        Line(
            r"\bValidation result.{0,40}? at epoch <epoch>, +step <step>:",
            pairs=":",
            names=_EVALUATION,
            mark="alidation result",
            claims=False,
        ),
        Line(
            r"\bEvaluation result \(\w+\)[:,]",
            pairs=":",
            names={**_EVALUATION, "acc": "valid_acc"},
            mark="valuation result (",
            claims=False,
        ),
        Line(r"\bBest validation result", mark="alidation result", claims=False),
        Line(r"\bNew best validation result", mark="alidation result", claims=False),
    ),
    aliases={"Batch Loss": "loss", "Lr": "lr", "Tokens per Sec": "", "duration": ""},
    facts={"loss_kind": "falling", "loss_form": "mean", "loss_base": "nats", "loss_window": 1},
    convert={"ppl": math.log},
    from_zero=False,
    sample="""2026-01-02 03:04:05,678 Epoch   1 Step:      100 Batch Loss:     5.250000 \
Tokens per Sec:     9000, Lr: 0.000300
2026-01-02 03:04:15,678 Epoch   1 Step:      200 Batch Loss:     4.500000 \
Tokens per Sec:     9000, Lr: 0.000300
2026-01-02 03:04:25,678 Validation result (greedy) at epoch   1, step      200: bleu:   1.25, \
loss: 90000.0000, ppl:  64.0000, duration: 12.5000s
""",
).reader
