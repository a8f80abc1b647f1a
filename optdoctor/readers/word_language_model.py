"""PyTorch's word_language_model example and its kin (AWD-LSTM, the transformer tutorial).

A row is the mean since the row before; the line of an epoch's end holds the validation loss.
"""

from optdoctor.reading.text_format import Line, TextFormat

READER = TextFormat(
    name="word-language-model",
    lines=(
        Line(r"\| epoch <epoch> \| <iter>/ <per_epoch> batches \|", pairs=" ", mark="batches |"),
        Line(
            r"\| end of epoch <epoch> \| time: [^|]*\| valid loss <eval_loss> \|",
            mark="end of epoch",
        ),
    ),
    aliases={"ppl": "", "bpc": "", "ms/batch": "", "s/batch": ""},
    facts={"loss_kind": "falling", "loss_form": "mean", "loss_base": "nats"},
    is_window_mean=True,
    sample="""\
| epoch   1 |    50/  120 batches | lr 20.00 | ms/batch 11.50 | loss  8.25 | ppl  3827.63
| epoch   1 |   100/  120 batches | lr 20.00 | ms/batch 11.25 | loss  7.50 | ppl  1808.04
-----------------------------------------------------------------------------------------
| end of epoch   1 | time: 35.50s | valid loss  7.25 | valid ppl  1408.10
-----------------------------------------------------------------------------------------
| epoch   2 |    50/  120 batches | lr 5.00 | ms/batch 11.50 | loss   nan | ppl      nan
""",
).reader
