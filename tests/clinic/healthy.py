"""Twenty healthy trainings, each of another task, optimizer or schedule, with what looks like a
shape and is none: epoch boundaries, milestones, cosine tails, restarts, noise, mixed examples."""

from functools import partial

import torch
from tasks import Batch, digits, line, pixels, text, tumours, waves
from torch import Tensor
from torch.nn import functional as F
from torch.optim import SGD, Adafactor, Adagrad, Adam, AdamW, Muon, NAdam, RAdam, RMSprop
from trainings import (
    Training,
    cosine,
    linear,
    milestones,
    one_cycle,
    restarts,
    stable_decay,
    warm_cosine,
)


def mixup(step: int, total: int, batch: Batch) -> Batch:
    """Each example is mixed with another: the training loss stays above that of the rest."""
    inputs, target = batch
    share, other = torch.rand(()), torch.randperm(len(inputs))
    hot = F.one_hot(target, 10).float()
    return share * inputs + (1 - share) * inputs[other], share * hot + (1 - share) * hot[other]


def smoothed(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output, target, label_smoothing=0.1)


gpt = partial(text, model="gpt", batch=8, context=24)

HEALTHY: tuple[Training, ...] = (
    Training(
        "GPT, AdamW, warm-up and cosine", gpt, lambda p: AdamW(p, lr=4e-3), warm_cosine, clip=1.0
    ),
    Training("GPT, Adafactor", gpt, lambda p: Adafactor(p, lr=1e-2), stable_decay),
    Training(
        "text in order, three epochs",
        partial(text, model="lstm", batch=16, context=24, length=60_000, order="as written"),
        lambda p: RAdam(p, lr=4e-3),
        linear,
        steps=468,
    ),
    Training(
        "bfloat16 autocast",
        text,
        lambda p: AdamW(p, lr=2e-3),
        warm_cosine,
        steps=500,
        autocast=True,
    ),
    Training(
        "four batches an update",
        partial(text, batch=8),
        lambda p: AdamW(p, lr=2e-3),
        cosine,
        steps=400,
        accumulate=4,
    ),
    Training("always clipped", text, lambda p: Adam(p, lr=2e-3), cosine, steps=500, clip=0.01),
    Training("batches of four", partial(text, batch=4), lambda p: SGD(p, lr=0.05), steps=800),
    Training(
        "GRU, RMSprop",
        partial(text, model="gru", batch=16),
        lambda p: RMSprop(p, lr=2e-3),
        linear,
        steps=400,
    ),
    Training(
        "digits, milestones",
        digits,
        lambda p: SGD(p, lr=0.05, momentum=0.9),
        milestones(0.5, 0.75),
        steps=600,
    ),
    Training(
        "digits CNN, one cycle",
        partial(digits, model="cnn"),
        lambda p: Adam(p, lr=1e-2),
        one_cycle,
        steps=500,
    ),
    Training(
        "digits CNN, restarts",
        partial(digits, model="cnn", batch=64),
        lambda p: NAdam(p, lr=4e-3),
        restarts(4),
        steps=480,
    ),
    Training("mixed examples", digits, lambda p: AdamW(p, lr=2e-3), cosine, steps=700, spoil=mixup),
    Training(
        "dropout",
        partial(digits, dropout=0.5),
        lambda p: SGD(p, lr=0.03, momentum=0.9),
        cosine,
        steps=600,
    ),
    Training("smoothed labels", digits, lambda p: Adam(p, lr=1e-3), steps=600, loss=smoothed),
    Training(
        "Muon", digits, lambda p: Muon([w for w in p if w.ndim == 2], lr=1e-2), cosine, steps=400
    ),
    Training("autoencoder, Adagrad", pixels, lambda p: Adagrad(p, lr=2e-2), steps=500),
    Training("rare class", partial(tumours, rare=20), lambda p: Adam(p, lr=3e-4), steps=400),
    Training(
        "whole data, large rate", partial(digits, batch=1_400), lambda p: SGD(p, lr=0.4), steps=300
    ),
    Training("line, long flat tail", line, lambda p: SGD(p, lr=0.05), steps=900),
    Training("waves, Adam, decay", waves, lambda p: Adam(p, lr=3e-3), stable_decay, steps=700),
)
