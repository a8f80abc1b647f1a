"""The optimizers of the clinic by the names that its setups use, and its schedules."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Adafactor, Adam, AdamW, Muon, NAdam, RMSprop
from trainings import (
    Schedule,
    constant,
    cosine,
    linear,
    milestones,
    one_cycle,
    stable_decay,
    warm_cosine,
)

SCHEDULES: Mapping[str, Schedule] = {
    "constant": constant,
    "cosine": cosine,
    "warm-cosine": warm_cosine,
    "linear": linear,
    "stable-decay": stable_decay,
    "milestones": milestones(0.5, 0.75),
    "one-cycle": one_cycle,
}
Maker = Callable[..., Any]


def _lion(parameters: Iterable[nn.Parameter], **options: Any) -> Any:
    from lion_pytorch import Lion

    return Lion(parameters, **options)


def _adamw8bit(parameters: Iterable[nn.Parameter], **options: Any) -> Any:
    from bitsandbytes.optim import AdamW8bit

    return AdamW8bit(parameters, min_8bit_size=512, **options)


def _schedule_free(parameters: Iterable[nn.Parameter], **options: Any) -> Any:
    from schedulefree import AdamWScheduleFree

    return AdamWScheduleFree(parameters, **options)


def _prodigy(parameters: Iterable[nn.Parameter], **options: Any) -> Any:
    from prodigyopt import Prodigy

    return Prodigy(parameters, **options)


MAKERS: Mapping[str, Maker] = {
    "sgd": lambda p, **o: SGD(p, **{"momentum": 0.9, **o}),
    "sgd-plain": SGD,
    "adam": Adam,
    "adamw": AdamW,
    "nadam": NAdam,
    "rmsprop": RMSprop,
    "adafactor": Adafactor,
    "lion": _lion,
    "adamw8bit": _adamw8bit,
    "schedulefree-adamw": _schedule_free,
    "prodigy": _prodigy,
}
MUON_HELPER_RATE = 1e-3
"""Rate of the AdamW that takes what Muon does not."""


def make(
    name: str, model: nn.Module, rate: float, weight_decay: float, **options: Any
) -> list[Any]:
    """The optimizers of a run: one, or two where one cannot take all weights.

    Raises:
        KeyError: no such name.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    if name != "muon":
        return [MAKERS[name](trained, lr=rate, weight_decay=weight_decay, **options)]
    embeddings = {
        id(p) for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters()
    }
    hidden = [p for p in trained if p.ndim == 2 and id(p) not in embeddings]
    rest = [p for p in trained if not any(p is h for h in hidden)]
    muon = Muon(hidden, lr=rate, weight_decay=weight_decay, **options)
    return [muon, AdamW(rest, lr=MUON_HELPER_RATE, weight_decay=weight_decay)] if rest else [muon]


DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
