"""Small networks for the tasks of the clinic."""

from torch import Tensor, nn
from torch.nn import functional as F

BYTES = 128
"""The texts are ASCII."""


class Gpt(nn.Module):
    """Blocks of causal attention."""

    def __init__(self, context: int, width: int = 32, heads: int = 2, blocks: int = 2) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(BYTES, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(_Block(width, heads) for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, BYTES)

    def forward(self, words: Tensor) -> Tensor:
        x = self.tokens(words) + self.places.weight
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        parts = self.qkv(self.norm1(x)).view(rows, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.mlp(self.norm2(x))


class Recurrent(nn.Module):
    """One recurrent layer."""

    def __init__(self, context: int, kind: str = "gru", width: int = 64) -> None:
        super().__init__()
        self.tokens = nn.Embedding(BYTES, 32)
        made = {"gru": nn.GRU, "lstm": nn.LSTM, "rnn": nn.RNN}[kind]
        self.cells = made(32, width, batch_first=True)
        self.head = nn.Linear(width, BYTES)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.cells(self.tokens(words))[0])


def mlp_of_bytes(context: int) -> nn.Module:
    return nn.Sequential(
        nn.Embedding(BYTES, 16),
        nn.Flatten(),
        nn.Linear(16 * context, 96),
        nn.LayerNorm(96),
        nn.ReLU(),
        nn.Linear(96, BYTES),
    )


def layers(inputs: int, width: int, outputs: int, *, dropout: float = 0.0) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, width),
        nn.ReLU(),
        *([nn.Dropout(dropout)] if dropout else []),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, outputs),
    )


def convolutions(dropout: float) -> nn.Sequential:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        *([nn.Dropout(dropout)] if dropout else []),
        nn.Linear(64, 10),
    )
