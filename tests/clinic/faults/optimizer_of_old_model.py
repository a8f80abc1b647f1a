"""After the optimizer was built, modules get new parameters, as by a new head or a wrapper."""

from course import Course
from faulting import Fault
from setups import Setup
from torch import nn


def _renew(run: Course, share: float) -> None:
    """New parameters of the same values for this share of the modules, the last at least."""
    with_weights = [m for m in run.model.modules() if list(m.parameters(recurse=False))]
    count = max(1, round(share * len(with_weights)))
    for module in with_weights[-count:]:
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(parameter.detach().clone()))


def _holds_old_ones(run: Course) -> bool:
    """Whether the optimizer holds parameters that the model lacks, and those have no gradient."""
    own = {id(p) for p in run.model.parameters()}
    held = [p for o in run.optimizers for g in o.param_groups for p in g["params"]]
    old = [p for p in held if id(p) not in own]
    return bool(old) and all(p.grad is None for p in old)


FAULT = Fault(
    name="optimizer-of-old-model",
    says="The optimizer moves parameters that the model no longer has; the new ones stay.",
    rules=("optimizer-of-another-model",),
    doses=(0.0, 0.5, 1.0),
    places=(
        Setup("digits-mlp", "sgd"),
        Setup("char-gpt", "adamw"),
        Setup("char-lstm", "adamw"),
    ),
    inject=_renew,
    probe=_holds_old_ones,
    static=True,
)
