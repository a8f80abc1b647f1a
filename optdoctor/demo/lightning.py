"""The demo with the real Lightning Trainer."""

import logging
import tempfile
import warnings
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor
from torch.utils.data import DataLoader

from optdoctor.adapters.lightning import OptDoctorCallback
from optdoctor.demo.training import BATCH, SEED, ByteModel, Plan, Result, Texts, loss_of
from optdoctor.engine import diagnose
from optdoctor.readers import read

LINE = "Trainer(.., callbacks=[OptDoctorCallback()])"
MODEL = "A small byte-level transformer"


class _Module(lightning.LightningModule):
    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.model, self._plan = ByteModel().to(plan.torch_dtype), plan

    def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
        loss = loss_of(self.model, batch)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=self._plan.rate)


def train(plan: Plan) -> Result:
    """Trains for `plan.steps` updates."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.manual_seed(SEED)
    callback = OptDoctorCallback(out=plan.out)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's, of workers and checkpoints
        logger = CSVLogger(folder, flush_logs_every_n_steps=1)
        trainer = lightning.Trainer(
            max_steps=plan.steps,
            precision="bf16-mixed" if plan.mixed else "32-true",
            accelerator="cpu",
            devices=1,
            logger=logger,
            log_every_n_steps=1,
            callbacks=[callback],
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
        )
        loader = DataLoader(Texts(), batch_size=BATCH, shuffle=True, drop_last=True)
        trainer.fit(_Module(plan), loader)
        log = read(Path(logger.log_dir) / "metrics.csv")
    if callback.doctor is None:
        raise RuntimeError(f"the doctor did not start: {callback.failure}")
    loss = log.series["loss"]
    rows = zip(loss.steps.tolist(), loss.values.tolist(), strict=True)
    printed = tuple({"step": float(step), "train_loss": value} for step, value in rows)
    trace = callback.doctor.runs[0].trace
    return Result(callback.doctor.diagnosis, trace, diagnose(log), printed)
