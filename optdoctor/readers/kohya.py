"""kohya's sd-scripts and musubi-tuner: a bar with the mean loss of an epoch's newest updates."""

from optdoctor.reading.text_format import Line, TextFormat

READER = TextFormat(
    name="kohya",
    lines=(
        Line(
            r"\bsteps: \d+%\|[^|]{0,200}\| <step>/<total> \[[^]]{0,200}?\b(?:avr_loss|loss)=<loss>",
            mark="steps:",
        ),
        Line(
            r"\bsteps: \d+%\|[^|]{0,200}\| <step>/<total> \[(?![^]]{0,200}loss=)",
            mark="steps:",
            claims=False,
        ),
    ),
    facts={"loss_kind": "diffusion", "loss_form": "running mean"},
    from_zero=False,
    sample="""steps:   0%|          | 0/900 [00:00<?, ?it/s]
steps:   1%|1         | 10/900 [00:10<15:00,  1.01s/it, avr_loss=0.125]
steps:   2%|2         | 20/900 [00:20<14:50,  1.01s/it, avr_loss=0.12]
""",
).reader
