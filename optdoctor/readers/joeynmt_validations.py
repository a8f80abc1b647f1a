"""JoeyNMT's validations.txt: one evaluation a line, `*` marks the best.

Its loss is a sum over the data in most versions; the perplexity is per token in all.
"""

import math

from optdoctor.reading.text_format import Line, TextFormat

READER = TextFormat(
    name="joeynmt-validations",
    lines=(Line(r"^ Steps: <step>\s(?=.*\b(?:PPL|ppl):)", pairs=":", mark="Steps:"),),
    aliases={"PPL": "eval_loss", "ppl": "eval_loss", "LR": "lr", "Loss": "", "loss": ""},
    convert={"PPL": math.log, "ppl": math.log},
    facts={"loss_kind": "falling", "loss_base": "nats"},
    from_zero=False,
    sample="""Steps: 500	Loss: 90000.00000	PPL: 64.00000	bleu: 0.50000	LR: 0.00030000	*
Steps: 1000	Loss: 80000.00000	PPL: 32.00000	bleu: 2.25000	LR: 0.00030000	*
Steps: 1500	Loss: 81000.00000	PPL: 34.00000	bleu: 2.12500	LR: 0.00030000
""",
).reader
