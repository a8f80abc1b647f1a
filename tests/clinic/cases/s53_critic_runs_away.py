"""S53: a critic that is fitted to itself, four times for each step of the world, grows for ever."""

import copy
from pathlib import Path

import torch
from acting import watching
from casing import Case
from networks import layers
from torch import Tensor
from torch.nn import functional as F

from optdoctor.findings import Diagnosis

STEPS, UPDATES_A_STEP, WORLDS, BATCH, RATE, TARGET_RATE = 150, 4, 8, 64, 3e-3, 1.0
REWARD, DISCOUNT, REACH, TRIED = 20.0, 0.99, 0.3, 2.0


def _world(seed: int) -> list[Tensor]:
    """Places, actions of a timid player, rewards, and the places after."""
    torch.manual_seed(seed)
    place, rows = torch.randn(2), []
    for _ in range(STEPS * WORLDS):
        action = torch.empty(1).uniform_(-REACH, REACH)
        after = 0.95 * place + 0.2 * torch.cat([action, -action]) + 0.1 * torch.randn(2)
        rows.append((place, action, REWARD * (1 - place.pow(2).sum()).clamp(-1, 1)[None], after))
        place = after
    return [torch.stack(column) for column in zip(*rows, strict=True)]


def run(folder: Path) -> Diagnosis:
    place, action, reward, after = _world(0)
    critic = layers(3, 64, 1)
    target = copy.deepcopy(critic).requires_grad_(False)
    optimizer = torch.optim.Adam(critic.parameters(), lr=RATE)
    highest = []
    with watching(critic, optimizer, out=folder) as doctor:
        for step in range(STEPS * UPDATES_A_STEP):
            rows = torch.randint((step // UPDATES_A_STEP + 1) * WORLDS, (BATCH,))
            tried = torch.empty(BATCH, 10, 1).uniform_(-TRIED, TRIED)
            seen = torch.cat([after[rows, None].expand(-1, 10, -1), tried], -1)
            wanted = reward[rows] + DISCOUNT * target(seen).max(1).values
            told = critic(torch.cat([place[rows], action[rows]], 1))
            loss = F.mse_loss(told, wanted)
            optimizer.zero_grad()
            loss.backward()
            doctor.log(loss=loss, q=told.detach().abs().max())
            optimizer.step()
            with torch.no_grad():
                for slow, fast in zip(target.parameters(), critic.parameters(), strict=True):
                    slow.lerp_(fast, TARGET_RATE)
            highest.append(float(told.detach().abs().max()))
    assert highest[-1] > 10 * REWARD / (1 - DISCOUNT), "beyond what can be earned"
    assert highest[-1] > 3 * highest[len(highest) // 2] > 0
    return doctor.diagnosis


CASE = Case(
    number="S53",
    source="haarnoja/sac#9",
    says="Values grow far beyond any reward: four gradient steps a step, and a large reward scale.",
    run=run,
    rules=("divergence",),
    first=False,
)
