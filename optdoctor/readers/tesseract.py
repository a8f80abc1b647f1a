"""Tesseract's lstmtraining: error rates in per cent over the last 1000 samples.

Of its three counters (samples that taught something, samples trained on, samples drawn) the second
is the step: it moves by 100 a line. The rate of characters may exceed 100. Line ends go missing,
and an evaluation, which names the first counter of an earlier model, is glued to a line.
"""

from optdoctor.reading.text_format import Line, TextFormat

READER = TextFormat(
    name="tesseract",
    lines=(
        Line(
            r"At iteration \d+/<step>/\d+, [Mm]ean rms=<mean_rms>%(?:, delta=<delta>%)?"
            r", (?:char|BCER) train=<char_train>%(?:, (?:word|BWER) train=<word_train>%)?",
            mark="At iteration",
        ),
        Line(
            r"At iteration \d+, stage \d+, (?:Eval Char error rate|BCER eval)=<eval_loss>"
            r", (?:Word error rate|BWER eval)=<eval_word>",
            mark="At iteration",
            claims=False,
        ),
    ),
    aliases={"char_train": "loss"},
    facts={"loss_kind": "falling", "loss_form": "running mean", "loss_base": "other"},
    sample="""At iteration 100/100/100, Mean rms=6.25%, delta=52.5%, char train=112.5%, \
word train=100%, skip ratio=0%,  New worst char error = 112.5 wrote checkpoint.

At iteration 198/200/203, Mean rms=5.125%, delta=41%, char train=98.25%, word train=97.5%, \
skip ratio=0%,  New best char error = 98.25At iteration 100, stage 0, Eval Char error rate=104.5, \
Word error rate=100 wrote checkpoint.
At iteration 296/300/305, mean rms=4.5%, delta=35.125%, BCER train=91.75%, BWER train=95.5%, \
skip ratio=0.5%, New best BCER = 91.75 wrote checkpoint.
""",
).reader
