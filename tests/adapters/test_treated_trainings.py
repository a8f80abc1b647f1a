"""Treatments through both callbacks, in real trainings that are broken off and resumed."""

import importlib
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from small_training import Net, batches, loss_of, seed
from torch import Tensor
from torch.utils.data import DataLoader

from optdoctor.treatments.adaptive_clipping import AdaptiveClipping

pl = pytest.importorskip("lightning.pytorch")
transformers = pytest.importorskip("transformers")
huggingface = importlib.import_module("optdoctor.adapters.huggingface")
lightning = importlib.import_module("optdoctor.adapters.lightning")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning"),
]
torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
for name in ("lightning", "lightning.pytorch", "pytorch_lightning", "lightning.fabric"):
    logging.getLogger(name).setLevel(logging.ERROR)

STEPS, SAVED = 24, 8


def clip() -> AdaptiveClipping:
    return AdaptiveClipping(1.05, memory=4)


def gpt(dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config).to(dtype)


def trainer(folder: Path, steps: int, model: Any = None, **options: Any) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(64, (16,), generator=generator) for _ in range(40)]
    callback = huggingface.OptDoctorCallback(sinks=(), **options)
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        save_steps=SAVED,
        per_device_train_batch_size=2,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    made = transformers.Trainer(
        model=gpt() if model is None else model,
        args=arguments,
        train_dataset=[{"input_ids": row, "labels": row} for row in rows],
        callbacks=[callback],
    )
    return made, callback


def weights(model: Any) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def test_a_trainer_is_treated_and_leaves_what_the_treatment_remembers_in_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if int(transformers.__version__.split(".")[0]) < 5:
        # 4.46 cannot load its own generators' state with torch 2.6 and later, but so.
        monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    whole, callback = trainer(tmp_path / "whole", STEPS, treat=[clip()])
    whole.train()
    events = [e.text for e in callback.doctor.runs[0].trace.events if e.kind == "treatment"]
    assert "is switched on from step 1" in events[0]
    untreated, _ = trainer(tmp_path / "untreated", STEPS)
    untreated.train()
    assert not all(map(torch.equal, weights(whole.model), weights(untreated.model)))

    first, _ = trainer(tmp_path / "parts", SAVED, treat=[clip()])
    first.train()
    saved = tmp_path / "parts" / f"checkpoint-{SAVED}"
    assert (saved / huggingface.TREATMENTS).is_file()
    second, _ = trainer(tmp_path / "parts", STEPS, treat=[clip()])
    second.train(resume_from_checkpoint=str(saved))
    assert all(map(torch.equal, weights(whole.model), weights(second.model)))

    (saved / huggingface.TREATMENTS).unlink()
    third, _ = trainer(tmp_path / "parts", STEPS, treat=[clip()])
    third.train(resume_from_checkpoint=str(saved))
    assert not all(map(torch.equal, weights(whole.model), weights(third.model))), "it had to learn"


def test_a_trainer_that_clips_refuses_adaptive_clipping_and_trains_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, callback = trainer(tmp_path, 4, treat=["adaptive-clipping"])
    made.args.max_grad_norm = 1.0
    made.train()
    assert made.state.global_step == 4
    assert "nobody clipped, and this run clips at 1" in capsys.readouterr().err
    assert callback.failure is not None


class Words(pl.LightningModule):  # type: ignore[name-defined, misc]
    def __init__(self) -> None:
        super().__init__()
        seed()
        self.net = Net()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return loss_of(self.net, batch)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)

    def train_dataloader(self) -> Any:
        return DataLoader(list(batches(STEPS)), batch_size=None)


def fitted(folder: Path, steps: int, path: Path | None = None) -> Any:
    module = Words()
    seed()
    callback = lightning.OptDoctorCallback(sinks=(), treat=[clip()])
    checkpoints = pl.callbacks.ModelCheckpoint(folder, "{step}", every_n_train_steps=SAVED)
    made = pl.Trainer(
        max_steps=steps,
        callbacks=[callback, checkpoints],
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    made.fit(module, ckpt_path=path)
    return module


def test_lightning_keeps_what_a_treatment_remembers_in_its_checkpoint(tmp_path: Path) -> None:
    fitted(tmp_path / "parts", SAVED)
    path = tmp_path / "parts" / f"step={SAVED}.ckpt"
    assert 0 < seen(path) <= SAVED
    module = fitted(tmp_path / "again", STEPS, path)
    assert seen(tmp_path / "again" / f"step={STEPS}.ckpt") > STEPS - SAVED, "it went on counting"
    assert all(torch.isfinite(weight).all() for weight in weights(module))


def test_in_lightning_whose_steps_run_the_model_a_nan_is_left_out_at_its_own_step(
    tmp_path: Path,
) -> None:
    class Broken(Words):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return super().training_step(batch, batch_idx) * (torch.nan if batch_idx == 5 else 1.0)

    module = Broken()
    callback = lightning.OptDoctorCallback(sinks=(), treat=["step-guard"])
    made = pl.Trainer(
        max_steps=STEPS,
        callbacks=[callback],
        default_root_dir=tmp_path,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    made.fit(module)
    assert all(torch.isfinite(weight).all() for weight in weights(module))
    events = callback.doctor.runs[0].trace.events
    assert [e.step for e in events if e.kind == "step-skipped"] == [6]


def seen(path: Path) -> float:
    """Norms that adaptive clipping has taken into its mean, as a checkpoint tells it."""
    told = torch.load(path, weights_only=True)["callbacks"]["OptDoctorCallback"]["treatments"]
    return float(torch.as_tensor(told["0"]["adaptive-clipping"]["seen"]))
