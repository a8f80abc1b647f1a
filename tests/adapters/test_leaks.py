"""A training that raises never tells its end: nothing may be kept alive or stacked up by that."""

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from optdoctor.adapters.huggingface import OptDoctorCallback

INNER = Trainer.training_step


class Pruned(TrainerCallback):
    """Ends a training as a search for hyperparameters does."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        raise RuntimeError("pruned")


def pruned(folder: Path) -> "weakref.ref[Any]":
    config = GPT2Config(
        vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0
    )
    model = GPT2LMHeadModel(config)
    row = torch.arange(8)
    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=3, report_to=[], use_cpu=True, disable_tqdm=True
    )
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=[{"input_ids": row, "labels": row}] * 32,
        callbacks=[OptDoctorCallback(sinks=()), Pruned()],
    )
    with pytest.raises(RuntimeError, match="pruned"):
        trainer.train()
    return weakref.ref(model)


def test_trainings_that_raise_leave_no_model_and_no_stack_of_wrappers(tmp_path: Path) -> None:
    models = [pruned(tmp_path / str(i)) for i in range(3)]
    gc.collect()
    assert [model() for model in models] == [None] * 3
    step = Trainer.training_step
    assert step is INNER or step.__wrapped__ is INNER
