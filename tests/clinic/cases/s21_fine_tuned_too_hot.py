"""A RoBERTa fine-tuned whole at a rate too hot for it says the same of every input."""

import math
from pathlib import Path

import torch
from acting import watching
from casing import Case
from corpora import code, generated, windows
from networks import BYTES
from tasks import text
from torch.nn import functional as F

from optdoctor.findings import Diagnosis

RATE, UPDATES, CONTEXT = 0.03, 150, 16


def run(folder: Path) -> Diagnosis:
    from transformers import RobertaConfig, RobertaForSequenceClassification

    torch.manual_seed(0)
    config = RobertaConfig(
        vocab_size=BYTES,
        hidden_size=32,
        num_hidden_layers=6,
        num_attention_heads=2,
        intermediate_size=128,
        max_position_embeddings=CONTEXT + 2,
        pad_token_id=0,
        num_labels=2,
    )
    model = RobertaForSequenceClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    prose, losses = text(0, batch=16, context=CONTEXT), []
    with watching(model, optimizer) as doctor:
        for update in range(UPDATES):
            of_code = windows(code(), generated(0, update), 16, CONTEXT)
            inputs = torch.cat([prose.batch(update)[0], of_code]).clamp(min=1)
            target = torch.arange(32) // 16
            output = model(input_ids=inputs).logits
            loss = F.cross_entropy(output, target)
            optimizer.zero_grad()
            loss.backward()
            doctor.log(loss=loss)
            optimizer.step()
            losses.append(float(loss))
    model.eval()
    with torch.no_grad():
        last = model(input_ids=inputs).logits
    assert float(last.std(dim=0).max()) < 0.05, "all inputs have the same logits"
    assert sum(losses[-20:]) / 20 > 0.95 * math.log(2)
    return doctor.diagnosis


CASE = Case(
    number="S21",
    source="rasbt/LLMs-from-scratch#335",
    says="Accuracy stays at one half: a hot rate made the encoder's output the same for all.",
    run=run,
    rules=("step-too-large", "learning-rate-absurd"),
)
