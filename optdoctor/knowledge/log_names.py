"""What people call the training loss, the rate and the step in formats that fix no names."""

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType

LOSS_NAMES = (
    "loss",
    "train_loss_step",
    "train_loss",
    "training_loss",
    "train/loss_step",
    "train/loss",
    "train_loss_epoch",
    "train/loss_epoch",
)
"""Names that can only mean the training loss, the finest first."""
GUESSED_LOSS_NAMES = ("total_loss", "batch_loss", "step_loss", "trl")
REWARD_NAMES = frozenset({"reward", "rollout/ep_rew_mean", "episode_reward_mean"})
"""Names whose presence tells that the loss beside them has no good direction."""
STEP_NAMES = (
    "step",
    "global_step",
    "train/global_step",
    "current_steps",
    "iteration",
    "iter",
    "steps",
)
FREE_NAMES: Mapping[str, str] = MappingProxyType(
    dict.fromkeys((*LOSS_NAMES, *GUESSED_LOSS_NAMES), "loss")
    | dict.fromkeys(
        [
            f"{data}{mark}loss"
            for data in ("eval", "val", "validation", "valid", "test")
            for mark in ("_", "/")
        ],
        "eval_loss",
    )
    | dict.fromkeys(("lr", "learning_rate", "train_lr", "train/learning_rate"), "lr")
    | dict.fromkeys(("grad_norm", "train/grad_norm"), "grad_norm")
    | dict.fromkeys(("epoch", "train/epoch"), "epoch")
    | dict.fromkeys(STEP_NAMES, "")
)
"""Aliases for formats in which everyone names things freely."""
UNUSED_NAMES = (
    "eta",
    "time",
    "data",
    "data_time",
    "date",
    "elapsed",
    "mem",
    "memory",
    "max_mem",
    "gpu_mem",
)
"""Names of clocks and memory, which no rule reads."""
RATES = frozenset({"lr", "learning rate", "learningrate", "current lr", "lr 0"})
GRADIENTS = frozenset({"grad norm", "gnorm", "gradient norm", "gradnorm", "total grad norm"})
"""Names of the rate and of the global gradient norm, "_" as a blank."""


def prefixed(names: Iterable[str]) -> dict[str, str]:
    """{name: channel} of the one rate and the one gradient norm of something: optim.lr, actor/lr.

    Where several things have one, none of them is that of the run.
    """
    known: dict[str, str] = {}
    for channel, meant in (("lr", RATES), ("grad_norm", GRADIENTS)):
        found = [name for name in names if _last_part(name) in meant]
        if len(found) == 1:
            known[found[0]] = channel
    return known


def _last_part(name: str) -> str:
    """What stands behind the last slash or point of a name that has one, else nothing."""
    parts = re.split(r"[/.]", name.lower())
    return " ".join(re.split(r"[_\s]+", parts[-1])) if len(parts) > 1 else ""
