"""fastText: one line that is written over and over, with a mean since the beginning of the run."""

from optdoctor.reading.text_format import Line, TextFormat

READER = TextFormat(
    name="fasttext",
    lines=(
        Line(
            r"Progress: [\d.]+% words/sec/thread: \d+ lr: <lr> (?:avg\. ?)?loss: <loss>",
            mark="words/sec/thread:",
        ),
    ),
    facts={"loss_kind": "falling", "loss_form": "running mean", "loss_base": "nats"},
    sample="""Read 0M words
Number of words:  8125
Progress:  25.0% words/sec/thread:   51250 lr:  0.075000 avg.loss:  4.125000 ETA:   0h 0m 9s
Progress:  50.0% words/sec/thread:   51500 lr:  0.050000 avg.loss:  3.250000 ETA:   0h 0m 6s
Progress: 100.0% words/sec/thread:   51375 lr:  0.000000 avg.loss:  2.875000 ETA:   0h 0m 0s
""",
).reader
