"""TensorFlow 1: the trainers of slim and of Estimator. Two loggers may write each line twice."""

from optdoctor.reading.text_format import Line, TextFormat

_BY_HOOK = r"(?:tensorflow:|basic_session_run_hooks\.py:\d+\] )"

READER = TextFormat(
    name="tf-slim",
    lines=(
        Line(r"\bglobal step <step>: loss = <loss> \(", mark="global step "),
        Line(
            # Estimator names the step behind the loss, as one of the tensors.
            _BY_HOOK + r"(?=[\w/:.-]+ = [-+\d.naif]+, (?:[\w/:.-]+ = [-+\w.]+, )*step = \d)",
            pairs=":",
            mark="step = ",
        ),
        Line(
            r"Saving dict for global step <step>:",
            pairs=":",
            prefix="eval ",
            names={"loss": "eval_loss", "global_step": ""},
            mark="Saving dict for global step",
            claims=False,
        ),
        Line(r"Model diverged with loss = <loss>", mark="Model diverged", claims=False),
    ),
    facts={"loss_kind": "falling"},
    sample="""INFO:tensorflow:global step 1: loss = 9.5000 (4.125 sec/step)
INFO:tensorflow:global step 1: loss = 9.5000 (4.125 sec/step)
INFO:tensorflow:global_step/sec: 2.5
INFO:tensorflow:loss = 8.25, step = 2 (0.250 sec)
I0102 03:04:05.678901 140000000000000 basic_session_run_hooks.py:260] loss = nan, step = 3 \
(0.250 sec)
INFO:tensorflow:Saving dict for global step 3: accuracy = 0.125, global_step = 3, loss = 8.5
""",
).reader
