"""The attention of a transformer has a learning rate of its own, many times too high."""

import re

from course import Course
from faulting import Fault
from setups import Setup

ATTENTION = re.compile(r"qkv|attn|attention|\.out\.")


def _split(run: Course, factor: float) -> None:
    """Gives attention a group of its own at that many times the rate."""
    names = {id(p): name for name, p in run.model.named_parameters()}
    for optimizer in run.optimizers:
        (group,) = optimizer.param_groups
        chosen = [p for p in group["params"] if ATTENTION.search(names[id(p)])]
        kept = {id(p) for p in chosen}
        group["params"] = [p for p in group["params"] if id(p) not in kept]
        options = {k: v for k, v in group.items() if k not in ("params", "initial_lr")}
        optimizer.add_param_group({**options, "params": chosen, "lr": factor * group["lr"]})


def _is_split(run: Course) -> bool:
    """Whether one group has ten times the rate of the other or more, and holds matrices."""
    rest, attention = run.optimizers[0].param_groups
    has_matrices = any(p.ndim > 1 for p in attention["params"])
    return bool(has_matrices and attention["initial_lr"] >= 10 * rest["initial_lr"])


FAULT = Fault(
    name="attention-rate-high",
    says="Attention learns at twenty times the rate of the rest: its logits grow, the loss lags.",
    rules=("layer-learning-rate-mismatch", "attention-saturated", "learning-rate-absurd"),
    doses=(20.0, 60.0, 200.0),
    places=(
        Setup("char-gpt", "adamw"),
        Setup("word-gpt", "adamw"),
        Setup("digits-vit", "adamw"),
    ),
    inject=_split,
    probe=_is_split,
    of_its_task=True,
)
