"""Transformer-XL: a line a window of updates, whose mean it holds, and one an evaluation."""

from optdoctor.reading.text_format import Line, TextFormat

READER = TextFormat(
    name="transformer-xl",
    lines=(
        Line(
            r"\| epoch <epoch> step <step> \| (?:batches )?\d+(?: / \d+)?(?: batches)? \|",
            pairs=" ",
            mark="| epoch",
        ),
        Line(
            r"\| Eval \d+ at step <step> \| time: [^|]*\| valid loss <eval_loss> \|",
            mark="| Eval",
        ),
        Line(r"^ - max_step : <total>", mark="max_step", claims=False),
    ),
    aliases={"ppl": "", "bpc": "", "ms/batch": "", "tok/s": ""},
    facts={"loss_kind": "falling", "loss_form": "mean", "loss_base": "nats"},
    is_window_mean=True,
    sample="""    - max_step : 4000
| epoch   1 step      100 |    100 batches | lr 6.25e-05 | ms/batch 31.50 | loss  9.50 | ppl 13359.7
| epoch   1 step      200 |    200 batches | lr 0.000125 | ms/batch 31.25 | loss  8.25 | ppl  3827.6
----------------------------------------------------------------------------------------------------
| Eval   1 at step      200 | time: 71.25s | valid loss  7.75 | valid ppl  2321.572
----------------------------------------------------------------------------------------------------
| epoch   1 step      300 |    300 batches | lr 0.000188 | ms/batch 31.50 | loss   nan | ppl  nan
""",
).reader
