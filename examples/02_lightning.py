"""The doctor on a Lightning Trainer: one line, also with accumulation and clipping.

A tiny model guesses the next byte of Python's own help texts; nothing is downloaded.

    python examples/02_lightning.py
"""

from pydoc_data import topics

import lightning.pytorch as pl
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from optdoctor.adapters.lightning import OptDoctorCallback

CONTEXT = 8
QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}


class NextByte(pl.LightningModule):
    """Guesses the next byte from the last few."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Embedding(256, 16), nn.Flatten(), nn.Linear(16 * CONTEXT, 256))

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        return F.cross_entropy(self.net(batch[:, :-1]), batch[:, -1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def main() -> None:
    """Trains, and prints what the doctor thinks of it."""
    pl.seed_everything(0)
    text = torch.tensor(list("\n".join(topics.topics.values()).encode()))
    doctor = OptDoctorCallback(out="optdoctor-run/lightning")
    trainer = pl.Trainer(
        max_steps=100,
        accumulate_grad_batches=2,
        gradient_clip_val=0.5,
        callbacks=[doctor],  # the one line
        accelerator="cpu",
        **QUIET,
    )
    windows = text.unfold(0, CONTEXT + 1, 1)
    trainer.fit(NextByte(), DataLoader(windows, batch_size=64, shuffle=True))

    series, diagnosis = doctor.doctor.runs[0].trace.series, doctor.doctor.diagnosis
    norms = [series[name].values.mean() for name in ("grad_norm", "grad_norm_used")]
    print(f"mean gradient norm: {norms[0]:.2f} before clipping, {norms[1]:.2f} after it")
    print(f"verdict: {diagnosis.verdict}, {len(diagnosis.findings)} findings")


if __name__ == "__main__":
    main()
