"""progress.csv of OpenAI's guided-diffusion and what grew from it.

The loss of a batch depends on the time steps that were drawn for it, each quarter of which has
columns of its own (q0 to q3), empty where none fell into it.
"""

import re

from optdoctor.reading.table_format import Meaning, table_reader

_QUARTER = re.compile(r"_q[0-3](_mean)?$")
_LOSSES = ("loss", "loss_mean", "mse_loss_mean", "mse_loss", "mse", "mse_mean")


def _claim(names: tuple[str, ...], _: str) -> Meaning | None:
    if not {"samples", "step"} <= set(names) or not any(map(_QUARTER.search, names)):
        return None
    return Meaning(
        aliases=dict.fromkeys(_LOSSES, "loss")
        | {"grad_norm": "grad_norm", "lr": "lr", "samples": "", "step": ""},
        step="step",
        facts={"loss_kind": "diffusion", "loss_form": "mean"},
    )


READER = table_reader(
    "guided-diffusion",
    _claim,
    marks=("_q0", "_q1", "_q2", "_q3"),
    sample="""grad_norm,loss,loss_q1,loss_q3,samples,step,loss_q0
0.5,0.75,0.5,0.25,64,0,
0.25,0.5,,0.25,704,10,0.75
0.25,0.25,0.5,,1344,20,0.5
""",
)
