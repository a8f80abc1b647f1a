"""nanoGPT and its forks: a line an update, and one an evaluation with the losses on both splits.

build-nanogpt, the lesson on it, prints its own form and keeps a log.txt of pairs. Some forks print
bits; where only one of the two lines is in bits, the evaluation is brought to the unit of training.
"""

import math
import re
from dataclasses import replace

from optdoctor.reading.log import Log
from optdoctor.reading.reader import Source
from optdoctor.reading.text_format import Line, TextFormat

_BITS = r"(?: (?:BPC|bpc|BPB|bpb|bits)\b)?"
_IN_BITS = {
    "train": re.compile(r"\biter \d+: loss \S+ (?:BPC|BPB|bits)\b", re.I),
    "eval": re.compile(r"\bstep \d+: train loss \S+ (?:BPC|BPB|bits)\b", re.I),
}

_FORMAT = TextFormat(
    name="nanogpt",
    lines=(
        Line(rf"\biter <step>: loss <loss>{_BITS}, time\b", pairs=" ", mark="iter "),
        Line(
            rf"\bstep <step>: train loss <train_split_loss>{_BITS}, val loss <eval_loss>",
            mark="step ",
        ),
        Line(r"\bstep <step> \| loss: <loss> \| lr <lr> \| norm: <grad_norm> \| dt:", mark="step "),
        Line(r"^validation loss: <eval_loss>$", mark="validation loss", claims=False),
        Line(r"^<step> train <loss>$", mark=" train "),
        Line(r"^<step> val <eval_loss>$", mark=" val "),
    ),
    aliases={"time": "", "mfu": ""},
    sample="""step 0: train loss 4.2874, val loss 4.2823
iter 0: loss 4.2654, time 48623.77ms, mfu -100.00%
iter 10: loss 3.2438, time 52.10ms, mfu 7.09%
iter 20: loss nan, time 51.98ms, mfu 7.10%
""",
)


def _read(source: Source, log: Log) -> None:
    log.at(0)  # where an evaluation before the first update stands
    text = source.head.text
    in_bits = {part: pattern.search(text) is not None for part, pattern in _IN_BITS.items()}
    has_train = re.search(r"\biter \d+: loss ", text) is not None
    log.facts["loss_base"] = "bits" if in_bits["train" if has_train else "eval"] else "nats"
    if in_bits["train"] == in_bits["eval"] or not has_train:
        return _FORMAT.read(source, log)
    factor = math.log(2) if in_bits["eval"] else 1 / math.log(2)
    names = ("eval_loss", "train_split_loss")
    converted = replace(_FORMAT, convert=dict.fromkeys(names, lambda loss: loss * factor))
    return converted.read(source, log)


READER = replace(_FORMAT.reader, read=_read)
