"""What people call the training loss, the rate and the step in formats that fix no names."""

from collections.abc import Mapping
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
