"""The demo with the real Hugging Face Trainer and a tiny GPT-2 with random weights."""

import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, logging
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from optdoctor.adapters.huggingface import OptDoctorCallback
from optdoctor.demo.training import (
    BATCH,
    BLOCKS,
    CONTEXT,
    HEADS,
    SEED,
    VOCABULARY,
    WIDTH,
    Plan,
    Result,
    Texts,
)
from optdoctor.engine import diagnose
from optdoctor.readers import read

LINE = "Trainer(.., callbacks=[OptDoctorCallback()])"
MODEL = "A tiny GPT-2"


def train(plan: Plan) -> Result:
    """Trains for `plan.steps` updates."""
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    torch.manual_seed(SEED)
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=CONTEXT,
        n_embd=WIDTH,
        n_layer=BLOCKS,
        n_head=HEADS,
        bos_token_id=0,
        eos_token_id=0,
    )
    model: Any = GPT2LMHeadModel(config)
    model = model.to(plan.torch_dtype)
    callback = OptDoctorCallback(out=plan.out)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=model,
            args=TrainingArguments(
                output_dir=folder,
                max_steps=plan.steps,
                per_device_train_batch_size=BATCH,
                learning_rate=plan.rate,
                lr_scheduler_type=plan.schedule,
                bf16=plan.mixed,
                logging_steps=1,
                report_to=[],
                save_strategy="no",
                use_cpu=True,
                seed=SEED,
            ),
            train_dataset=Texts(),
            callbacks=[callback],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.remove_callback(ProgressCallback)
        trainer.train()
        state = Path(folder) / "trainer_state.json"
        trainer.state.save_to_json(str(state))
        from_log = diagnose(read(state))
    if callback.doctor is None:
        raise RuntimeError(f"the doctor did not start: {callback.failure}")
    printed = tuple(row for row in trainer.state.log_history if "loss" in row)
    return Result(callback.doctor.diagnosis, callback.doctor.runs[0].trace, from_log, printed)
