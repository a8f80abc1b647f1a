"""Real small trainings whose curves are held apart: for the exam, and for nothing before it.

Other tasks, networks, optimizers or schedules than those of `recorded_trainings.py` and of
`opened_trainings.py`.
"""

import math
from functools import partial
from typing import Any

import torch
from spoils import once
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, NAdam, Optimizer, RAdam, RMSprop, Rprop
from trainings import Training, milestones, ramp, warm_cosine

from curves.held_tasks import (
    adapted,
    coordinates,
    distilled,
    flow,
    friedman,
    gated,
    graph,
    margins,
    modular_sum,
    patches,
    sorting,
    words,
)
from curves.opened_trainings import steady
from curves.recorded_trainings import at_places, drawn, factor, optimizer, until
from curves.recording import Change, Family


class Signum(Optimizer):
    """The sign of a momentum (Bernstein et al. 2018)."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                mean = self.state[weight].setdefault("mean", torch.zeros_like(weight))
                mean.mul_(0.95).add_(weight.grad, alpha=0.05)
                weight.sub_(mean.sign(), alpha=group["lr"])


def signum(rate: float, seed: int) -> Any:
    return lambda weights: Signum(weights, {"lr": rate * factor(seed)})


def power(step: int, total: int) -> float:
    return (1 - step / total) ** 0.9


def twice_power(step: int, total: int) -> float:
    """Down to a twentieth, and once more from a half."""
    half = total // 2
    return (1 if step < half else 0.5) * (0.05 + 0.95 * (1 - step % half / half) ** 1.5)


def straight(step: int, total: int) -> float:
    return 1 - step / total


def warmed(step: int, total: int) -> float:
    return min(1.0, (step + 1) / 30)


def cooled(step: int, total: int) -> float:
    """Warm-up, constant, and a root of the steps in the last third."""
    late = max(0.0, step / total - 0.65) / 0.35
    return warmed(step, total) * (1 - math.sqrt(late))


def pegasos(step: int, total: int) -> float:
    return 1 / (1 + step / 100)


def rough(step: int, total: int) -> float:
    """A hyperbolic tangent down to a fiftieth."""
    return 0.51 - 0.49 * math.tanh(6 * step / total - 3)


def _words(seed: int) -> Training:
    task = partial(words, batch=drawn(seed, 32, 64))
    return Training("", task, optimizer(SGD, 12.0, seed), straight, steps=700, eval_every=35)


def _sum(seed: int) -> Training:
    task = partial(modular_sum, batch=drawn(seed, 64, 128))
    return Training("", task, optimizer(AdamW, 3e-3, seed), warmed, steps=500)


def _patches(seed: int) -> Training:
    return Training("", patches, optimizer(Adam, 2e-3, seed), power, steps=400)


def _coordinates(seed: int) -> Training:
    task = partial(coordinates, waves=drawn(seed, 16, 24))
    return Training("", task, optimizer(NAdam, 1e-3, seed), twice_power, steps=600)


def _friedman(seed: int) -> Training:
    return Training("", friedman, optimizer(Rprop, 1e-3, seed), steps=160, eval_every=8)


def _distilled(seed: int) -> Training:
    task = partial(distilled, width=drawn(seed, 12, 16))
    rate = optimizer(SGD, 0.02, seed, momentum=0.9, nesterov=True)
    return Training("", task, rate, milestones(0.8, 0.9), steps=600)


def _sorting(seed: int) -> Training:
    rate = optimizer(Adam, 2e-3, seed, amsgrad=True)
    return Training("", sorting, rate, rough, steps=450)


def _flow(seed: int) -> Training:
    rate = optimizer(RMSprop, 3e-4, seed, momentum=0.9)
    return Training("", flow, rate, power, steps=drawn(seed, 600, 900))


def _graph(seed: int) -> Training:
    return Training("", graph, optimizer(Adam, 5e-3, seed, weight_decay=5e-3), steps=200)


def _margins(seed: int) -> Training:
    task = partial(margins, batch=drawn(seed, 8, 16))
    return Training("", task, optimizer(SGD, 0.02, seed, weight_decay=1e-3), pegasos, steps=600)


def _adapted(seed: int) -> Training:
    return Training("", adapted, optimizer(AdamW, 2e-3, seed), warm_cosine, steps=350, clip=1.0)


def _gated(seed: int) -> Training:
    return Training(
        "", gated, signum(1e-3, seed), cooled, steps=450, accumulate=drawn(seed, 1, 2), clip=1.0
    )


HEALTHY: tuple[Family, ...] = (
    Family("words that stand near, SGD, linear", _words, "pretraining"),
    Family("modular sum, AdamW, warm-up", _sum),
    Family("photographs filled in, Adam, power", _patches),
    Family("photograph by coordinates, NAdam, power twice", _coordinates),
    Family("Friedman's function, Rprop, whole data", _friedman),
    Family("distilled digits, SGD, two late steps", _distilled),
    Family("sorting, transformer, AMSGrad, tanh", _sorting),
    Family("flow to a Swiss roll, RMSprop with momentum", _flow),
    Family("graph of digits, dropout, whole data", _graph),
    Family("margins, Pegasos", _margins),
    Family("low-rank changes of a language model, AdamW", _adapted, "fine-tuning"),
    Family("gated convolutions on sources, Signum, cooled", _gated, "pretraining"),
)


def _sick(task: Any, kind: Any, rate: float, schedule: Any, **rest: Any) -> Any:
    """seed -> training."""
    settings = {"steps": 450, **rest}
    options = settings.pop("options", {})
    return lambda seed: Training(
        "", task, optimizer(kind, rate, seed, **options), schedule, **settings
    )


def times(share: float, factor: float, width: int | None = None) -> Change:
    """From that share of the run on gradients are `factor` times what they should be, for `width`
    updates or to the end. Frozen weights have none."""

    def change(model: nn.Module, step: int, total: int) -> None:
        since = step - round(share * total)
        if since >= 0 and (width is None or since < width):
            for weight in model.parameters():
                if weight.grad is not None:
                    weight.grad.mul_(factor)

    return change


def growing(share: float, pace: float) -> Any:
    """Weights that grow by `pace` at each update from that share on: decay of the wrong sign."""

    @torch.no_grad()
    def after(model: nn.Module, step: int, total: int) -> None:
        if step >= share * total:
            for weight in model.parameters():
                weight.mul_(1 + pace)

    return after


def _aging(step: int, total: int, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """A camera whose noise grows."""
    amount = ramp(0.3, 0.25)(step, total)
    return tuple(part + amount * torch.randn_like(part) for part in batch)


def _garbled(step: int, total: int, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """A store of texts that rots: more and more bytes are any byte."""
    wrong = torch.rand(batch[0].shape) < ramp(0.4, 0.6)(step, total)
    return torch.where(wrong, torch.randint_like(batch[0], 128), batch[0]), torch.where(
        wrong, torch.randint_like(batch[1], 128), batch[1]
    )


def _backwards(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return batch[0], batch[1].flip(1)


def _base64(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """A file that is no text."""
    return torch.randint_like(batch[0], 65, 91), torch.randint_like(batch[1], 65, 91)


SICK: tuple[Family, ...] = (
    Family(
        "sorting, gradients of the wrong sign after a merge",
        _sick(sorting, Adam, 2e-3, steady),
        truth="divergence",
        onset=0.6,
        gradient=times(0.6, -1.0),
    ),
    Family(
        "distilled digits, decay of the wrong sign",
        _sick(distilled, SGD, 0.02, steady, options={"momentum": 0.9}, after=growing(0.5, 0.02)),
        truth="divergence",
        onset=0.5,
    ),
    Family(
        "photographs filled in, a camera that ages",
        _sick(patches, Adam, 2e-3, power, spoil=_aging),
        truth="upward-drift",
        onset=0.3,
    ),
    Family(
        "gated convolutions, texts that rot",
        _sick(gated, RAdam, 4e-3, steady, spoil=_garbled),
        "pretraining",
        "upward-drift",
        0.4,
    ),
    Family(
        "photographs in turn",
        _sick(partial(patches, in_turn=30), Adam, 2e-3, power),
        truth="staircase-oscillation",
        onset=0.0,
    ),
    Family(
        "margins, one side and then the other",
        _sick(partial(margins, batch=32, in_turn=40), SGD, 0.5, steady, steps=600),
        truth="staircase-oscillation",
        onset=0.0,
    ),
    Family(
        "photograph by coordinates, places in pixels once",
        _sick(
            coordinates,
            NAdam,
            3e-3,
            power,
            clip=1.0,
            spoil=at_places(0.55, width=2, change=lambda batch: (100 * batch[0], 3 - batch[1])),
        ),
        truth="loss-spike",
        onset=0.55,
    ),
    Family(
        "sorting, three batches backwards",
        _sick(sorting, Adam, 2e-3, rough, spoil=at_places(0.5, 0.8, width=3, change=_backwards)),
        truth="loss-spike",
        onset=0.5,
    ),
    Family(
        "low-rank changes, a file that is no text",
        _sick(
            adapted,
            AdamW,
            2e-3,
            warm_cosine,
            clip=1.0,
            spoil=at_places(0.45, width=3, change=_base64),
        ),
        "fine-tuning",
        "loss-spike",
        0.45,
    ),
    Family(
        "low-rank changes, one gradient summed",
        _sick(adapted, AdamW, 2e-3, warm_cosine, clip=1.0),
        "fine-tuning",
        "gradient-outlier",
        0.5,
        times(0.5, 32.0, 1),
    ),
    Family(
        "gated convolutions, two gradients not divided",
        _sick(gated, RAdam, 4e-3, cooled, clip=1.0),
        "pretraining",
        "gradient-outlier",
        0.4,
        times(0.4, 16.0, 2),
    ),
    Family(
        "sorting, 100 lists by heart",
        _sick(partial(sorting, examples=100), Adam, 3e-3, steady),
        truth="bimodal-gap",
    ),
    Family(
        "gated convolutions, 1,500 bytes by heart",
        _sick(partial(gated, length=1_500), RAdam, 6e-3, warmed, steps=500),
        "pretraining",
        "bimodal-gap",
    ),
    Family(
        "words that stand near, a schedule in epochs",
        _sick(words, SGD, 6.0, until(0.12, straight, 1e-4), steps=700),
        "pretraining",
        "early-plateau",
        0.12,
    ),
    Family(
        "modular sum, all weights 0",
        _sick(partial(modular_sum, zero=True), SGD, 0.1, steady, steps=400),
        truth="early-plateau",
        onset=0.0,
    ),
    Family(
        "flow, one infinite place",
        _sick(
            flow,
            Adam,
            1e-3,
            steady,
            spoil=once(250, lambda batch: (batch[0] * torch.inf, batch[1])),
        ),
        truth="nan-pulse",
        onset=250 / 450,
    ),
)
"""Four seeds each."""
