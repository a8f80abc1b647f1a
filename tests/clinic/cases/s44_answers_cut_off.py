"""S44: the length limit cuts every answer off, and only answers have labels."""

import math
from pathlib import Path

import torch
from acting import with_trainer
from casing import Case
from tasks import text
from transformers import GPT2Config, GPT2LMHeadModel

from optdoctor.findings import Diagnosis

PROMPT, ANSWER, LIMIT, ROWS, IGNORED = 20, 8, 16, 320, -100


def run(folder: Path) -> Diagnosis:
    torch.manual_seed(0)
    sizes = {"vocab_size": 128, "n_positions": LIMIT, "n_embd": 32, "n_layer": 2, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    words = text(0, model="gpt", batch=ROWS, context=PROMPT + ANSWER).batch(0)[0]
    labels = words.clone()
    labels[:, :PROMPT] = IGNORED
    rows = [
        {"input_ids": row[:LIMIT], "labels": label[:LIMIT]}
        for row, label in zip(words, labels, strict=True)
    ]
    trainer, diagnosis = with_trainer(folder, model, rows, num_train_epochs=2, learning_rate=1e-3)
    logged = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    assert all(loss == 0 for loss in logged), "which is how the Trainer writes NaN"
    with torch.no_grad():
        true = model(input_ids=words[:8, :LIMIT], labels=labels[:8, :LIMIT]).loss
    assert math.isnan(float(true))
    assert all(p.isfinite().all() for p in model.parameters())
    return diagnosis


CASE = Case(
    number="S44",
    source="huggingface/trl#6668, #1191, unslothai/unsloth#1128, #2095",
    says="The log shows a loss of 0 all along: no label is left after truncation.",
    run=run,
    rules=("labels-masked",),
)
