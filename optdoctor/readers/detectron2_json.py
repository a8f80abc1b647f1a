"""detectron2's metrics.json: one JSON object a line, medians of the newest 20 iterations from 0."""

from optdoctor.reading.text_format import Line, TextFormat

READER = TextFormat(
    name="detectron2-json",
    lines=(
        Line(
            r'^ \{(?=.*"iteration": <step>[,}])(?=.*"total_loss":)',
            pairs=":",
            mark='"total_loss"',
            offset=1,
        ),
        Line(
            r'^ \{(?!.*"total_loss":)(?=.*"iteration": <step>[,}])',
            pairs=":",
            mark='"iteration"',
            claims=False,
            offset=1,
        ),
    ),
    aliases={"eta_seconds": "", "rank_data_time": ""},
    facts={"loss_kind": "falling", "loss_form": "window median"},
    from_zero=False,
    sample="""{"data_time": 0.0078125, "eta_seconds": 5065.5, "iteration": 19, \
"loss_box_reg": 0.5, "loss_cls": 1.25, "lr": 0.000125, "time": 0.25, "total_loss": 1.75}
{"data_time": 0.0078125, "eta_seconds": 5060.5, "iteration": 39, \
"loss_box_reg": 0.5, "loss_cls": 1.125, "lr": 0.00025, "time": 0.25, "total_loss": 1.625}
{"bbox/AP": 12.5, "bbox/AP50": 25.0, "iteration": 39}
""",
).reader
