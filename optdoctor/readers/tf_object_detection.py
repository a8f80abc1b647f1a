"""TensorFlow 2 Object Detection: a line each 100 updates; newer releases a dict of lines after it.

Two loggers write each line, so most of them stand twice.
"""

from optdoctor.reading.text_format import Line, TextFormat

READER = TextFormat(
    name="tf-object-detection",
    lines=(
        Line(
            # All decimals must be there: a second, cut line would spoil the first.
            r"\bStep <step> per-step time [\d.]+s(?: loss=(?=-?(?:\d+\.\d{3}|nan|inf))<loss>)?",
            mark=" per-step time ",
        ),
        Line(r"(?=['\"](?:Loss/|learning_rate\b))", pairs=":", mark="'", claims=False),
    ),
    aliases={"loss": "loss", "Loss/total_loss": "loss"},
    facts={"loss_kind": "falling", "loss_form": "mean", "loss_window": 1},
    sample="""INFO:tensorflow:Step 100 per-step time 0.750s loss=1.875
I0102 03:04:05.678901 140000000000000 model_lib_v2.py:652] Step 100 per-step time 0.750s loss=1.875
INFO:tensorflow:Step 200 per-step time 0.625s loss=1.250
I0102 03:05:05.678901 140000000000000 model_lib_v2.py:652] Step 200 per-step time 0.625s loss=1.250
""",
).reader
