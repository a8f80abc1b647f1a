"""What treatments of gradients refuse, each said once."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from optdoctor.optimizers import probe_of
from optdoctor.trace import Fact
from optdoctor.treatments.intervention import Intervention, Refused


def clippable(one: Intervention) -> None:
    """All that a clip by norms needs.

    Raises:
        Refused: something of it is not so.
    """
    unclipped(one.name, one.facts)
    gradients_before(one.name, one.optimizer)
    whole_gradients(one.name, one.model)


def unclipped(name: str, facts: Mapping[str, Fact]) -> None:
    """The run is not known to clip: who learns from norms would learn what its clip leaves.

    Raises:
        Refused: it does.
    """
    own = facts.get("max_grad_norm")
    if isinstance(own, int | float) and own > 0:
        raise Refused(
            f"{name} needs gradients that nobody clipped, and this run clips at {own:g}",
            "set max_grad_norm to 0",
        )


def gradients_before(name: str, optimizer: Any) -> None:
    """The gradients of a step are there when it begins.

    Raises:
        Refused: the step takes them itself.
    """
    if probe_of(optimizer).family == "lbfgs":
        raise Refused(
            f"{name} acts on gradients before a step, and {type(optimizer).__name__} takes them "
            "within it",
            "use an optimizer that steps without a closure",
        )


def whole_gradients(name: str, model: nn.Module | None) -> None:
    """No module is known to hold flat shards, whose norm is another one in each process.

    Raises:
        Refused: one does, in the first form of FSDP; the second one's tensors know what they are.
    """
    modules = () if model is None else model.modules()
    kinds = {base.__name__ for module in modules for base in type(module).__mro__}
    if "FullyShardedDataParallel" in kinds:
        raise Refused(
            f"{name} would take the norm of a shard for that of the whole under FSDP",
            "use fully_shard, the second form of FSDP",
        )
