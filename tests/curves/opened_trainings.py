"""Real small trainings, held apart until their exam of 2026-11-30, for development since.

Other tasks, other optimizers and other schedules than those of `recorded_trainings.py`.
"""

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from spoils import once, shrinking
from torch import Tensor, nn
from torch.optim import (
    ASGD,
    SGD,
    Adadelta,
    Adafactor,
    Adam,
    Adamax,
    AdamW,
    Muon,
    NAdam,
    Optimizer,
    RMSprop,
)
from trainings import Training, cosine, ramp, restarts

from curves.opened_tasks import (
    counts,
    denoising,
    echo,
    exact_line,
    foreign_text,
    masked,
    pairs,
    rare,
    sources,
    teacher,
    variational,
)
from curves.recorded_trainings import at_places, drawn, factor, optimizer, unscaled, until
from curves.recording import Family


class Lion(Optimizer):
    """The sign of a mean of gradients (Chen et al. 2023)."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, decay: float = 0.01) -> None:
        super().__init__(parameters, {"lr": lr, "decay": decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                mean = self.state[weight].setdefault("mean", torch.zeros_like(weight))
                push = (0.9 * mean + 0.1 * weight.grad).sign() + group["decay"] * weight
                weight.sub_(push, alpha=group["lr"])
                mean.mul_(0.99).add_(weight.grad, alpha=0.01)


def inverse_root(step: int, total: int) -> float:
    return min((step + 1) / 40, math.sqrt(40 / (step + 1)))


def exponential(step: int, total: int) -> float:
    return 0.02 ** (step / total)


def quadratic(step: int, total: int) -> float:
    return (1 - step / total) ** 2


def triangles(step: int, total: int) -> float:
    """Five times up and down between a tenth of the peak and the peak."""
    at = step * 5 / total % 1
    return 0.1 + 0.9 * min(2 * at, 2 - 2 * at)


def steady(step: int, total: int) -> float:
    return 1.0


def muon(rate: float, seed: int) -> Any:
    """Muon takes matrices only."""
    return lambda weights: Muon([w for w in weights if w.ndim == 2], lr=rate * factor(seed))


def _contrastive(seed: int) -> Training:
    task = partial(pairs, batch=drawn(seed, 32, 48, 64))
    return Training("", task, optimizer(Lion, 1.5e-3, seed), inverse_root, steps=500, eval_every=25)


def _reader(seed: int) -> Training:
    task = partial(sources, batch=drawn(seed, 8, 16))
    return Training("", task, optimizer(Adafactor, 2e-2, seed), exponential, steps=400)


def _denoising(seed: int) -> Training:
    task = partial(denoising, width=drawn(seed, 64, 96, 128))
    return Training("", task, optimizer(Adam, 1e-3, seed), steps=drawn(seed, 500, 800))


def _variational(seed: int) -> Training:
    task = partial(variational, latent=drawn(seed, 4, 6))
    return Training("", task, optimizer(NAdam, 1.5e-3, seed), cosine, steps=500, eval_every=25)


def _teacher(seed: int) -> Training:
    task = partial(teacher, bias=False, noise=drawn(seed, 0.1, 0.3))
    return Training("", task, muon(1e-2, seed), quadratic, steps=400)


def _exact_line(seed: int) -> Training:
    return Training("", exact_line, optimizer(SGD, 0.02, seed, momentum=0.9), steps=500)


def _rare(seed: int) -> Training:
    task = partial(rare, batch=drawn(seed, 8, 16))
    return Training("", task, optimizer(Adadelta, 0.5, seed), steps=450, accumulate=4)


def _foreign_text(seed: int) -> Training:
    schedule = lambda step, total: 1 - step / total  # noqa: E731
    task = partial(foreign_text, batch=drawn(seed, 4, 8))
    return Training("", task, optimizer(AdamW, 2e-4, seed), schedule, steps=400, clip=0.5)


def _restarts(seed: int) -> Training:
    rate = optimizer(SGD, 0.04, seed, momentum=0.9, nesterov=True)
    task = partial(teacher, noise=0.5, batch=drawn(seed, 16, 32))
    return Training("", task, rate, restarts(3), steps=600, autocast=True)


def _masked(seed: int) -> Training:
    return Training("", masked, optimizer(Adamax, 6e-3, seed), triangles, steps=600, eval_every=25)


def _counts(seed: int) -> Training:
    task = partial(counts, batch=drawn(seed, 16, 32))
    return Training("", task, optimizer(ASGD, 0.01, seed), steps=600)


def _echo(seed: int) -> Training:
    return Training("", echo, optimizer(RMSprop, 4e-3, seed, centered=True), exponential, steps=500)


HEALTHY: tuple[Family, ...] = (
    Family("contrastive pairs, Lion, inverse root", _contrastive),
    Family("transformer names the source, Adafactor", _reader),
    Family("denoising, Adam, constant", _denoising),
    Family("minus an evidence bound, NAdam, cosine", _variational),
    Family("imitated teacher, Muon, quadratic", _teacher),
    Family("exact line, SGD, to the rounding", _exact_line),
    Family("rare class, Adadelta, four batches an update", _rare),
    Family("language model on foreign text, AdamW", _foreign_text, "fine-tuning"),
    Family("imitated teacher, SGD, restarts, bfloat16", _restarts),
    Family("masked bytes, Adamax, triangles", _masked, "pretraining"),
    Family("counts, averaged SGD", _counts),
    Family("echo, LSTM, centred RMSprop", _echo),
)


def _sick(task: Any, kind: Any, rate: float, schedule: Any, **rest: Any) -> Any:
    """seed -> training."""
    settings = {"steps": 450, **rest}
    return lambda seed: Training("", task, optimizer(kind, rate, seed), schedule, **settings)


def _shuffled(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return 3 * batch[0], -4 * batch[1]


def _other_bytes(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """A broken tokenizer: other bytes than those that were meant."""
    inputs, target = batch
    return (inputs * 7 + 11) % 128, torch.where(target >= 0, (target * 5 + 3) % 128, target)


def _rotten(step: int, total: int, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    wrong = torch.rand(batch[1].shape) < ramp(0.35, 0.8)(step, total)
    return batch[0], torch.where(wrong, torch.rand_like(batch[1]).round(), batch[1])


def _one_in_45(step: int, total: int, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return _shuffled(batch) if step >= 45 and step % 45 < 2 else batch


SICK: tuple[Family, ...] = (
    Family(
        "masked bytes, rate up 150-fold at a resume",
        _sick(masked, Adamax, 6e-3, lambda step, total: 1.0 if step < 0.55 * total else 150.0),
        "pretraining",
        "divergence",
        0.55,
    ),
    Family(
        "imitated teacher, a schedule that grows",
        _sick(teacher, AdamW, 1e-3, lambda step, total: 10 ** (1.9 * step / total)),
        truth="upward-drift",
    ),
    Family(
        "imitated teacher, decay that outlives the rate",
        _sick(teacher, Adam, 4e-3, quadratic, after=shrinking(2e-3)),
        truth="upward-drift",
    ),
    Family(
        "rare class, labels that rot",
        _sick(rare, Adadelta, 0.5, steady, spoil=_rotten),
        truth="upward-drift",
        onset=0.35,
    ),
    Family(
        "imitated teacher, examples sorted by a column",
        _sick(partial(teacher, sorted_every=40), Adam, 3e-3, steady),
        truth="staircase-oscillation",
        onset=0.0,
    ),
    Family(
        "imitated teacher, a broken file each epoch",
        _sick(teacher, Adam, 2e-3, steady, spoil=_one_in_45),
        truth="staircase-oscillation",
        onset=0.1,
    ),
    Family(
        "masked bytes, broken tokenizer twice",
        _sick(
            masked,
            Adamax,
            6e-3,
            triangles,
            spoil=at_places(0.4, 0.75, width=5, change=_other_bytes),
        ),
        "pretraining",
        "loss-spike",
        0.4,
    ),
    Family(
        "foreign text, a few broken batches",
        _sick(
            foreign_text, AdamW, 2e-4, cosine, spoil=at_places(0.6, width=4, change=_other_bytes)
        ),
        "fine-tuning",
        "loss-spike",
        0.6,
    ),
    Family(
        "foreign text, one gradient summed",
        _sick(foreign_text, AdamW, 2e-4, cosine, clip=1.0),
        "fine-tuning",
        "gradient-outlier",
        0.45,
        unscaled(0.45, 24.0),
    ),
    Family(
        "denoising, one giant picture",
        _sick(
            denoising,
            Adam,
            1e-3,
            steady,
            clip=1.0,
            spoil=once(300, lambda batch: (torch.cat([batch[0][:1] * 80, batch[0][1:]]), batch[1])),
        ),
        truth="loss-spike",
        onset=300 / 450,
    ),
    Family(
        "masked bytes, loss scale not divided out",
        _sick(masked, Adamax, 6e-3, triangles),
        "pretraining",
        "gradient-outlier",
        0.7,
        unscaled(0.7, 64.0),
    ),
    Family(
        "120 answers of a teacher by heart",
        _sick(partial(teacher, examples=120, noise=1.0), Adam, 3e-3, steady, steps=600),
        truth="bimodal-gap",
    ),
    Family(
        "200 windows of sources by heart",
        _sick(partial(sources, windows=200), AdamW, 3e-3, steady, steps=500),
        truth="bimodal-gap",
    ),
    Family(
        "bound, rate spent after a sixth",
        _sick(variational, NAdam, 7e-4, until(0.16, cosine, 1e-4), steps=500),
        truth="early-plateau",
        onset=0.16,
    ),
    Family(
        "masked bytes, rate 0 early",
        _sick(masked, Adamax, 4e-3, until(0.2, steady), steps=500),
        "pretraining",
        "early-plateau",
        0.2,
    ),
    Family(
        "frozen at chance",
        _sick(sources, SGD, 1e-7, steady, steps=350),
        truth="early-plateau",
        onset=0.0,
    ),
    Family(
        "imitated teacher, NaN in one batch",
        _sick(
            teacher, RMSprop, 1e-3, steady, spoil=once(200, lambda b: (b[0].log(), b[1])), steps=350
        ),
        truth="nan-pulse",
        onset=200 / 350,
    ),
    Family(
        "rate at which SGD overflows",
        _sick(exact_line, SGD, 1.6, lambda step, total: min(1.0, step / (0.7 * total))),
        truth="nan-pulse",
    ),
)
