"""S40: reentrant checkpoints around frozen blocks cut adapters off from the gradient."""

from pathlib import Path

import torch
from acting import in_steps
from casing import Case
from networks import Gpt
from peft import LoraConfig, inject_adapter_in_model
from tasks import text
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from optdoctor.findings import Diagnosis

UPDATES, RATE, CONTEXT = 160, 3e-3, 16


class _Checkpointed(Gpt):
    def forward(self, words: Tensor) -> Tensor:
        x = self.tokens(words) + self.places.weight
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=True)
        return self.head(self.norm(x))


def run(folder: Path) -> Diagnosis:
    torch.manual_seed(0)
    task, gpt = text(0, model="gpt", batch=8, context=CONTEXT), _Checkpointed(CONTEXT, blocks=3)
    model = inject_adapter_in_model(LoraConfig(r=4, target_modules=["qkv", "out"]), gpt)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora" in name or name.startswith("head"))
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=RATE)
    diagnosis = in_steps(model, optimizer, task, range(UPDATES), folder)
    adapters = [p for name, p in model.named_parameters() if "lora_B" in name]
    assert len(adapters) == 6
    assert all(p.requires_grad and p.grad is None and not p.any() for p in adapters)
    return diagnosis


CASE = Case(
    number="S40",
    source=(
        "huggingface/transformers#26221, lm-sys/FastChat#581 and #1489, "
        "kohya-ss/sd-scripts#91, cloneofsimo/lora#26"
    ),
    says="The loss hardly moves: reentrant checkpoints leave the adapters without a gradient.",
    run=run,
    rules=("gradient-never-arrives",),
)
