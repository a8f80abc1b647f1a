"""A trial on a Hugging Face Trainer: it trains on afterwards as if nothing had been."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from small_training import bits, leaves
from torch.utils.data import Dataset, SequentialSampler
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from optdoctor.adapters.huggingface import OptDoctorCallback
from optdoctor.optimizers import innermost

OLD = int(transformers.__version__.split(".")[0]) < 5

pytestmark = pytest.mark.slow


class Rows(Dataset[dict[str, torch.Tensor]]):
    """Words that count upwards."""

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = (torch.arange(8) + index) % 32
        return {"input_ids": row, "labels": row.clone()}


def made(
    out: Path, kind: Any = Trainer, dropout: float = 0.1, **options: Any
) -> tuple[Trainer, OptDoctorCallback]:
    set_seed(3)
    config = GPT2Config(
        vocab_size=32,
        n_positions=8,
        n_embd=16,
        n_layer=1,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
    )
    told = {
        "max_steps": 24,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "learning_rate": 1e-2,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
        "logging_steps": 1,
        **options,
    }
    callback = OptDoctorCallback(sinks=())
    arguments = TrainingArguments(output_dir=str(out), **told)
    trainer = kind(GPT2LMHeadModel(config), arguments, train_dataset=Rows(), callbacks=[callback])
    return trainer, callback


def losses(trainer: Trainer) -> list[float]:
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


def weights(trainer: Trainer) -> dict[str, Any]:
    return {name: bits(p) for name, p in trainer.model.named_parameters()}


@pytest.mark.parametrize("bf16", [False, True])
def test_a_trainer_trains_after_a_trial_as_without_one(bf16: bool, tmp_path: Path) -> None:
    plain, _ = made(tmp_path / "plain", bf16=bf16)
    plain.train()
    tried, callback = made(tmp_path / "tried", bf16=bf16)
    before, state = weights(tried), torch.get_rng_state()
    trial = callback.trial(tried, ["adaptive-clipping", {"lr": 0.0}, {"lr": 3e-2}], steps=12)
    assert weights(tried) == before
    assert torch.equal(torch.get_rng_state(), state)
    assert tried.optimizer is None
    assert tried.lr_scheduler is None
    tried.train()
    assert losses(tried) == losses(plain)
    assert weights(tried) == weights(plain)
    clip, still, fast = trial.candidates[1:]
    assert "clips at 1" in clip.refused
    assert still.final > trial.candidates[0].final
    assert fast.refused == ""
    assert trial.batches is None


class InOrder(Trainer):
    """Takes its rows as they come: else each iteration draws an order of its own."""

    def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
        return SequentialSampler(self.train_dataset)


@pytest.mark.parametrize("accumulation", [1, 3])
def test_the_untreated_candidate_makes_the_first_updates_of_the_training(
    accumulation: int, tmp_path: Path
) -> None:
    trainer, callback = made(
        tmp_path,
        kind=InOrder,
        dropout=0.0,
        warmup_steps=3,
        gradient_accumulation_steps=accumulation,
    )
    trial = callback.trial(trainer, [{"lr": 0.0}], steps=12)
    trainer.train()
    # Old releases round what they log.
    assert losses(trainer)[:12] == pytest.approx(trial.candidates[0].losses, abs=1e-4 * OLD)


def test_after_a_training_that_was_stopped_its_own_optimizer_is_tried(tmp_path: Path) -> None:
    trainer, callback = made(tmp_path, lr_scheduler_type="constant")
    trainer.train()
    optimizer, schedule = trainer.optimizer, trainer.lr_scheduler
    inner = innermost(optimizer)
    before = weights(trainer), dict(leaves(inner.state_dict())), dict(leaves(schedule.state_dict()))
    trial = callback.trial(trainer, [{"lr": 1.0}], steps=12)
    after = weights(trainer), dict(leaves(inner.state_dict())), dict(leaves(schedule.state_dict()))
    assert before == after
    assert trainer.optimizer is optimizer
    assert trial.candidates[1].verdict == "harmed"


def test_what_cannot_be_tried_is_refused(tmp_path: Path) -> None:
    trainer, callback = made(tmp_path)
    with pytest.raises(ValueError, match="no treatment is named"):
        callback.trial(trainer, "nothing")
    trainer.train()
    with pytest.raises(ValueError, match="come to its end"):
        callback.trial(trainer, [{"lr": 1.0}])
