"""mmengine's vis_data/*.json: one JSON object a logged iteration.

The step of an evaluation is an epoch where the run is counted in epochs, so that it stands at the
newest row.
"""

from optdoctor.reading.text_format import Line, TextFormat

READER = TextFormat(
    name="mmengine-json",
    lines=(
        Line(
            r'^ \{(?=.*"iter": \d+,(?: "memory": \d+,)? "step": <step>\} $)',
            pairs=":",
            mark='"iter": ',
        ),
        Line(
            # Its second half ends the pairs in front of the step.
            r'^ \{(?!.*"iter":)(?=.*"step": \d+\} $)|, "step": \d+\} $',
            pairs=":",
            names={"loss": "eval_loss"},
            mark='"step": ',
            claims=False,
        ),
    ),
    aliases={"train/lr": "lr"} | dict.fromkeys(("train/time", "train/data_time"), ""),
    facts={"loss_kind": "falling", "loss_form": "mean"},
    from_zero=False,
    sample="""{"lr": 0.001, "data_time": 0.0625, "loss": 1.25, "loss_cls": 0.8125, "time": 0.5, \
"epoch": 1, "iter": 50, "memory": 2389, "step": 50}
{"lr": 0.002, "data_time": 0.0625, "loss": NaN, "loss_cls": 0.75, "time": 0.5, \
"epoch": 1, "iter": 100, "memory": 2389, "step": 100}
{"coco/bbox_mAP": 0.025, "data_time": 0.0625, "time": 0.5, "step": 1}
{"lr": 0.002, "data_time": 0.0625, "loss": 1.0, "loss_cls": 0.625, "time": 0.5, \
"epoch": 2, "iter": 150, "memory": 2389, "step": 150}
""",
).reader
