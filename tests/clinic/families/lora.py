"""Low-rank adapters (peft) teach code in capitals to a small GPT-2 that has read documentation."""

import copy
from functools import cache

import torch
from corpora import code, draws, windows
from networks import BYTES
from setups import Family, Size
from tasks import Batch, Task, text
from torch import Tensor, nn
from torch.nn import functional as F

CONTEXT, UPDATES = 24, 150
RATE = 4e-3
"""Of the AdamW that the base is trained with."""


class _Logits(nn.Module):
    def __init__(self, gpt: nn.Module) -> None:
        super().__init__()
        self.gpt = gpt

    def forward(self, words: Tensor) -> Tensor:
        return self.gpt(words, use_cache=False).logits


def _capitals(text: Tensor) -> Tensor:
    """So that there is much to learn: the base has seen few of them."""
    return torch.where((text >= ord("a")) & (text <= ord("z")), text - 32, text)


def _loss(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output.flatten(0, 1), target.flatten())


@cache
def _base(size: Size) -> nn.Module:
    """What is fine-tuned, whatever the seed: it takes as long as a run."""
    from transformers import GPT2Config, GPT2LMHeadModel

    width, layers = (32, 2) if size == "small" else (48, 3)
    torch.manual_seed(0)
    gpt = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=BYTES,
            n_positions=CONTEXT,
            n_embd=width,
            n_layer=layers,
            n_head=2,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=0,
            eos_token_id=0,
        )
    )
    model, task = _Logits(gpt), text(0, model="gpt", batch=8, context=CONTEXT)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    for i in range(UPDATES):
        inputs, target = task.batch(i)
        optimizer.zero_grad()
        _loss(model(inputs), target).backward()
        optimizer.step()
    return gpt.requires_grad_(True)


def build(seed: int, size: Size, batch: int) -> Task:
    from peft import LoraConfig, get_peft_model

    def made(source: Tensor, generator: torch.Generator, number: int) -> Batch:
        window = windows(source, generator, number, CONTEXT + 1)
        return window[:, :-1], window[:, 1:]

    draw, held_out = draws(made, _capitals(code()), seed, batch)
    base = copy.deepcopy(_base(size))
    torch.manual_seed(seed)
    rank = 4 if size == "small" else 8
    targets = ["c_attn", "c_proj", "c_fc"]
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets, fan_in_fan_out=True)
    return Task(_Logits(get_peft_model(base, config)), draw, held_out, _loss, num_classes=BYTES)


RATES = {
    "sgd": 0.1,
    "adamw": 0.01,
    "adam": 0.01,
    "nadam": 0.01,
    "rmsprop": 0.005,
    "adafactor": 0.2,
    "lion": 0.003,
    "adamw8bit": 0.01,
}
FAMILY = Family("lora", build, RATES, steps=120, batch=8)
