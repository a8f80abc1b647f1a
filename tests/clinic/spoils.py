"""Faults that a training of the clinic can be given: bad data, a broken schedule, a wrong loss."""

from collections.abc import Callable

import torch
from networks import BYTES
from tasks import Batch
from torch import Tensor, nn
from trainings import Schedule, Spoil


def mislabelled(every: int, scale: float) -> Spoil:
    """One batch in `every` has the targets of other examples and inputs `scale` times too large."""

    def spoil(step: int, total: int, batch: Batch) -> Batch:
        inputs, target = batch
        if step < every or step % every:
            return batch
        return inputs * scale, target[torch.randperm(len(target))]

    return spoil


def corrupt_file(every: int, length: int) -> Spoil:
    """`length` batches in `every` hold one byte again and again, with targets at random."""

    def spoil(step: int, total: int, batch: Batch) -> Batch:
        inputs, target = batch
        if step < every or step % every >= length:
            return batch
        return torch.zeros_like(inputs), torch.randint_like(target, BYTES)

    return spoil


def once(at: int, change: Callable[[Batch], Batch]) -> Spoil:
    """One batch of the whole run is changed."""
    return lambda step, total, batch: change(batch) if step == at else batch


def wrong_labels(share: Schedule, classes: int = 10) -> Spoil:
    """A share of the labels, which follows the step, is drawn at random."""

    def spoil(step: int, total: int, batch: Batch) -> Batch:
        inputs, target = batch
        wrong = torch.rand(target.shape) < share(step, total)
        return inputs, torch.where(wrong, torch.randint_like(target, classes), target)

    return spoil


def same_wrong_labels(share: float, classes: int = 10) -> Spoil:
    """A share of the digits has a wrong label, the same each time: it can be learnt by heart."""

    def spoil(step: int, total: int, batch: Batch) -> Batch:
        inputs, target = batch  # pixels are sixteenths: sums of them are a key to the example
        key = (inputs.sum(1) * 16).round().long() * 7919 + (inputs[:, :32].sum(1) * 16).long()
        return inputs, torch.where(key % 100 < share * 100, key % classes, target)

    return spoil


def noisy_sensor(amount: Schedule) -> Spoil:
    """Noise on the inputs, which follows the step."""

    def spoil(step: int, total: int, batch: Batch) -> Batch:
        inputs, target = batch
        return inputs + amount(step, total) * torch.randn_like(inputs), target

    return spoil


def shrinking(factor: float) -> Callable[[nn.Module, int, int], None]:
    """Decoupled decay that the schedule does not lower."""

    @torch.no_grad()
    def after(model: nn.Module, step: int, total: int) -> None:
        for weight in model.parameters():
            weight.mul_(1 - factor)

    return after


def spiked(every: int, factor: float) -> Schedule:
    """The rate is `factor` times too high at one update in `every`."""
    return lambda step, total: factor if step >= every and step % every == 0 else 1.0


def entropy_by_hand(output: Tensor, target: Tensor) -> Tensor:
    """Binary cross entropy that takes the logarithm of a probability, which rounds to 0 or 1."""
    share = output.sigmoid()
    return -(target * share.log() + (1 - target) * (1 - share).log()).mean()
