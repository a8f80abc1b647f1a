"""Adam-mini."""

from typing import Any

import torch
from small_training import WIDTH, WORDS, net
from torch import Tensor, nn

from optimizers.built import Built


class Attending(nn.Module):
    """With the names by which it tells blocks: embedding, queries, fused projection, others."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.q_proj = nn.Linear(WIDTH, WIDTH)
        self.attn = nn.ModuleDict({"qkv": nn.Linear(WIDTH, 4 * WIDTH)})
        self.norm = nn.LayerNorm(4 * WIDTH)
        self.head = nn.Linear(4 * WIDTH, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.norm(self.attn["qkv"](self.q_proj(self.embed(words)).tanh())))


def adam_mini(**settings: Any) -> Any:
    def make(model: nn.Module) -> torch.optim.Optimizer:
        from pytorch_optimizer import AdamMini

        return AdamMini(
            model,
            lr=1e-2,
            betas=(0.8, 0.9),
            eps=1e-4,
            num_embeds=WIDTH,
            num_heads=4,
            num_query_groups=2,
            **settings,
        )

    return make


BUILT = (
    Built("pytorch_optimizer.AdamMini", adam_mini(), "pytorch_optimizer", model=Attending),
    Built(
        "pytorch_optimizer.AdamMini, several at once",
        adam_mini(foreach=True, maximize=True, weight_decay=0.3),
        "pytorch_optimizer",
        model=net,
    ),
)
