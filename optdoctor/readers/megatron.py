"""Megatron-LM, Megatron-DeepSpeed, GPT-NeoX and their kin: fields of one line parted by bars.

A loss is the mean over the updates since the last line. One that is not finite is not printed; nor
is it where every update of the interval was skipped, which the line counts.
"""

import math

from optdoctor.reading.text_format import Line, TextFormat

_SKIPPED, _NAN = "number of skipped iterations", "number of nan iterations"
_LOSSES = ("lm loss", "lm-loss", "lm_loss", "loss")
_UNUSED = (
    *(f"elapsed time per iteration ({unit})" for unit in ("ms", "s")),
    *("consumed samples", "consumed tokens", "skipped samples", "samples per second"),
    *("TFLOPs", "tokens per gpu per second (tgs)", "throughput per GPU (TFLOP/s/GPU)"),
    *("approx flops per GPU", "throughput (token/sec/GPU)", "energy per GPU (J/iter/GPU)"),
    *("power per GPU (W/GPU)", "tokens-per-second-per-gpu"),
)


def _fix(values: dict[str, float]) -> dict[str, float]:
    skipped = values.get(_SKIPPED)  # behind the loss: where it stands the line is whole
    has_loss = any(name in _LOSSES or name.endswith(" loss") for name in values)
    if skipped is not None and not has_loss:
        if skipped:
            values["step_skipped"] = 1.0
        if not skipped or values.get(_NAN):
            values["lm loss"] = math.nan
    if values.get("loss scale", 0.0) < 0:  # not recorded, nor is a norm of zero beside it
        del values["loss scale"]
        if values.get("grad norm") == 0:
            del values["grad norm"]
    return values


def _evaluation(data: str, channel: str) -> Line:
    perplexities = [f"{name} {word}" for name in _LOSSES for word in ("PPL", "ppl")]
    return Line(
        rf"\bvalidation (?:loss|results) at (?:iteration <step>|the end of training){data} \|",
        pairs=":",
        mark="validation ",
        names={f"{name} value": channel for name in _LOSSES}
        | dict.fromkeys((*perplexities, "lm_loss_ppl value"), ""),
        claims=False,
    )


READER = TextFormat(
    name="megatron",
    lines=(
        Line(
            r"\biteration <step>/ <total> \|(?= consumed| elapsed| skipped samples)",
            pairs=":",
            mark="elapsed time per iteration",
        ),
        _evaluation(r"(?: on validation set| for val(?:id|idation)? data)?", "eval_loss"),
        _evaluation(r"(?: on test set| for test data)", "test_loss"),
    ),
    aliases={
        **dict.fromkeys(_LOSSES, "loss"),
        "eval_loss": "eval_loss",
        "test_loss": "eval_loss",
        "learning rate": "lr",
        "grad norm": "grad_norm",
        "loss scale": "loss_scale",
        **dict.fromkeys(_UNUSED, ""),
    },
    facts={"loss_kind": "falling", "loss_base": "nats", "loss_form": "mean"},
    fix=_fix,
    is_window_mean=True,
    sample="""iteration        1/     900 | consumed samples:         8 | elapsed time per \
iteration (ms): 812.5 | learning rate: 1.000E-05 | global batch size:     8 | \
lm loss: 1.050000E+01 | loss scale: 1.0 | grad norm: 4.250 | number of skipped iterations:   0 | \
number of nan iterations:   0 |
 iteration        2/     900 | consumed samples:        16 | elapsed time per iteration \
(ms): 312.5 | learning rate: 2.000E-05 | global batch size:     8 | lm loss: 9.750000E+00 | \
loss scale: 1.0 | grad norm: 3.125 | number of skipped iterations:   0 | \
number of nan iterations:   0 |
 iteration        3/     900 | consumed samples:        24 | elapsed time per iteration \
(ms): 312.5 | learning rate: 3.000E-05 | global batch size:     8 | loss scale: 1.0 | \
grad norm: nan | number of skipped iterations:   0 | \
number of nan iterations:   0 |
""",
).reader
