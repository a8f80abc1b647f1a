"""AllenNLP's metrics_epoch_N.json, joined: one JSON object an epoch, its means; epochs from 0."""

from optdoctor.reading.text_format import Line, TextFormat

_BEST = r'(?=.*"training_loss":)(?=.*"(?:training_duration|best_epoch)":)'


def _fix(values: dict[str, float]) -> dict[str, float]:
    return {name: v for name, v in values.items() if not name.startswith(("best_", "peak_"))}


READER = TextFormat(
    name="allennlp-json",
    lines=(Line(rf'^ \{{{_BEST}(?=.*"epoch": <step>[,}}])', pairs=":", mark='"training_loss"'),),
    aliases=dict.fromkeys(
        ("epoch", "training_start_epoch", "training_epochs", "training_cpu_memory_MB"), ""
    ),
    fix=_fix,
    facts={"loss_kind": "falling", "loss_form": "mean", "step_source": "epochs"},
    from_zero=True,
    sample="""{"best_epoch": 0, "training_duration": "0:01:30.125", "training_epochs": 0, \
"epoch": 0, "training_accuracy": 0.5, "training_loss": 0.75, "validation_accuracy": 0.625, \
"validation_loss": 0.8125}
{"best_epoch": 0, "training_duration": "0:03:00.25", "training_epochs": 1, \
"epoch": 1, "training_accuracy": 0.625, "training_loss": 0.625, "validation_accuracy": 0.625, \
"validation_loss": NaN}
""",
).reader
