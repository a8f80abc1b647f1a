"""CatBoost: a line a round of boosting with the measure on the data it learns from and on others.

The measure is the loss unless another one was chosen, which no line says.
"""

from optdoctor.reading.text_format import Line, TextFormat

READER = TextFormat(
    name="catboost",
    lines=(
        Line(
            r"^<step>:\t\s*learn: <loss>(?:\t\s*test1?: <eval_loss>)?\t.*\bremaining:",
            mark="learn: ",
        ),
    ),
    facts={"loss_kind": "unknown", "loss_form": "mean", "loss_window": 1},
    from_zero=True,
    sample="""0:\tlearn: 0.6875000\ttest: 0.6912500\tbest: 0.6912500 (0)\ttotal: 1ms\tremaining: 9s
1:\tlearn: 0.6562500\ttest: 0.6687500\tbest: 0.6687500 (1)\ttotal: 2ms\tremaining: 8s
2:\tlearn: 0.6250000\ttest: 0.6500000\tbest: 0.6500000 (2)\ttotal: 3ms\tremaining: 7s
""",
).reader
