"""maskrcnn-benchmark and what descends from it: a window median (mean of the run)."""

from optdoctor.reading.text_format import Line, TextFormat

READER = TextFormat(
    name="maskrcnn-benchmark",
    lines=(
        Line(
            r"\biter: <step>\s+loss: <loss> \((?=.{0,4000}\bmax mem:)", pairs=":", mark="max mem:"
        ),
    ),
    aliases={"max mem": ""},
    facts={"loss_kind": "falling", "loss_form": "window median"},
    from_zero=False,
    sample="""2026-01-02 03:04:05,678 maskrcnn_benchmark.trainer INFO: eta: 1 day, 5:41:49  \
iter: 20  loss: 1.7500 (2.1250)  loss_classifier: 1.2500 (1.5000)  loss_box_reg: 0.5000 (0.6250)  \
time: 0.2293 (0.3125)  data: 0.0033 (0.0625)  lr: 0.000125  max mem: 3782
2026-01-02 03:04:10,678 maskrcnn_benchmark.trainer INFO: eta: 5:41:49  \
iter: 40  loss: 1.6250 (nan)  loss_classifier: 1.1250 (nan)  loss_box_reg: 0.5000 (0.6250)  \
time: 0.2293 (0.3125)  data: 0.0033 (0.0625)  lr: 0.000250  max mem: 3782
""",
).reader
