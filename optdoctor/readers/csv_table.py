"""Tables whose names are free: Lightning's metrics.csv, Keras' CSVLogger, and what scripts write.

Empty cells are common: Lightning writes training, evaluation and rates in rows of their own.
"""

import re

from optdoctor.knowledge.log_names import (
    FREE_NAMES,
    LOSS_NAMES,
    REWARD_NAMES,
    STEP_NAMES,
    UNUSED_NAMES,
)
from optdoctor.reading.log import number
from optdoctor.reading.reader import Rank
from optdoctor.reading.table_format import Meaning, table_reader
from optdoctor.reading.table_header import KNOWN_METRICS

_METRICS = KNOWN_METRICS | REWARD_NAMES | {"grad_norm"}
_NOT_TRAINING = frozenset({"val", "valid", "validation", "eval", "test", "dev", "scale", "scaler"})
_NOT_FALLING = frozenset({"actor", "policy", "entropy", "ent"})
_NO_NAME = re.compile(r"[{}\[\]='\"]|^.{80}")
_TENSORBOARD = {"wall time", "step", "value"}
_CLOCKS = (*UNUSED_NAMES, "_runtime", "_timestamp", "timestamp", "wall_time", "runtime", "")
_STEPS = (*STEP_NAMES, "_step")
_DROPPED = dict.fromkeys((*_CLOCKS, "_step"), "")


def _claim(names: tuple[str, ...], file_name: str) -> Meaning | None:
    if {name.lower() for name in names} == _TENSORBOARD:
        return _one_tag(names, file_name)
    if not _names_a_loss(names):
        return None
    rates = {name: "lr" for name in names if name.startswith(("lr-", "lr/"))}
    guess = None if _named("loss", names) else _guessed_loss(names)
    return Meaning(
        aliases={
            **FREE_NAMES,
            **rates,
            **dict.fromkeys((*_CLOCKS, "_step"), ""),
            **({guess: "loss"} if guess else {}),
        },
        step=next((name for name in _STEPS if name in names), None),
        # Lightning writes the number of updates before this one; a data frame has an index.
        from_zero={"epoch", "step"} <= set(names) and "" not in names,
    )


def _one_tag(names: tuple[str, ...], file_name: str) -> Meaning:
    """TensorBoard's download: only the name of the file may say what the value is."""
    tag = re.sub(r"\.\w+$", "", file_name.rpartition("-tag-")[2]).lower()
    words = set(re.split(r"[^a-z0-9]+", tag))
    channel = {"loss": "loss", "lr": "lr"}.get("loss" if "loss" in words else tag, "")
    if channel == "loss" and not _NOT_TRAINING.isdisjoint(words):
        channel = "eval_loss"
    wall_time, value = names[0], names[-1]
    known = tag.replace("/", "_") in {name.replace("/", "_") for name in LOSS_NAMES}
    return Meaning(
        aliases={wall_time: "", value: channel or f"metric:{value}"},
        step="step",
        facts={"loss_kind": "falling" if known else "unknown"} if channel == "loss" else {},
    )


def _names_a_loss(names: tuple[str, ...]) -> bool:
    if any(number(name) is not None or _NO_NAME.search(name) for name in names):
        return False
    if len(names) == 1:
        return _named("loss", names)
    is_known = _named("loss", names) or _named("eval_loss", names)
    return is_known or not _METRICS.isdisjoint(names) or _guessed_loss(names) is not None


def _named(channel: str, names: tuple[str, ...]) -> bool:
    return any(FREE_NAMES.get(name) == channel for name in names)


def _guessed_loss(names: tuple[str, ...]) -> str | None:
    """A column that seems to be a part of the training loss, one that says so before others."""
    words = {name: re.split(r"[^a-z0-9]+", name.lower()) for name in names if len(name) < 40}
    wrong = _NOT_TRAINING | _NOT_FALLING
    losses = [name for name, parts in words.items() if "loss" in parts and wrong.isdisjoint(parts)]
    return min(losses, key=lambda name: "train" not in words[name], default=None)


READER = table_reader(
    "csv",
    _claim,
    rank=Rank.TABLE,
    sample="""epoch,lr-AdamW,step,train_loss,val_loss
0,3e-05,0,,
0,,0,2.25,
0,,1,2.125,
0,,1,,2.25
1,,2,2.0625,
""",
)
