"""What the demo trains: a plan, the texts that ship with Python, a small byte-level model."""

from dataclasses import dataclass
from pathlib import Path
from pydoc_data import topics
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from optdoctor.findings import Diagnosis
from optdoctor.trace import Trace

BATCH, CONTEXT, SEED = 8, 64, 0
WIDTH, BLOCKS, HEADS, VOCABULARY = 64, 2, 2, 256


@dataclass(frozen=True, slots=True)
class Plan:
    """One training of the demo."""

    dtype: str
    """dtype of weights and optimizer state; with float32 the forward pass is bfloat16 autocast."""
    rate: float
    steps: int
    schedule: str = "constant"
    """As the Trainer names it; the other frameworks are taught no schedule."""
    out: Path | None = None
    """Folder of the run record."""

    @property
    def mixed(self) -> bool:
        """Whether the forward pass is in autocast."""
        return self.dtype == "float32"

    @property
    def torch_dtype(self) -> torch.dtype:
        """`dtype`, as torch has it."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype


@dataclass(frozen=True, slots=True)
class Result:
    """What became of it."""

    diagnosis: Diagnosis
    trace: Trace
    from_log: Diagnosis | None = None
    """What the framework's own log alone tells, where it wrote one."""
    printed: tuple[dict[str, float], ...] = ()
    """Rows of that log."""


class Texts(Dataset[dict[str, Tensor]]):
    """Bytes of Python's own help texts, cut into windows."""

    def __init__(self) -> None:
        self._bytes = torch.tensor(list("\n".join(topics.topics.values()).encode()))

    def __len__(self) -> int:
        return len(self._bytes) // CONTEXT - 1

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        window = self._bytes[index * CONTEXT : (index + 1) * CONTEXT]
        return {"input_ids": window, "labels": window}


class ByteModel(nn.Module):
    """A small causal transformer, for frameworks that bring no model of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(_block() for _ in range(BLOCKS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Logits [B, T, V] of windows [B, T]."""
        length = input_ids.shape[1]
        hidden = self.embedding(input_ids) + self.position.weight[:length]
        mask = torch.full((length, length), -torch.inf, dtype=hidden.dtype).triu(1)
        for block in self.blocks:
            hidden = block(hidden, src_mask=mask, is_causal=True)
        logits: Tensor = self.head(self.norm(hidden))
        return logits


def _block() -> nn.Module:
    return nn.TransformerEncoderLayer(
        WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )


def loss_of(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """Cross-entropy in nats of each byte given those before it."""
    logits = model(batch["input_ids"])[:, :-1].float()
    return nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"][:, 1:].flatten())
