"""MaxText: a line an update, numbered from 0, with names that hold slashes."""

from optdoctor.reading.text_format import Line, TextFormat

READER = TextFormat(
    name="maxtext",
    lines=(
        Line(r"\bcompleted step: <step>, seconds:", pairs=":", mark="completed step:"),
        Line(
            r"\beval metrics after step: <step>, (?:eval_)?loss[=:] <eval_loss>",
            mark="eval metrics after step:",
        ),
    ),
    aliases={
        "loss": "loss",
        "total_weights": "",
        "TFLOP/s/device": "",
        "Tokens/s/device": "",
    },
    facts={"loss_kind": "falling", "loss_base": "nats"},
    from_zero=True,
    sample="""I0102 03:04:05.678901 140 max_logging.py:40] completed step: 0, seconds: 20.250, \
TFLOP/s/device: 2.125, Tokens/s/device: 101.500, total_weights: 32768, loss: 10.875
I0102 03:04:25.678901 140 max_logging.py:40] completed step: 1, seconds: 5.625, \
TFLOP/s/device: 7.125, Tokens/s/device: 401.500, total_weights: 32768, loss: 10.750
eval metrics after step: 1, loss=10.625, total_weights=65536.0
completed step: 2, seconds: 5.625, TFLOP/s/device: 7.125, Tokens/s/device: 401.500, \
total_weights: 32768, loss: nan, lm_loss: nan, perplexity: nan
""",
).reader
