"""Initial weights that were right for a small model, in one as much wider as they are too large."""

from pathlib import Path

import torch
from acting import watching
from casing import Case
from networks import BYTES
from tasks import text
from torch import nn

from optdoctor.findings import Diagnosis

WIDTH, CONTEXT, UPDATES = 64, 24, 150
TOO_WIDE = 0.02 * (11_600 / WIDTH) ** 0.5
"""As 0.02 is at a width of 11,600: the output of a layer has the same size."""


def _model(spread: float) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"vocab_size": BYTES, "n_positions": CONTEXT, "n_embd": WIDTH, "n_layer": 3}
    config = GPT2Config(**sizes, n_head=2, initializer_range=spread, bos_token_id=0, eos_token_id=0)
    return GPT2LMHeadModel(config)


def run(folder: Path) -> Diagnosis:
    task = text(0, model="gpt", batch=8, context=CONTEXT)

    def loss_of(model: nn.Module, update: int) -> torch.Tensor:
        inputs, target = task.batch(update)
        return task.loss(model(input_ids=inputs, use_cache=False).logits, target)

    def first_norm(model: nn.Module) -> float:
        loss_of(model, 0).backward()
        norm = nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
        return float(norm)

    right = (2 / (5 * WIDTH)) ** 0.5
    assert first_norm(_model(TOO_WIDE)) > 1.3 * first_norm(_model(right)), "seven times in public"
    model = _model(TOO_WIDE)
    optimizer = torch.optim.Adam(model.parameters(), lr=6e-3, betas=(0.9, 0.95))
    warm = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda u: min(1.0, (u + 1) / 30))
    with watching(model, optimizer, attention=True) as doctor:
        for update in range(UPDATES):
            loss = loss_of(model, update)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            doctor.log(loss=loss)
            optimizer.step()
            warm.step()
    return doctor.diagnosis


CASE = Case(
    number="S26",
    source="bigscience-workshop/bigscience, chronicles of tr8-104B",
    says="The gradient norm is huge from the first step: initial weights too large for the width.",
    run=run,
    rules=("first-loss-above-chance", "gradient-abnormal-at-start", "attention-saturated"),
    first=False,
)
