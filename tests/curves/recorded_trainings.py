"""Real small trainings whose curves are for development: limits may be set on them.

Healthy families differ in task, optimizer and schedule; the seed also draws the rate, the width
and the length of each run. Sick ones are given real faults and say what their curve shows.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from healthy import mixup
from spoils import entropy_by_hand, mislabelled, once, shrinking, wrong_labels
from tasks import Task, digits, pixels, text, tumours, waves
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, AdamW, NAdam, RAdam, RMSprop
from trainings import (
    Schedule,
    Training,
    cosine,
    linear,
    milestones,
    one_cycle,
    ramp,
    stable_decay,
    warm_cosine,
)

from curves.recording import Change, Family

gpt = partial(text, model="gpt", batch=8, context=24)


def drawn(seed: int, *choices: Any) -> Any:
    """One of the choices, by the seed."""
    return choices[int(np.random.default_rng([seed, len(choices)]).integers(len(choices)))]


def factor(seed: int, most: float = 1.6) -> float:
    """A factor on the rate: between 1 / `most` and `most`."""
    return float(most ** np.random.default_rng([seed, 77]).uniform(-1, 1))


def optimizer(kind: Callable[..., Any], rate: float, seed: int, **options: Any) -> Any:
    """An optimizer whose rate is the seed's."""
    return lambda parameters: kind(parameters, lr=rate * factor(seed), **options)


def unscaled(share: float, times: float, width: int = 1) -> Change:
    """From that share of the run on, `width` updates use a gradient that is `times` too large, as
    when nobody divided by the loss scale or by the number of parts of a batch."""

    def change(model: nn.Module, step: int, total: int) -> None:
        if 0 <= step - round(share * total) < width:
            for weight in model.parameters():
                weight.grad.mul_(times)

    return change


def at_places(*shares: float, width: int, change: Callable[[Any], Any]) -> Any:
    """A few broken batches in a row, at each share of the run."""

    def spoil(step: int, total: int, batch: Any) -> Any:
        broken = any(0 <= step - round(share * total) < width for share in shares)
        return change(batch) if broken else batch

    return spoil


def one_byte(batch: Any) -> Any:
    """A corrupt file: one byte again and again, the targets at random."""
    return torch.zeros_like(batch[0]), torch.randint_like(batch[1], 128)


def until(share: float, schedule: Schedule, left: float = 0.0) -> Schedule:
    """The rate of `schedule` up to that share of the run, `left` of its peak afterwards."""
    return lambda step, total: schedule(step, total) if step < share * total else left


def _language_model(seed: int) -> Training:
    return Training(
        "",
        gpt,
        optimizer(AdamW, 4e-3, seed),
        warm_cosine,
        steps=drawn(seed, 500, 700, 1200),
        clip=1.0,
        eval_every=50,
    )


def _text_in_order(seed: int) -> Training:
    task = partial(text, model="lstm", batch=16, context=24, length=60_000, order="as written")
    return Training("", task, optimizer(RAdam, 4e-3, seed), linear, steps=468, eval_every=39)


def _recurrent(seed: int) -> Training:
    task = partial(text, model="gru", batch=drawn(seed, 8, 16))
    return Training("", task, optimizer(RMSprop, 2e-3, seed), linear, steps=450)


def _milestones(seed: int) -> Training:
    task = partial(digits, model="cnn", batch=drawn(seed, 16, 32, 64))
    return Training(
        "",
        task,
        optimizer(SGD, 0.03, seed, momentum=0.9, weight_decay=1e-4),
        milestones(0.5, 0.75),
        steps=600,
        eval_every=40,
    )


def _regression(seed: int) -> Training:
    task = partial(waves, width=drawn(seed, 32, 64), noise=drawn(seed, 0.05, 0.1, 0.3))
    return Training("", task, optimizer(Adam, 3e-3, seed), stable_decay, steps=900, eval_every=30)


def _autoencoder(seed: int) -> Training:
    task = partial(pixels, width=drawn(seed, 8, 16, 24))
    return Training("", task, optimizer(Adagrad, 2e-2, seed), steps=600)


