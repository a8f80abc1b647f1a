"""What a callback overhears of the loss, and what it is told, in real trainings."""

import importlib
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

pytestmark = pytest.mark.slow
CLASSES, PARTS = 5, 2
TOLD = {"losses_comparable": False, "batch_size": 7}
torch.set_num_threads(1)


class Rows(Dataset[dict[str, Tensor]]):
    """Numbers, and the class of each."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": torch.full((4,), index / 32), "labels": torch.tensor(index % CLASSES)}


class Classifier(nn.Module):
    """Ends in a softmax where it is told to."""

    def __init__(self, is_twice: bool) -> None:
        super().__init__()
        self.line, self.is_twice = nn.Linear(4, CLASSES), is_twice

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        out = self.line(x).softmax(-1) if self.is_twice else self.line(x)
        return {"loss": F.cross_entropy(out, labels), "logits": out}


def told(doctor: Any) -> tuple[Any, bool]:
    """What the doctor knows of the loss, and whether it says that a softmax is applied twice."""
    found = {finding.rule for finding in doctor.diagnosis.findings}
    return doctor.runs[0].trace.facts.get("loss_input"), "softmax-applied-twice" in found


def assert_told(doctor: Any) -> None:
    """What the user says stands before what the framework does."""
    facts = doctor.runs[0].trace.facts
    assert (facts["losses_comparable"], facts["batch_size"]) == ("no", 7)


@pytest.mark.parametrize("framework", ["huggingface", "lightning"])
def test_a_fact_that_cannot_be_is_refused_at_once(framework: str) -> None:
    pytest.importorskip({"huggingface": "transformers"}.get(framework, framework))
    adapter = importlib.import_module(f"optdoctor.adapters.{framework}")
    with pytest.raises(ValueError, match="did you mean total_steps"):
        adapter.OptDoctorCallback(facts={"total_step": 3})


@pytest.mark.parametrize("is_twice", [True, False])
def test_a_trainer_of_transformers(tmp_path: Path, is_twice: bool) -> None:
    transformers = pytest.importorskip("transformers")
    from optdoctor.adapters.huggingface import OptDoctorCallback

    os.environ.pop("ACCELERATE_MIXED_PRECISION", None)
    callback = OptDoctorCallback(sinks=(), out=tmp_path / "run", facts=TOLD)
    trainer = transformers.Trainer(
        Classifier(is_twice),
        transformers.TrainingArguments(
            output_dir=str(tmp_path),
            max_steps=4,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=PARTS,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
        ),
        train_dataset=Rows(),
        callbacks=[callback],
    )
    heard = []

    class Listening(transformers.TrainerCallback):  # type: ignore[misc, name-defined]
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            heard.append("backward" in vars(trainer.accelerator))

    trainer.add_callback(Listening())
    trainer.train()
    assert told(callback.doctor) == (("softmax" if is_twice else None), is_twice)
    assert_told(callback.doctor)
    assert heard == [False] * 4, "what listens to the backward pass stays there for that pass alone"


@pytest.mark.parametrize("is_twice", [True, False])
@pytest.mark.parametrize("automatic", [True, False])
def test_a_trainer_of_lightning(tmp_path: Path, is_twice: bool, automatic: bool) -> None:
    lightning = pytest.importorskip("lightning")
    from optdoctor.adapters.lightning import OptDoctorCallback

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net, self.automatic_optimization = Classifier(is_twice), automatic

        def training_step(self, batch: Any) -> Tensor:
            loss: Tensor = self.net(**batch)["loss"]
            if not automatic:
                self.optimizers().zero_grad()
                self.manual_backward(loss)
                self.optimizers().step()
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    callback = OptDoctorCallback(sinks=(), out=tmp_path / "run", facts=TOLD)
    trainer = lightning.Trainer(
        max_steps=4,
        accelerator="cpu",
        accumulate_grad_batches=PARTS if automatic else 1,
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(Module(), DataLoader(Rows(), batch_size=4))
    assert told(callback.doctor) == (("softmax" if is_twice else None), is_twice)
    assert_told(callback.doctor)
