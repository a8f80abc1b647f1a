"""What the name of a curve means in the trackers that let everybody choose it.

TensorBoard and wandb hold curves named "train/loss", "Loss/train", "Losses/TotalLoss",
"lm loss validation", "lr-AdamW/pg1". A name is taken apart into words. A loss whose other words
say nothing of a part ("train", "total", "step") is the loss; one that has more of them ("critic",
"box") is taken only where there is no better, and then it is a guess.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from optdoctor.channels import Axis, channel, is_channel
from optdoctor.knowledge.curve_words import (
    CLOCKS,
    DISCRIMINATOR,
    EVALUATION,
    GENERATOR,
    GRADIENT_NAMES,
    NO_DIRECTION,
    NO_LOSS,
    NO_RATE,
    REWARD_NAMES,
    SAYS_NOTHING,
    TEST,
    TRAINING,
)
from optdoctor.reading.lazy_regex import lazy
from optdoctor.reading.log import Log
from optdoctor.store import IntArray

Floats: TypeAlias = NDArray[np.float64]

OWN = "optdoctor/"
"""What the doctor's own curves begin with."""

_RATE = lazy(
    r"lr\d?|learning_?rate(_\d+)?|(cur|current|base|train|epoch)_?(lr|learning_rate)|pg0"
    r"|learning_rate_(group_?)?0|(lr|learning_rate)_\w+"
)
_ITERATIONS = "evaluation_loss_vs_iterations"  # Keras: over batches, beside epoch_loss over epochs


@dataclass(frozen=True, slots=True)
class Meaning:
    """What the names of one run mean."""

    aliases: dict[str, str]
    """{name: channel, "metric:<name>", or "" to drop it}, the important ones first."""
    loss_kind: str | None
    """As the fact of this name; None without a loss."""

    @property
    def loss(self) -> str | None:
        """The name of the training loss."""
        return next((name for name, target in self.aliases.items() if target == "loss"), None)


def fill(log: Log, meaning: Meaning, take: Callable[[str], tuple[IntArray, Floats]]) -> None:
    """Adds the curves of a run to a log; `take` gives steps [n] and values [n] of a name."""
    log.aliases = meaning.aliases
    if meaning.loss_kind:
        log.facts["loss_kind"] = meaning.loss_kind
    for name, target in meaning.aliases.items():
        if not target:
            continue
        steps, values = take(name)
        if len(steps) > 2 and not steps.any():  # nobody gave a step
            steps = np.arange(1, len(steps) + 1)
            if target == "loss":
                log.facts["step_source"] = "counted rows"
        if len(steps):
            as_named = target if target.startswith("metric:") else name
            log.rows({as_named: values}, steps.astype(np.float64))


def meaning_of(sizes: Mapping[str, int]) -> Meaning:
    """What the names mean; `sizes` is {name: points}."""
    names = [name for name in sizes if not name.startswith(OWN)]
    words = {name: words_of(name) for name in names}
    losses = [n for n in names if "loss" in words[n] and NO_LOSS.isdisjoint(words[n])]
    training = [n for n in losses if EVALUATION.isdisjoint(words[n])]
    chosen: dict[str, str] = {}
    loss = min(training, key=lambda n: _worse(words[n], sizes[n]), default=None)
    if loss is None and (own := [name for name in sizes if name.startswith(OWN)]):
        for name in own:
            if (target := _own_channel(name)) not in ("", *chosen.values()):
                chosen[name] = target
    if loss is not None:
        chosen[loss] = "loss"
    if (evaluation := _evaluation(names, losses, words, sizes, loss)) is not None:
        chosen.setdefault(evaluation, "eval_loss")
    for target, found in (
        ("lr", [n for n in names if _is_rate(n, words[n])]),
        ("grad_norm", [n for n in names if _last(n) in GRADIENT_NAMES]),
        ("epoch", [n for n in names if _last(n) == "epoch"]),
        ("loss_scale", [n for n in names if _last(n) in ("loss_scale", "grad_scale")]),
    ):
        best = max(found, key=lambda n: sizes[n], default=None)
        if best is not None and target not in chosen.values():
            chosen.setdefault(best, target)
    rest = {name: _rest(name, words.get(name, [])) for name in sizes if name not in chosen}
    kind = None
    if "loss" in chosen.values():
        kind = _kind(words, None if loss is None else words[loss])
    return Meaning(chosen | rest, kind)


