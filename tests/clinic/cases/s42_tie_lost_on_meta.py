"""S42: a model made on the meta device comes to life with an output embedding of its own."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from acting import watching
from casing import Case
from tasks import Batch, text
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel

from optdoctor.findings import Diagnosis

PRETRAINED, UPDATES, RATE, CONTEXT, LETTERS = 150, 100, 4e-3, 24, 128


def run(folder: Path) -> Diagnosis:
    torch.manual_seed(0)
    task = text(0, model="gpt", batch=8, context=CONTEXT)
    sizes = {"vocab_size": LETTERS, "n_positions": CONTEXT, "n_embd": 32, "n_layer": 2, "n_head": 2}
    config = GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
    trained = GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(trained.parameters(), lr=RATE)
    losses = [_update(trained, optimizer, task.batch(i)) for i in range(PRETRAINED)]
    saved = trained.state_dict()
    del saved["lm_head.weight"]  # as checkpoints are: it is the input embedding

    with torch.device("meta"):
        model = GPT2LMHeadModel(config)
    model.to_empty(device="cpu")
    for module in model.modules():
        model._init_weights(module)
    lacking = model.load_state_dict(saved, strict=False).missing_keys
    assert lacking == ["lm_head.weight"]
    assert model.lm_head.weight.data_ptr() != model.transformer.wte.weight.data_ptr()

    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    with watching(model, optimizer, out=folder) as doctor:
        for i in range(UPDATES):
            losses.append(_update(model, optimizer, task.batch(PRETRAINED + i), doctor.log))
    chance = math.log(LETTERS)
    assert losses[PRETRAINED] > 0.9 * chance > 1.2 * losses[PRETRAINED - 1]
    return doctor.diagnosis


def _update(
    model: Any, optimizer: Any, batch: Batch, log: Callable[..., None] = lambda loss: None
) -> float:
    inputs, target = batch
    optimizer.zero_grad()
    loss = F.cross_entropy(model(inputs, use_cache=False).logits.flatten(0, 1), target.flatten())
    loss.backward()
    log(loss=loss)
    optimizer.step()
    return float(loss.detach())


CASE = Case(
    number="S42",
    source="pytorch/torchtitan#3775, facebookresearch/lingua#75",
    says="A pretrained model begins at the loss of chance: its tied embeddings came apart.",
    run=run,
    rules=("tie-broken",),
)
