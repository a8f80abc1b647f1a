"""S39: an adapter that is trained further was loaded as for inference, with nothing to train."""

from pathlib import Path

import torch
from acting import with_trainer
from casing import Case
from peft import LoraConfig, PeftModel, get_peft_model
from tasks import text
from transformers import GPT2Config, GPT2LMHeadModel

from optdoctor.findings import Diagnosis

CONTEXT, ROWS = 16, 320


def _base() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    sizes = {"vocab_size": 128, "n_positions": CONTEXT, "n_embd": 32, "n_layer": 2, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))


def run(folder: Path) -> Diagnosis:
    config = LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True)
    get_peft_model(_base(), config).save_pretrained(folder / "adapter")
    base = _base()
    base.enable_input_require_grads()  # as gradient checkpointing wants it: nothing fails
    model = PeftModel.from_pretrained(base, folder / "adapter")
    assert model.get_nb_trainable_parameters()[0] == 0

    words = text(0, model="gpt", batch=ROWS, context=CONTEXT).batch(0)[0]
    began = {name: p.clone() for name, p in model.named_parameters()}
    rows = [{"input_ids": row, "labels": row} for row in words]
    _, diagnosis = with_trainer(folder, model, rows, num_train_epochs=2, learning_rate=1e-3)
    assert all(torch.equal(p, began[name]) for name, p in model.named_parameters())
    return diagnosis


CASE = Case(
    number="S39",
    source="huggingface/trl#6700, tloen/alpaca-lora#352",
    says="Training an adapter further changes nothing: it was loaded without is_trainable=True.",
    run=run,
    rules=("nothing-trainable",),
)
