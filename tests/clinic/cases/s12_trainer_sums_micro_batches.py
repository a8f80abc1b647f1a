"""The Trainer leaves the division by the number of tokens to a model that does not divide."""

from pathlib import Path
from typing import Any

import torch
from acting import with_trainer
from casing import Case
from networks import BYTES
from tasks import text

from optdoctor.findings import Diagnosis

SEVERAL, UPDATES, ROWS, CONTEXT = 8, 50, 2, 24


def run(folder: Path) -> Diagnosis:
    from transformers import GPT2Config, GPT2LMHeadModel

    class MeansOnly(GPT2LMHeadModel):
        """Takes any argument, as the Trainer asks, and makes nothing of the token count."""

        def forward(self, input_ids: Any = None, labels: Any = None, **others: Any) -> Any:
            return super().forward(input_ids=input_ids, labels=labels, use_cache=False)

    torch.manual_seed(0)
    sizes = {"vocab_size": BYTES, "n_positions": CONTEXT, "n_embd": 32, "n_layer": 2, "n_head": 2}
    model = MeansOnly(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    task = text(0, batch=ROWS * SEVERAL * UPDATES, context=CONTEXT)
    rows = [{"input_ids": row, "labels": row} for row in task.batch(0)[0]]
    held_out = [{"input_ids": row, "labels": row} for row in task.held_out[0][:64]]
    trainer, diagnosis = with_trainer(
        folder,
        model,
        rows,
        held_out,
        max_steps=UPDATES,
        per_device_train_batch_size=ROWS,
        gradient_accumulation_steps=SEVERAL,
        learning_rate=5e-3,
        warmup_steps=5,
        max_grad_norm=1.0,
        eval_strategy="steps",
        eval_steps=10,
    )
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    evaluated = [row["eval_loss"] for row in trainer.state.log_history if "eval_loss" in row]
    assert 0.85 < sum(losses[-10:]) / 10 / evaluated[-1] / SEVERAL < 1.15
    return diagnosis


CASE = Case(
    number="S12",
    source="axolotl-ai-cloud/axolotl#2262",
    says="The training loss is eight times the evaluation loss: micro-batches are added up.",
    run=run,
    rules=("accumulation-not-normalised",),
)
