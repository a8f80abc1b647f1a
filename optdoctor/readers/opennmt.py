"""OpenNMT-py, counted in epochs until 2018 and in steps since, and OpenNMT of Lua.

Old versions print a perplexity only. A row is the mean since the one before it.
"""

import math

from optdoctor.reading.text_format import Line, TextFormat


def _fix(values: dict[str, float]) -> dict[str, float]:
    if "xent" not in values and "ppl" in values:
        ppl = values["ppl"]
        return {**values, "xent": math.log(ppl) if ppl > 0 else math.nan}
    return values


READER = TextFormat(
    name="opennmt",
    lines=(
        Line(
            r"\b(?:Epoch <epoch>, <iter>/ <per_epoch>|Step <step>/ <total>);(?= acc:)",
            pairs=":",
            mark="acc:",
        ),
        Line(
            r"\bEpoch <epoch> ; Iter(?:ation)? <iter>/<per_epoch> ;"
            r".{0,40}?(?:Learning rate|LR) <lr> ;.{0,80}?\b(?:Perplexity|PPL) <ppl>",
            mark=" ; ",
        ),
        Line(r"\bValidation perplexity: <valid_ppl>", mark="Validation p", claims=False),
        Line(r"\bValidation accuracy: <valid_acc>", mark="Validation a", claims=False),
    ),
    aliases={"xent": "loss", "valid_ppl": "eval_loss", "sents": "", "bsz": ""},
    convert={"valid_ppl": math.log},
    fix=_fix,
    facts={"loss_kind": "falling", "loss_form": "mean", "loss_base": "nats"},
    from_zero=False,
    is_window_mean=True,
    sample="""[2026-01-02 03:04:05,678 INFO] Step 50/9000; acc:   2.25; ppl: 12088.38; \
xent:   9.40; lr: 0.00125; 3000/3100 tok/s;     10 sec
[2026-01-02 03:04:15,678 INFO] Step 100/9000; acc:   4.50; ppl: 1096.63; \
xent:   7.00; lr: 0.00250; 3000/3100 tok/s;     20 sec
[2026-01-02 03:04:16,678 INFO] Validation perplexity: 403.429
[2026-01-02 03:04:16,678 INFO] Validation accuracy: 12.5
""",
).reader
