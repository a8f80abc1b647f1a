"""Batches saved in real trainings of the frameworks, given to the model again."""

import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from small_training import Net, batches, loss_of, seed
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

pytestmark = pytest.mark.slow
torch.set_num_threads(1)


def load(out: Path, step: int) -> dict[str, Any]:
    assert [path.name for path in out.glob("batches/*")] == [f"step-{step:06d}.pt"]
    path = out / "batches" / f"step-{step:06d}.pt"
    saved: dict[str, Any] = torch.load(path, weights_only=True)
    return saved


class Rows(Dataset[dict[str, Tensor]]):
    """x and what is to be told of it; the target of row 13 is NaN."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        x = torch.full((4,), index / 40)
        return {"x": x, "labels": torch.tensor(math.nan if index == 13 else 1.0)}


class Regression(nn.Module):
    """Gives its loss where it gets labels, as models of Transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(4, 1)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        out = self.line(x).squeeze(-1)
        return {"loss": (out - labels).square().mean(), "logits": out}


def test_a_trainer_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from optdoctor.adapters.huggingface import OptDoctorCallback

    os.environ.pop("ACCELERATE_MIXED_PRECISION", None)
    seed()
    callback = OptDoctorCallback(sinks=(), out=tmp_path / "run", save_batches="1 MB")
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=10,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        logging_steps=1,
    )

    class InOrder(transformers.Trainer):  # type: ignore[misc, name-defined]
        def _get_train_sampler(self, *args: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    trainer = InOrder(
        model=Regression(), args=arguments, train_dataset=Rows(), callbacks=[callback]
    )
    trainer.train()

    saved = load(tmp_path / "run", 4)  # of rows 12 to 15
    assert math.isnan(saved["loss"])
    fresh = Regression()
    losses = [float(fresh(*one["args"], **one["kwargs"])["loss"]) for one in saved["passes"]]
    assert [math.isnan(loss) for loss in losses] == [True, False]
    assert callback.failure is None
    assert callback.doctor is not None
    titles = [t.title for f in callback.doctor.diagnosis.findings for t in f.treatments]
    assert any("batches/step-000004.pt" in title for title in titles)


def test_a_trainer_of_lightning(tmp_path: Path) -> None:
    pl = pytest.importorskip("lightning.pytorch")
    from optdoctor.adapters.lightning import OptDoctorCallback

    class Module(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            words, following, weight = batch
            return loss_of(self.net, (words, following)) * weight

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    weights = [math.nan if number == 7 else 1.0 for number in range(12)]
    data = [(*pair, weight) for pair, weight in zip(batches(12), weights, strict=True)]
    callback = OptDoctorCallback(sinks=(), out=tmp_path / "run", save_batches=10**6)
    trainer = pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=str(tmp_path),
        callbacks=[callback],
    )
    trainer.fit(Module(), DataLoader(data, batch_size=None))  # type: ignore[arg-type]

    saved = load(tmp_path / "run", 8)
    assert saved["given_to"] == "training_step"
    assert saved["batch_index"] == 7
    (one,) = saved["passes"]
    assert math.isnan(float(Module().training_step(*one["args"], **one["kwargs"])))
    assert callback.failure is None


@pytest.mark.parametrize("framework", ["huggingface", "lightning"])
def test_what_is_no_size_is_refused_at_once(framework: str) -> None:
    from importlib import import_module

    with pytest.raises(ValueError, match="save_batches"):
        import_module(f"optdoctor.adapters.{framework}").OptDoctorCallback(save_batches="much")