def words_of(name: str) -> list[str]:
    """The words of a name in lower case: "Losses/TotalLoss_1" is loss, total, loss, 1."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name)
    words = []
    for word in re.findall(r"[a-z]+|\d+", parted.lower()):
        stem = "loss" if word == "losses" else word
        if stem.endswith("loss") and stem != "loss":
            words.append(stem.removesuffix("loss"))
            stem = "loss"
        words.append(stem)
    return words


def _telling(words: Iterable[str]) -> set[str]:
    """The words of a loss that say of which part it is."""
    left = {word for word in words if not word.isdigit()} - SAYS_NOTHING
    return left - {"cross", "entropy"} if {"cross", "entropy"} <= left else left


def _worse(words: list[str], size: int) -> tuple[bool, bool, bool, bool, int, bool, int]:
    """Sorts training losses: the whole before its parts, the finest first."""
    known = not _telling(words)
    says_train = not TRAINING.isdisjoint(words)
    return (
        not known,
        not known and not says_train,
        not NO_DIRECTION.isdisjoint(words),
        "epoch" in words,
        -size,
        "total" not in words,
        len(words),
    )


def _evaluation(
    names: list[str],
    losses: list[str],
    words: Mapping[str, list[str]],
    sizes: Mapping[str, int],
    loss: str | None,
) -> str | None:
    if loss is not None and "batch" in words[loss]:
        same_clock = [name for name in names if name.endswith(_ITERATIONS)]
        if same_clock:
            return same_clock[0]
    found = [n for n in losses if not EVALUATION.isdisjoint(words[n]) and not _telling(words[n])]
    key = lambda n: (not TEST.isdisjoint(words[n]), -sizes[n])  # noqa: E731
    return min(found, key=key, default=None)


def _is_rate(name: str, words: list[str]) -> bool:
    if not NO_RATE.isdisjoint(words):
        return False
    whole = _plain(name)
    return _RATE.fullmatch(_last(name)) is not None or whole.startswith(("lr_", "lr/"))


def _rest(name: str, words: list[str]) -> str:
    """As a metric; "" for a clock, for what stands over another one, and for the doctor's own."""
    is_dropped = name.startswith(OWN) or "vs" in words or not CLOCKS.isdisjoint(words)
    return "" if is_dropped else f"metric:{name}"


def _own_channel(name: str) -> str:
    """The channel that a curve of the doctor's shows, "" for one of a single tensor."""
    target = re.sub(r"^\d+/", "", name.removeprefix(OWN))  # one of several optimizers
    if target.startswith("metric/"):
        return target.replace("/", ":", 1)
    return target if is_channel(target) and channel(target).axis is Axis.STEP else ""


def _kind(words: Mapping[str, list[str]], loss: list[str] | None) -> str:
    if any(_last(name) in REWARD_NAMES for name in words):
        return "reward"
    of_losses = {word for found in words.values() if "loss" in found for word in found}
    if not of_losses.isdisjoint(GENERATOR) and not of_losses.isdisjoint(DISCRIMINATOR):
        return "adversarial"
    return "unknown" if loss is not None and _telling(loss) else "falling"


def _plain(name: str) -> str:
    return re.sub(r"[\s.\-]+", "_", name.strip().lower())


def _last(name: str) -> str:
    """The last part of a path of names."""
    return _plain(name).rpartition("/")[2]
