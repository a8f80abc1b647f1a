"""JAX's clu (Flax examples, T5X, Vision Transformer): names and values behind the step."""

from optdoctor.reading.text_format import Line, TextFormat

_AT = r"(?:logging_writer\.py:\d+\] |^)\[<step>\]"
_FIRST = r" (?=[\w/.-]++=(?:-?[\d.]|nan|inf|-inf))"
_TEST = r" collection=(?!train)[\w/.-]++"

READER = TextFormat(
    name="clu",
    lines=(
        Line(_AT + r"(?: collection=train[\w/.-]*+)?+" + _FIRST, pairs=":", mark="]"),
        Line(
            _AT + _TEST + _FIRST,
            pairs=":",
            prefix="eval ",
            names={"loss": "eval_loss"},
            mark="] collection=",
        ),
    ),
    sample="""I0102 03:04:05.678901 140000000000000 logging_writer.py:48] [100] accuracy=0.125, \
learning_rate=0.00025, loss=6.5
I0102 03:05:05.678901 140000000000000 logging_writer.py:48] [200] accuracy=0.25, \
learning_rate=0.0005, loss=5.25
I0102 03:06:05.678901 140000000000000 logging_writer.py:48] [200] collection=eval accuracy=0.25, \
loss=5.5
I0102 03:07:05.678901 140000000000000 logging_writer.py:48] [300] accuracy=0.0, \
learning_rate=0.00075, loss=nan
""",
).reader