def _mixup(seed: int) -> Training:
    task = partial(digits, width=drawn(seed, 64, 128))
    steps = drawn(seed, 500, 700)
    return Training("", task, optimizer(AdamW, 2e-3, seed), cosine, steps=steps, spoil=mixup)


def _dropout(seed: int) -> Training:
    task = partial(digits, dropout=drawn(seed, 0.3, 0.5))
    return Training("", task, optimizer(SGD, 0.03, seed, momentum=0.9), cosine, steps=700)


def _batches_of_four(seed: int) -> Training:
    return Training("", partial(text, batch=4), optimizer(SGD, 0.05, seed), steps=900)


def _one_cycle(seed: int) -> Training:
    task = partial(digits, model="cnn", batch=drawn(seed, 32, 64))
    return Training("", task, optimizer(NAdam, 6e-3, seed), one_cycle, steps=500)


def _whole_data(seed: int) -> Training:
    task = partial(digits, batch=1_400, width=drawn(seed, 32, 64))
    return Training("", task, optimizer(SGD, 0.15, seed, momentum=0.5), steps=450)


def _rare_class(seed: int) -> Training:
    task = partial(tumours, rare=drawn(seed, 20, 60))
    return Training("", task, optimizer(Adam, 3e-4, seed), steps=400)


@cache
def _knows_five_digits() -> nn.Module:
    task = digits(0)
    optimizer = Adam(task.model.parameters(), lr=2e-3)
    for step in range(400):
        inputs, target = task.batch(step)
        known = target < 8
        optimizer.zero_grad()
        task.loss(task.model(inputs[known]), target[known]).backward()
        optimizer.step()
    return task.model


