"""The bar of the training scripts of diffusers: the loss of one update."""

from optdoctor.reading.text_format import Line, TextFormat

READER = TextFormat(
    name="diffusers-bar",
    lines=(
        Line(
            r"\bSteps: \d+%\|[^|]{0,200}\| <step>/<total> \[(?=[^]]{0,200}\b(?:step_)?loss=)",
            pairs=":",
            mark="Steps:",
        ),
        Line(
            r"\bSteps: \d+%\|[^|]{0,200}\| <step>/<total> \[(?![^]]{0,200}loss=)",
            mark="Steps:",
            claims=False,
        ),
    ),
    facts={"loss_kind": "diffusion", "loss_form": "mean", "loss_window": 1},
    from_zero=False,
    sample="""Steps:   0%|          | 0/900 [00:00<?, ?it/s]
Steps:   1%|1         | 10/900 [00:10<15:00,  1.01s/it, loss=0.125, lr=1e-5]
Steps:   1%|1         | 11/900 [00:11<14:59,  1.01s/it, loss=0.0625, lr=1e-5]
""",
).reader
