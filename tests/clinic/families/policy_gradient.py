"""A walker on a small grid learns from rewards alone (REINFORCE) to reach its goal."""

import torch
from corpora import generated
from networks import layers
from setups import Family, Size
from tasks import HELD_OUT, Batch, Task
from torch import Tensor, nn

SIDE, WALK = 5, 6
MOVES = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])


class _Walker(nn.Module):
    """[B, 4 + WALK x 4]: where it is, its goal, and noise that draws its moves
    -> [B, WALK, 2]: log-probability of each move, and what it earned."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.policy = layers(4, width, len(MOVES))

    def forward(self, inputs: Tensor) -> Tensor:
        place, goal = inputs[:, :2], inputs[:, 2:4]
        noise = inputs[:, 4:].view(len(inputs), WALK, len(MOVES))
        told = []
        for step in range(WALK):
            seen = torch.cat([place, goal], 1) / (SIDE - 1) - 0.5
            logits = self.policy(seen).float()
            move = (logits.detach() + noise[:, step].float()).argmax(1)
            before = (goal - place).abs().sum(1)
            place = (place + MOVES[move].to(place.dtype)).clamp(0, SIDE - 1)
            earned = before - (goal - place).abs().sum(1)
            logarithm = logits.log_softmax(1).gather(1, move[:, None])[:, 0]
            told.append(torch.stack([logarithm, earned.float()], 1))
        return torch.stack(told, 1)


def _loss(walks: Tensor, target: Tensor) -> Tensor:
    """Each move is held responsible for what was earned from it on, above the mean."""
    logarithm, earned = walks[..., 0], walks[..., 1]
    later = earned.flip(1).cumsum(1).flip(1)
    advantage = (later - later.mean(0)) / (later.std(0) + 1e-3)
    return -(logarithm * advantage.detach()).mean()


def build(seed: int, size: Size, batch: int) -> Task:
    def starts(generator: torch.Generator, number: int) -> Batch:
        places = torch.randint(SIDE, (number, 4), generator=generator).float()
        uniform = torch.rand(number, WALK * len(MOVES), generator=generator)
        gumbel = -torch.log(-torch.log(uniform.clamp(1e-6, 1 - 1e-6)))
        return torch.cat([places, gumbel], 1), torch.zeros(number)

    held_out = starts(torch.Generator().manual_seed(7), HELD_OUT)

    @torch.no_grad()
    def shortfall(model: nn.Module) -> float:
        """What could have been earned and was not, a walk."""
        inputs = held_out[0]
        best = (inputs[:, 2:4] - inputs[:, :2]).abs().sum(1).clamp(max=WALK)
        walks = model(inputs.to(next(model.parameters()).dtype))
        return float((best - walks[..., 1].sum(1)).mean())

    torch.manual_seed(seed)
    model = _Walker(32 if size == "small" else 64)
    return Task(
        model, lambda i: starts(generated(seed, i), batch), held_out, _loss, evaluate=shortfall
    )


RATES = {
    "sgd": 0.3,
    "sgd-plain": 2,
    "adamw": 0.03,
    "adam": 0.03,
    "nadam": 0.009,
    "rmsprop": 0.02,
    "adafactor": 0.2,
    "lion": 0.009,
    "schedulefree-adamw": 0.03,
}
FAMILY = Family("policy-gradient", build, RATES, steps=250, batch=64, loss_kind="reward")
