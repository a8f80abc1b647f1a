"""BERT of the transformers library, tiny and from nothing, fills in words that were masked."""

import torch
from corpora import MASK, draws, windows, words
from setups import Family, Size
from tasks import Batch, Task
from torch import Tensor, nn
from torch.nn import functional as F

VOCABULARY, CONTEXT, SHARE, IGNORED = 200, 16, 0.2, -100


class _Logits(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        from transformers import BertConfig, BertForMaskedLM

        self.bert = BertForMaskedLM(
            BertConfig(
                vocab_size=VOCABULARY,
                hidden_size=width,
                num_hidden_layers=layers,
                num_attention_heads=2,
                intermediate_size=4 * width,
                max_position_embeddings=CONTEXT,
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
                initializer_range=0.1,
            )
        )

    def forward(self, words: Tensor) -> Tensor:
        return self.bert(words).logits


def build(seed: int, size: Size, batch: int) -> Task:
    def made(source: Tensor, generator: torch.Generator, number: int) -> Batch:
        window = windows(source, generator, number, CONTEXT)
        is_masked = torch.rand(window.shape, generator=generator) < SHARE
        return window.masked_fill(is_masked, MASK), window.masked_fill(~is_masked, IGNORED)

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output.flatten(0, 1), target.flatten(), ignore_index=IGNORED)

    draw, held_out = draws(made, words(VOCABULARY), seed, batch)
    torch.manual_seed(seed)
    model = _Logits(32, 2) if size == "small" else _Logits(64, 2)
    return Task(model, draw, held_out, loss, num_classes=VOCABULARY)


RATES = {
    "sgd": 0.03,
    "adamw": 0.003,
    "adam": 0.003,
    "adafactor": 0.06,
    "lion": 0.0009,
    "adamw8bit": 0.003,
    "schedulefree-adamw": 0.003,
}
FAMILY = Family("masked-lm", build, RATES, steps=180, batch=16)
