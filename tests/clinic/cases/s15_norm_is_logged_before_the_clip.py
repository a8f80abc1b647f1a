"""Logged gradient norms above the clip threshold: they are those before the clip, no fault."""

from pathlib import Path
from typing import Any

import torch
from acting import with_trainer
from casing import Case
from networks import BYTES
from tasks import text

from optdoctor.findings import Diagnosis

UPDATES, ROWS, CONTEXT, CLIP = 150, 1, 24, 1.0


def run(folder: Path) -> Diagnosis:
    from transformers import GPT2Config, GPT2LMHeadModel, TrainerCallback

    used: list[float] = []

    class Used(TrainerCallback):
        def on_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            gradients = [p.grad for p in given["model"].parameters() if p.grad is not None]
            used.append(float(torch.nn.utils.get_total_norm(gradients)))

    torch.manual_seed(0)
    sizes = {"vocab_size": BYTES, "n_positions": CONTEXT, "n_embd": 32, "n_layer": 2, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    task = text(0, batch=ROWS * UPDATES, context=CONTEXT)
    rows = [{"input_ids": row, "labels": row} for row in task.batch(0)[0]]
    trainer, diagnosis = with_trainer(
        folder,
        model,
        rows,
        callbacks=[Used()],
        max_steps=UPDATES,
        per_device_train_batch_size=ROWS,
        learning_rate=5e-3,
        warmup_steps=15,
        max_grad_norm=CLIP,
    )
    logged = [row["grad_norm"] for row in trainer.state.log_history if "grad_norm" in row]
    assert sum(norm > CLIP for norm in logged) > UPDATES / 2
    assert max(used) < 1.001 * CLIP
    return diagnosis


CASE = Case(
    number="S15",
    source="huggingface/trl#3312",
    says="Most logged gradient norms are above max_grad_norm: the log shows them before the clip.",
    run=run,
)
