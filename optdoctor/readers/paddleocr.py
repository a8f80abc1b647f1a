"""PaddleOCR: medians of the newest 20 updates; NaN stands there as `nanxxx`."""

from optdoctor.reading.text_format import Line, TextFormat

READER = TextFormat(
    name="paddleocr",
    lines=(
        Line(
            r"\bepoch: \[ <epoch>/\d+\], (?:global_step|iter): <step>, ",
            pairs=":",
            mark="epoch: [",
        ),
        Line(
            r"\bcur metric, ",
            pairs=":",
            names={"acc": "eval_acc", "norm_edit_dis": "eval_norm_edit_dis"},
            mark="cur metric",
            claims=False,
        ),
    ),
    aliases=dict.fromkeys(
        ("avg_reader_cost", "avg_batch_cost", "avg_samples", "ips", "reader_cost", "batch_cost"), ""
    )
    | dict.fromkeys(("samples", "fps", "max_mem_reserved", "max_mem_allocated"), ""),
    facts={"loss_kind": "falling", "loss_form": "window median"},
    sample="""[2026/01/02 03:04:05] ppocr INFO: epoch: [1/90], global_step: 10, lr: 0.000100, \
acc: 0.000000, CTCLoss: 42.500000, loss: 42.500000, avg_reader_cost: 0.12500 s, \
avg_batch_cost: 0.25000 s, avg_samples: 64.0, ips: 256.00000 samples/s, eta: 2 days, 1:30:15
[2026/01/02 03:04:08] ppocr INFO: epoch: [1/90], global_step: 20, lr: 0.000100, \
acc: 0.000000, CTCLoss: nanxxx, loss: nanxxx, avg_reader_cost: 0.12500 s, \
avg_batch_cost: 0.25000 s, avg_samples: 64.0, ips: 256.00000 samples/s, eta: 2 days, 1:30:15
[2026/01/02 03:04:10] ppocr INFO: cur metric, acc: 0.125, norm_edit_dis: 0.25, fps: 512.5
""",
).reader
