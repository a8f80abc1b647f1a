"""torchtune: `Step N | key:value ..` of its loggers, and the text on its progress bar."""

from optdoctor.reading.text_format import Line, TextFormat

_SPEED = ("tokens_per_second_per_gpu", "tokens_per_second", "iterations_per_second")
_MEMORY = ("active", "alloc", "allocated", "reserved")

READER = TextFormat(
    name="torchtune",
    lines=(
        Line(r"\bStep <step> \| (?=[\w/]+:(?:\S|tensor\())", pairs=":", mark="Step "),
        Line(r"(?<!\d)\d+\|<step>\|Loss: <loss>", mark="|Loss:"),
    ),
    aliases={
        **dict.fromkeys(_SPEED, ""),
        **{f"peak_memory_{kind}": "" for kind in _MEMORY},
        "gpu_resources": "",
    },
    sample="""Writing logs to out/logs/log_1700000000.txt
Step 1 | loss:2.125 lr:2e-05 tokens_per_second_per_gpu:57.75
Step 2 | loss:1.875 lr:2e-05 tokens_per_second_per_gpu:405.25 grad_norm:tensor(1.5)
Step 3 | loss:nan lr:2e-05 tokens_per_second_per_gpu:405.25 grad_norm:nan
""",
).reader
