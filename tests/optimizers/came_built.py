"""CAME of pytorch_optimizer."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from optimizers.built import Built, groups


def came(**settings: Any) -> Callable[[nn.Module], Optimizer]:
    return partial(_came, settings)


def _came(settings: dict[str, Any], model: nn.Module) -> Optimizer:
    from pytorch_optimizer import CAME

    second = groups(model, betas=(0.7, 0.9, 0.99), lr=3e-3)
    return CAME(second, **{"lr": 1e-2, "weight_decay": 0.1, **settings})


class Convolved(nn.Module):
    """Words [N] as pictures [N, 2, 4, 4] through a convolution: a weight of four dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 32)
        self.convolution = nn.Conv2d(2, 3, 3)
        self.head = nn.Linear(12, 11)

    def forward(self, words: Tensor) -> Tensor:
        pictures = self.embed(words).reshape(-1, 2, 4, 4)
        return self.head(self.convolution(pictures).relu().flatten(1))


def built(name: str, make: Callable[[nn.Module], Optimizer], **options: Any) -> Built:
    return Built(f"pytorch_optimizer.{name}", make, "pytorch_optimizer", **options)


BUILT = (
    built("CAME", came()),
    built("CAME, one by one", came(foreach=False, maximize=True)),
    built("CAME, coupled decay, ams_bound", came(weight_decouple=False, ams_bound=True)),
    built("CAME, fixed decay, clip", came(fixed_decay=True, clip_threshold=0.1, eps2=1e-2)),
    built("CAME of a convolution", came(), model=Convolved),
)
