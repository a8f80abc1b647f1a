"""AllenNLP's console: after each epoch a table of means, training and validation side by side."""

from optdoctor.reading.text_format import Line, TextFormat

READER = TextFormat(
    name="allennlp",
    lines=(
        Line(
            r"\ballennlp\.training\.\S+ - loss +\| +<loss>(?: +\| +<eval_loss>)?",
            mark="- loss ",
        ),
        Line(
            r"\ballennlp\.training\.\S+ - accuracy +\| +<training_accuracy>"
            r"(?: +\| +<validation_accuracy>)?",
            mark="- accuracy ",
            claims=False,
        ),
    ),
    facts={"loss_kind": "falling", "loss_form": "mean", "step_source": "epochs"},
    sample="""2026-01-02 03:04:05,678 - INFO - allennlp.training.tensorboard_writer -           \
Training |  Validation
2026-01-02 03:04:05,678 - INFO - allennlp.training.tensorboard_writer - loss     |     0.750  | \
    0.812
2026-01-02 03:04:05,678 - INFO - allennlp.training.tensorboard_writer - accuracy |     0.500  | \
    0.625
2026-01-02 03:05:05,678 - INFO - allennlp.training.tensorboard_writer - loss     |     0.625  | \
      N/A
2026-01-02 03:05:05,678 - INFO - allennlp.training.tensorboard_writer - accuracy |     0.625  | \
      N/A
""",
).reader
