"""Weight decay on everything, norms and biases with it."""

from course import Course
from faulting import Fault, at
from setups import Setup
from torch import nn

NORMS = nn.LayerNorm, nn.BatchNorm1d, nn.BatchNorm2d


def _is_decayed(run: Course) -> bool:
    """Whether a norm is in a group that decays."""
    of_norms = {id(p) for m in run.model.modules() if isinstance(m, NORMS) for p in m.parameters()}
    groups = [g for o in run.optimizers for g in o.param_groups if g["weight_decay"] > 0]
    return any(id(p) in of_norms for g in groups for p in g["params"])


FAULT = Fault(
    name="decay-on-norms",
    says="The scales of norms are pulled to zero, slowly.",
    rules=(),
    doses=(0.01, 0.03, 0.1),
    places=(
        Setup("char-gpt", "adamw"),
        Setup("digits-cnn", "adamw"),
        Setup("masked-lm", "adamw"),
    ),
    alter=lambda setup, decay: at(setup, weight_decay=decay),
    probe=_is_decayed,
    decoy=True,
    static=True,
)
