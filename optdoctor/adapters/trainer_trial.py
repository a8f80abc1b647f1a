"""A trial of treatments on a Hugging Face Trainer, outside of its `train()`.

The update is the Trainer's own: its batches, `training_step`, clip, optimizer and schedule, in the
order of its loop. Seen in transformers 4.46 and 5.24.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from inspect import signature
from typing import Any

from torch import Tensor
from torch.optim.lr_scheduler import ReduceLROnPlateau

from optdoctor.live.candidates import Candidate, Trained
from optdoctor.live.standing import generators
from optdoctor.live.trial import Supply, try_all
from optdoctor.live.verdicts import Trial
from optdoctor.optimizers import innermost
from optdoctor.trace import Fact

OWN = ("optimizer", "lr_scheduler", "_created_lr_scheduler", "current_gradient_accumulation_steps")
"""What a training sets on its Trainer, and a trial takes back."""


def check_plain(trainer: Any) -> None:
    """Refuses what only `train()` can set up.

    Raises:
        ValueError: several processes or devices, a sharded model, or a gradient scaler.
    """
    args = trainer.args
    sharded = any(getattr(trainer, f"is_{n}_enabled", False) for n in ("deepspeed", "fsdp"))
    if args.world_size > 1 or args.n_gpu > 1 or sharded:
        raise ValueError("a trial of a Trainer is made in one process, on one device")
    if args.fp16:
        raise ValueError("a trial of a Trainer has no gradient scaler: set fp16=False or bf16=True")


def try_trainer(
    trainer: Any,
    asked: Sequence[Candidate],
    steps: int,
    facts: Callable[[int], Mapping[str, Fact]],
) -> Trial:
    """The trial; the Trainer is then as it was. `facts` takes the number of steps it will train.

    Raises:
        ValueError: the Trainer has no data, or its schedule has come to an end.
    """
    put_back = generators()
    try:
        with _prepared(trainer, steps) as (loader, total):
            supply = Supply(_updates(trainer, loader))
            optimizer = innermost(trainer.optimizer)
            if not any(float(group["lr"]) for group in optimizer.param_groups) and _is_over(
                trainer
            ):
                raise ValueError(
                    "all rates are 0: the schedule of this Trainer has come to its end"
                )
            result = try_all(
                trainer.model,
                [Trained(optimizer, dict(facts(total)))],
                lambda update: _update(trainer, *update),
                asked,
                supply=supply,
                steps=steps,
                wrappers=[trainer.optimizer],
                also=[trainer.lr_scheduler],
            )
    finally:
        for one in put_back:
            one()
    return replace(result, batches=None)


@contextmanager
def _prepared(trainer: Any, steps: int) -> Iterator[tuple[Any, int]]:
    """(its batches, the updates that it will train) with the optimizer and schedule that it has,
    or else would make."""
    own = {name: getattr(trainer, name) for name in OWN if hasattr(trainer, name)}
    groups = [] if trainer.optimizer is None else trainer.optimizer.param_groups
    settings = [(group, dict(group)) for group in groups]
    known = trainer.accelerator._dataloaders
    before = list(known)
    loader = trainer.get_train_dataloader()
    try:
        total = _total(trainer, loader, steps)
        trainer.create_optimizer_and_scheduler(num_training_steps=total)
        yield loader, total
    finally:
        known[:] = before
        # accelerate counts loaders that are being read; old releases cannot end what never began.
        with suppress(ValueError, AttributeError):
            loader.end()
        for group, held in settings:
            group.clear()
            group.update(held)
        for name in OWN:
            if name in own:
                setattr(trainer, name, own[name])
            else:
                vars(trainer).pop(name, None)


def _total(trainer: Any, loader: Any, steps: int) -> int:
    args = trainer.args
    if args.max_steps > 0:
        return int(args.max_steps)
    try:
        updates = -(-len(loader) // args.gradient_accumulation_steps)
    except TypeError:  # of a stream nobody knows
        return steps
    return max(int(updates * args.num_train_epochs), 1)


def _is_over(trainer: Any) -> bool:
    return int(trainer.state.global_step) > 0


def _updates(trainer: Any, loader: Any) -> Iterator[tuple[list[Any], Any]]:
    """(micro-batches, items in them) of each update of as many epochs as are asked for."""
    count = trainer.args.gradient_accumulation_steps
    takes_device = len(signature(trainer.get_batch_samples).parameters) > 2
    more = (trainer.args.device,) if takes_device else ()
    while True:
        batches: Iterable[Any] = iter(loader)
        found = False
        while True:
            samples, items = trainer.get_batch_samples(batches, count, *more)
            if not samples:
                break
            found = True
            yield samples, items
        if not found:
            return


def _update(trainer: Any, samples: Sequence[Any], items: Any) -> Tensor | float:
    """One update as the Trainer makes it; the loss is what it would log."""
    model, args = trainer.model, trainer.args
    trainer.current_gradient_accumulation_steps = len(samples)
    total: Tensor | float = 0.0
    for inputs in samples:
        with trainer.accelerator.autocast():
            total = total + trainer.training_step(model, inputs, items)
    if args.max_grad_norm and args.max_grad_norm > 0:
        trainer.accelerator.clip_grad_norm_(model.parameters(), args.max_grad_norm)
    trainer.optimizer.step()
    if not isinstance(trainer.lr_scheduler, ReduceLROnPlateau):
        trainer.lr_scheduler.step()
    model.zero_grad()
    return total
