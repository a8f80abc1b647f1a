"""The output embedding of a model that ties it to the input gets a tensor of its own."""

import torch
from course import Course
from faulting import Fault
from setups import Setup
from torch import nn


def _untie(run: Course, size: float) -> None:
    """New weights for one end of each tie, drawn at `size` times the spread of the old; trained
    where the other end is."""
    for module in list(run.model.modules()):
        for target, source in (vars(module).get("all_tied_weights_keys") or {}).items():
            path, _, name = target.rpartition(".")
            kept = module.get_parameter(source)
            if kept.ndim < 2:
                continue
            drawn = torch.randn_like(kept) * kept.std() * size
            new = nn.Parameter(drawn, requires_grad=kept.requires_grad)
            setattr(module.get_submodule(path), name, new)
            for optimizer in run.optimizers:
                for group in optimizer.param_groups:
                    if any(p is kept for p in group["params"]):
                        group["params"].append(new)
            run.notes["ends"] = new, kept


def _is_untied(run: Course) -> bool:
    """Whether the two ends are two tensors of other values."""
    one, other = run.notes["ends"]
    return one.data_ptr() != other.data_ptr() and not torch.equal(one, other)


FAULT = Fault(
    name="tie-broken",
    says="The output embedding begins from chance though the configuration calls it tied.",
    rules=("tie-broken",),
    doses=(1.0, 0.3, 0.1),
    places=(
        Setup("lora", "adamw"),
        Setup("masked-lm", "adamw"),
        Setup("lora", "lion"),
    ),
    inject=_untie,
    probe=_is_untied,
    static=True,
    of_its_task=True,
)
