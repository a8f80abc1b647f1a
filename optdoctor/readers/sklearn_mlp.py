"""scikit-learn's MLPClassifier and MLPRegressor with `verbose=True`: a row an epoch."""

from optdoctor.reading.text_format import Line, TextFormat

READER = TextFormat(
    name="scikit-learn",
    lines=(
        Line(r"^ Iteration <step>, loss = <loss> $", mark="Iteration "),
        Line(r"^ Validation score: <validation_score> $", mark="Validation score", claims=False),
    ),
    facts={"loss_kind": "falling", "loss_form": "mean"},
    sample="""Iteration 1, loss = 2.31250000
Validation score: 0.125000
Iteration 2, loss = 1.87500000
Validation score: 0.250000
Iteration 3, loss = nan
""",
).reader
