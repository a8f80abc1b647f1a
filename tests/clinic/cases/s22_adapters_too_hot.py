"""Adapters at far more than their rate: the loss falls, climbs far above it, and swings there."""

from functools import cache
from pathlib import Path

import torch
from acting import watching
from casing import Case
from tasks import digits
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR

from optdoctor.findings import Diagnosis

RATE, WARM, UPDATES = 0.03, 120, 200


def _network() -> nn.Module:
    hidden = [nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU()]
    return nn.Sequential(*hidden, nn.Linear(128, 10))


@cache
def _base() -> dict[str, torch.Tensor]:
    """Knows the digits by other names."""
    torch.manual_seed(0)
    task, network = digits(0), _network()
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    for update in range(150):
        inputs, target = task.batch(update)
        optimizer.zero_grad()
        F.cross_entropy(network(inputs), (target + 3) % 10).backward()
        optimizer.step()
    return network.state_dict()


def _added(model: nn.Module) -> float:
    """The most that an adapter adds, beside the weights that it adds it to."""
    from peft.tuners.lora import LoraLayer

    return max(
        float(m.get_delta_weight("default").norm() / m.get_base_layer().weight.norm())
        for m in model.modules()
        if isinstance(m, LoraLayer)
    )


def run(folder: Path) -> Diagnosis:
    from peft import LoraConfig, get_peft_model

    torch.set_num_threads(1)
    task, network = digits(1), _network()
    network.load_state_dict(_base())
    torch.manual_seed(0)
    config = LoraConfig(r=16, lora_alpha=64, target_modules=["0", "2", "4"])
    model = get_peft_model(network, config)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=RATE)
    warm = LambdaLR(optimizer, lambda update: min(1.0, (update + 1) / WARM))
    losses = []
    with watching(model, optimizer) as doctor:
        for update in range(UPDATES):
            inputs, target = task.batch(update)
            loss = F.cross_entropy(model(inputs), target)
            optimizer.zero_grad()
            loss.backward()
            doctor.log(loss=loss)
            optimizer.step()
            warm.step()
            losses.append(float(loss))
    lowest = min(sum(losses[i : i + 10]) / 10 for i in range(WARM))
    assert max(losses[WARM:]) > 5 * lowest
    assert sum(losses[-20:]) / 20 > 2 * lowest
    assert _added(model) > 3
    return doctor.diagnosis


CASE = Case(
    number="S22",
    source="haotian-liu/LLaVA#1375",
    says="The loss of adapters falls and later climbs and swings; a tenth of the rate cures it.",
    run=run,
    rules=("step-too-large", "learning-rate-absurd"),
    missed="what adapters add is not compared with the weights that they are added to",
)
