"""llm.c: its main.log (`trl` and `tel`: losses on training and test data) and its console."""

from optdoctor.reading.text_format import Line, TextFormat

READER = TextFormat(
    name="llm-c",
    lines=(
        Line(r"^s:<step> trl:<loss>(?: lr:<lr>)?(?: norm:<grad_norm>)?", mark="trl:"),
        Line(r"^s:<step> tel:<eval_loss>", mark="tel:"),
        Line(r"^s:<step> eval:<hellaswag>", mark="eval:", claims=False),
        # The z-scores in brackets are "+nanz" at first.
        Line(
            r"\bstep <step>/ <total> \| loss <loss> \([^)]*z\) \| norm <grad_norm> \([^)]*z\)"
            r" \| lr <lr>",
            mark="| loss",
        ),
        Line(
            r"\bstep <step>/ <total> \| train loss <loss> \|(?: norm <grad_norm> \| lr <lr> \|)?",
            mark="train loss",
        ),
        Line(r"\bstep <step>: train loss <loss> \(took", mark="train loss"),
        Line(r"^val loss <eval_loss>$", mark="val loss", claims=False),
    ),
    facts={"loss_kind": "falling", "loss_base": "nats"},
    sample="""s:0 tel:10.9844
s:0 trl:10.9805 lr:0.000002 norm:14.25
s:1 trl:10.8750 lr:0.000004 norm:12.50
s:2 trl:nan lr:0.000006 norm:nan
""",
).reader
