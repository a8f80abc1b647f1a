"""How public cases are acted out: a course, a plain loop or the Hugging Face Trainer."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from course import INTERVAL, OVERHEAD, Course, train
from torch import Tensor, nn
from torch.nn import functional as F

import optdoctor
from optdoctor.engine import diagnose
from optdoctor.findings import Diagnosis
from optdoctor.live.doctor import Doctor

BATCH = 16
"""Examples of an update in epochs."""


def examined(run: Course, folder: Path) -> Diagnosis:
    """Trains the course, and examines its record."""
    train(run, folder / "run")
    return diagnose(optdoctor.read(folder / "run"))


def watching(model: nn.Module, optimizer: Any, **options: Any) -> Doctor:
    """The doctor beside a plain loop, with samples that do not hang on the clock."""
    torch.set_num_threads(1)
    chosen = {"out": None, "sinks": (), "overhead": OVERHEAD, "interval": INTERVAL, **options}
    return optdoctor.watch(model, optimizer, **chosen)


def in_epochs(
    folder: Path, model: nn.Module, optimizer: Any, data: tuple[Tensor, Tensor], epochs: int
) -> tuple[list[float], Diagnosis]:
    """Trains on all examples in a new order in each epoch; the loss of each update, and what the
    doctor says."""
    inputs, target = data
    updates, losses = len(inputs) // BATCH, []
    with watching(model, optimizer, out=folder) as doctor:
        for epoch in range(epochs):
            for i, at in enumerate(torch.randperm(len(inputs)).split(BATCH)):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(inputs[at]), target[at])
                loss.backward()
                doctor.log(loss=loss, epoch=epoch + i / updates)
                optimizer.step()
                losses.append(float(loss.detach()))
    return losses, doctor.diagnosis


def in_steps(
    model: nn.Module,
    optimizer: Any,
    task: Any,
    steps: range,
    folder: Path,
    scheduler: Any = None,
    **options: Any,
) -> Diagnosis:
    """Trains in a plain loop, which steps its scheduler after each update."""
    with watching(model, optimizer, out=folder, **options) as doctor:
        for step in steps:
            inputs, target = task.batch(step)
            optimizer.zero_grad()
            loss = task.loss(model(inputs), target)
            loss.backward()
            doctor.log(loss=loss)
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
    return doctor.diagnosis


def with_trainer(
    folder: Path,
    model: nn.Module,
    rows: Sequence[dict[str, Tensor]],
    held_out: Sequence[dict[str, Tensor]] | None = None,
    callbacks: Sequence[Any] = (),
    **arguments: Any,
) -> tuple[Any, Diagnosis]:
    """Trains with the Hugging Face Trainer; the trainer, and what the doctor says."""
    from transformers import Trainer, TrainingArguments
    from transformers.trainer_callback import PrinterCallback, ProgressCallback

    from optdoctor.adapters.huggingface import OptDoctorCallback

    torch.set_num_threads(1)
    doctor = OptDoctorCallback(interval=INTERVAL, overhead=OVERHEAD, sinks=())
    settings = {
        "logging_steps": 1,
        "report_to": [],
        "save_strategy": "no",
        "use_cpu": True,
        "seed": 0,
        "disable_tqdm": True,
        **arguments,
    }
    trainer = Trainer(
        model=model,
        args=TrainingArguments(output_dir=str(folder), **settings),
        train_dataset=rows,
        eval_dataset=held_out,
        callbacks=[doctor, *callbacks],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    trainer.train()
    assert doctor.doctor is not None, doctor.failure
    return trainer, doctor.doctor.diagnosis