def tuned(seed: int) -> Task:
    """A network that knows eight of the digits already, on dim pictures of all of them."""
    task = digits(seed, batch=16)
    task.model.load_state_dict(_knows_five_digits().state_dict())

    def dim(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return batch[0] * 0.7, batch[1]

    return replace(task, batch=lambda i: dim(task.batch(i)), held_out=dim(task.held_out))


def _fine_tune(seed: int) -> Training:
    return Training("", tuned, optimizer(AdamW, 1e-4, seed), linear, steps=435, clip=1.0)


HEALTHY: tuple[Family, ...] = (
    Family("char GPT, AdamW, warm-up and cosine", _language_model, "pretraining"),
    Family("text in order, LSTM, RAdam", _text_in_order, "pretraining"),
    Family("char GRU, RMSprop, linear", _recurrent, "pretraining"),
    Family("digits CNN, SGD, milestones", _milestones),
    Family("waves, Adam, warm-up, stable, decay", _regression),
    Family("autoencoder, Adagrad", _autoencoder),
    Family("digits, mixed examples", _mixup),
    Family("digits, dropout, SGD, cosine", _dropout),
    Family("bytes in batches of four, SGD", _batches_of_four, "pretraining"),
    Family("digits CNN, NAdam, one cycle", _one_cycle),
    Family("digits, whole data at once", _whole_data),
    Family("tumours, rare class", _rare_class),
    Family("digits, fine-tuned", _fine_tune, "fine-tuning"),
)


def _sick(task: Any, kind: Any, rate: float, schedule: Any, **rest: Any) -> Any:
    """seed -> training."""
    options = {"steps": 500, **rest}
    after = options.pop("options", {})
    return lambda seed: Training(
        "", task, optimizer(kind, rate, seed, **after), schedule, **options
    )


def dead(seed: int) -> Task:
    """A network whose biases keep every unit at 0."""
    task = digits(seed)
    with torch.no_grad():
        task.model[2].bias.fill_(-20.0)
    return task


cnn = partial(digits, model="cnn")

SICK: tuple[Family, ...] = (
    Family(
        "warm-up to a rate far too high",
        _sick(text, Adam, 3.0, lambda step, total: (step / total) ** 4),
        "pretraining",
        "divergence",
    ),
    Family(
        "rate thirty times too high after a resume",
        _sick(digits, SGD, 0.2, lambda step, total: 1.0 if step < 0.6 * total else 30.0),
        truth="divergence",
        onset=0.6,
    ),
    Family(
        "rate that never stops rising",
        _sick(gpt, AdamW, 2e-3, lambda step, total: 10 ** (3.3 * step / total - 1)),
        "pretraining",
        "upward-drift",
    ),
    Family(
        "decay that outlives the rate",
        _sick(text, Adam, 2e-3, cosine, steps=700, after=shrinking(2e-3)),
        "pretraining",
        "upward-drift",
    ),
    Family(
        "labels that rot",
        _sick(
            cnn,
            SGD,
            0.03,
            lambda *_: 1.0,
            options={"momentum": 0.9},
            spoil=wrong_labels(ramp(0.3, 0.6)),
        ),
        truth="upward-drift",
        onset=0.3,
    ),
    Family(
        "digits sorted by class",
        _sick(partial(digits, batch=20, order="sorted"), SGD, 0.05, lambda *_: 1.0, steps=700),
        truth="staircase-oscillation",
        onset=0.0,
    ),
    Family(
        "one mislabelled batch in 60",
        _sick(
            digits, SGD, 0.05, lambda *_: 1.0, options={"momentum": 0.9}, spoil=mislabelled(60, 2.0)
        ),
        truth="staircase-oscillation",
        onset=0.12,
    ),
    Family(
        "corrupt file, once",
        _sick(gpt, AdamW, 4e-3, warm_cosine, spoil=at_places(0.5, width=6, change=one_byte)),
        "pretraining",
        "loss-spike",
        0.5,
    ),
    Family(
        "three corrupt files",
        _sick(text, Adam, 2e-3, cosine, spoil=at_places(0.3, 0.45, 0.8, width=3, change=one_byte)),
        "pretraining",
        "loss-spike",
        0.3,
    ),
    Family(
        "one gradient not divided",
        _sick(gpt, AdamW, 4e-3, warm_cosine, clip=1.0),
        "pretraining",
        "gradient-outlier",
        0.6,
        unscaled(0.6, 20.0),
    ),
    Family(
        "one batch far too bright, labels shifted",
        _sick(
            tuned,
            AdamW,
            1e-4,
            linear,
            clip=1.0,
            spoil=once(260, lambda batch: (batch[0] * 8, batch[1].roll(1))),
        ),
        "fine-tuning",
        "loss-spike",
        0.52,
    ),
    Family(
        "fine-tuned digits, one gradient summed",
        _sick(tuned, AdamW, 1e-4, linear, clip=1.0),
        "fine-tuning",
        "gradient-outlier",
        0.4,
        unscaled(0.4, 25.0),
    ),
    Family(
        "150 digits by heart",
        _sick(partial(digits, batch=16, examples=150), Adam, 2e-3, lambda *_: 1.0, steps=700),
        truth="bimodal-gap",
    ),
    Family(
        "schedule in updates, not epochs",
        _sick(gpt, AdamW, 3e-3, milestones(0.14, 0.17, 0.2)),
        "pretraining",
        "early-plateau",
        0.2,
    ),
    Family(
        "rate 0 after a quarter",
        _sick(waves, Adam, 1e-3, until(0.25, cosine)),
        truth="early-plateau",
        onset=0.25,
    ),
    Family(
        "all units dead from the start",
        _sick(dead, SGD, 0.02, lambda *_: 1.0, options={"momentum": 0.9}),
        truth="early-plateau",
        onset=0.0,
    ),
    Family(
        "NaN in one batch",
        _sick(
            cnn,
            AdamW,
            2e-3,
            lambda *_: 1.0,
            spoil=once(253, lambda batch: (batch[0] * torch.nan, batch[1])),
        ),
        truth="nan-pulse",
        onset=0.506,
    ),
    Family(
        "logarithm of 0",
        _sick(tumours, Adam, 4e-3, lambda *_: 1.0, loss=entropy_by_hand),
        truth="nan-pulse",
    ),
    Family(
        "float16 weights",
        _sick(text, AdamW, 2e-3, lambda *_: 1.0, dtype=torch.float16, options={"foreach": True}),
        "pretraining",
        "nan-pulse",
    ),
)
"""Four seeds each."""
