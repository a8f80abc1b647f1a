"""A T5 with a gated feed-forward part, whose activations float16 cannot hold."""

from pathlib import Path

import torch
from acting import watching
from casing import Case

from optdoctor.findings import Diagnosis

WORDS, UPDATES = 40, 60


def run(folder: Path) -> Diagnosis:
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    config = T5Config(
        vocab_size=WORDS,
        d_model=32,
        d_kv=16,
        d_ff=64,
        num_layers=2,
        num_heads=2,
        dropout_rate=0.0,
        feed_forward_proj="gated-gelu",
        decoder_start_token_id=0,
    )
    model = T5ForConditionalGeneration(config)
    gated = model.encoder.block[1].layer[1].DenseReluDense
    with torch.no_grad():
        for part in (gated.wi_0, gated.wi_1):
            part.weight.mul_(2e3)  # as bfloat16 training may leave them
        gated.wo.weight.mul_(1e-6)
    largest = []
    gated.wo.register_forward_pre_hook(lambda _, args: largest.append(float(args[0].abs().max())))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu")
    words = torch.randint(1, WORDS, (8, 12))
    assert model(input_ids=words, labels=words.flip(1)).loss.isfinite()
    assert 65504 < largest[-1] < float("inf")
    with watching(model, optimizer, scaler=scaler) as doctor:
        for _ in range(UPDATES):
            words = torch.randint(1, WORDS, (8, 12))
            with torch.autocast("cpu", torch.float16):
                loss = model(input_ids=words, labels=words.flip(1)).loss
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            doctor.log(loss=loss)
            scaler.step(optimizer)
            scaler.update()
    assert not loss.isfinite()
    return doctor.diagnosis


CASE = Case(
    number="S07",
    source="huggingface/transformers#14189",
    says="The loss is NaN in float16 and fine in float32: activations go beyond 65504.",
    run=run,
    rules=("nan-pulse", "loss-scale-collapse"),
)
