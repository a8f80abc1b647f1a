"""RWKV-LM's train_log.txt: columns without a header, a row an epoch, all runs one after another.

The columns: epoch, running mean of the loss, its exponential, rate, date, time, epoch of this run.
"""

from dataclasses import replace

from optdoctor.reading.text_format import Line, TextFormat

_FORMAT = TextFormat(
    name="rwkv",
    lines=(
        Line(
            r"^<epoch>\s+<loss>\s+<perplexity>\s+<lr> (?<=\x20)20\d\d-\d\d-\d\d"
            r" \d\d:\d\d:\d\d\.\d++ \d++$",
        ),
    ),
    facts={"loss_kind": "falling", "loss_base": "nats", "loss_form": "mean"},
    new_run="NEW RUN",
    first_epoch=0,
    sample="""NEW RUN 2026-01-02-03-04-05
{'load_model': '', 'proj_dir': 'out', 'lr_init': 1e-05}
0 1.250000 3.4903 0.00001000 2026-01-02 03:10:05.678901 0
1 0.750000 2.1170 0.00000950 2026-01-02 03:16:05.678901 1
2 nan nan 0.00000900 2026-01-02 03:22:05.678901 2
""",
)

# Every row has a date. It is no mark of its line: that of a new run has one too.
READER = replace(_FORMAT.reader, marks=(" 20",))
