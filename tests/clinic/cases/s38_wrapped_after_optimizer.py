"""S38: the optimizer was built first, and FSDP flattened the parameters into new ones after."""

from pathlib import Path

import torch
import torch.distributed as dist
from acting import in_steps
from casing import Case
from tasks import text
from torch.distributed.fsdp import FullyShardedDataParallel

from optdoctor.findings import Diagnosis

UPDATES, RATE = 80, 1e-2


def run(folder: Path) -> Diagnosis:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        return _train(folder)
    finally:
        dist.destroy_process_group()


def _train(folder: Path) -> Diagnosis:
    torch.manual_seed(0)
    task = text(0, model="gpt", batch=8)
    optimizer = torch.optim.AdamW(task.model.parameters(), lr=RATE)
    wrapped = FullyShardedDataParallel(
        task.model, use_orig_params=False, device_id=torch.device("cpu")
    )
    began = [p.detach().clone() for p in wrapped.parameters()]
    diagnosis = in_steps(wrapped, optimizer, task, range(UPDATES), folder)
    assert all(map(torch.equal, wrapped.parameters(), began))
    assert any(p.grad is not None and p.grad.any() for p in wrapped.parameters())
    return diagnosis


CASE = Case(
    number="S38",
    source="huggingface/accelerate#3256, #2665",
    says="The loss stays at its first value: the optimizer holds the parameters of before FSDP.",
    run=run,
    rules=("optimizer-of-another-model",),
)
