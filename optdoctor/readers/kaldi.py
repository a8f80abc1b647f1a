"""Kaldi's nnet3, its Python bindings and snowfall: the mean objective of a batch or a few.

Kaldi prints a log probability, which rises in a good run: the loss is minus it. Snowfall prints
the same under the same name with the sign already turned.
"""

from operator import neg

from optdoctor.reading.text_format import Line, TextFormat

_OVER = r" over [\d.]+ frames"
_OF_PHASE = (
    r"(?:for|using \d+) minibatches (?:in minibatch range )?\d+-<step>"
    r" is (?:[\w.+-]{1,20} \+ [\w.+-]{1,20} = )?"  # of two parts and their sum
)
_GLOBAL = r",? global average objf: "
_BATCH = r", current batch average objf: "
_KEPT = r"(?: \([\d.]+% kept\))?"

READER = TextFormat(
    name="kaldi",
    lines=(
        Line(
            rf"Average objective function for 'output'? {_OF_PHASE}<objf>{_OVER}",
            mark="Average objective function for 'output",
            offset=1,
        ),
        Line(
            rf"Average objective function for 'output-xent'? {_OF_PHASE}<output_xent>{_OVER}",
            mark="'output-xent",
            offset=1,
        ),
        Line(
            r"[Pp]rocess(?:ing)? (?:batch \d+, current pseudo-epoch is )?<iter>/<per_epoch>"
            rf"\([\d.]+%\){_GLOBAL}<global_objf>{_OVER}{_BATCH}<objf>{_OVER}, epoch <epoch>",
            mark="global average objf",
            offset=1,
        ),
        Line(
            r"\bbatch <iter>, (?:current )?epoch (?:is )?<epoch>/\d+"
            rf"{_GLOBAL}<global_average>{_OVER}{_KEPT}{_BATCH}<loss>{_OVER}",
            mark="global average objf",
            offset=1,
        ),
        Line(rf"Validation average objf: <eval_loss>{_OVER}", mark="Validation", claims=False),
        Line(r"\bepoch <epoch>, learning rate <lr>", mark=", learning rate", claims=False),
    ),
    aliases={"objf": "loss"},
    facts={"loss_kind": "falling", "loss_form": "mean", "loss_base": "nats"},
    convert={"objf": neg, "global_objf": neg, "output_xent": neg},
    first_epoch=0,
    from_zero=False,
    sample="""LOG (nnet3-chain-train[5.5]:PrintStatsForThisPhase():nnet-training.cc:323) Average \
objective function for 'output' for minibatches 0-9 is -1.25 over 6400 frames.
LOG (nnet3-chain-train[5.5]:PrintStatsForThisPhase():nnet-training.cc:323) Average \
objective function for 'output-xent' for minibatches 0-9 is -4.5 over 6400 frames.
LOG (nnet3-chain-train[5.5]:PrintStatsForThisPhase():nnet-training.cc:323) Average \
objective function for 'output' for minibatches 10-19 is -0.75 + -0.125 = -0.875 over 6400 frames.
LOG (nnet3-chain-train[5.5]:PrintStatsForThisPhase():nnet-training.cc:323) Average \
objective function for 'output' for minibatches 20-29 is -nan over 6400 frames.
""",
).reader
