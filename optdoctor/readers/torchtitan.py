"""torchtitan and flame: one line a logged step and rank, `key: value` parted by two blanks.

A lookbehind keeps the line of a validation from counting as training.
"""

from optdoctor.reading.text_format import Line, TextFormat

READER = TextFormat(
    name="torchtitan",
    lines=(
        Line(
            r"(?<!validate\x20)\bstep: <step> loss: <loss>(?: \(\w+\))?\s+"
            r"(?=grad_norm:|memory:|iter:)",
            pairs=":",
            mark="loss:",
        ),
        Line(r"\bvalidate step: <step> loss: <eval_loss> (?=memory:)", mark="validate step:"),
    ),
    aliases={
        "gnorm": "grad_norm",
        **dict.fromkeys(("tps", "wps", "tflops", "mfu", "memory", "iter", "data"), ""),
    },
    facts={"loss_kind": "falling", "loss_base": "nats"},
    sample="""[rank0]:[titan] 2026-01-02 03:04:05,678 - root - INFO - step:  1  loss: 12.2500  \
grad_norm:  4.1250  memory: 22.51GiB(28.46%)  tps: 10,050  tflops: 31.20  mfu: 3.15%
[rank0]:[titan] 2026-01-02 03:04:06,678 - root - INFO - step:  2  loss: 11.5000  \
grad_norm:  3.5000  memory: 22.51GiB(28.46%)  tps: 10,051  tflops: 31.20  mfu: 3.15%
[rank0]:[titan] 2026-01-02 03:04:07,678 - root - INFO - step:  3  loss:     nan  \
grad_norm:     nan  memory: 22.51GiB(28.46%)  tps: 10,049  tflops: 31.20  mfu: 3.15%
""",
).reader
