"""Adam and AdamW of torch, bitsandbytes and torchao."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from optimizers.built import Built, groups, plain_step

DECAYING = {"lr": 1e-2, "weight_decay": 0.1, "eps": 1e-4}
LARGE = {"lr": 1.0, "weight_decay": 0.1, "eps": 1e-4}
"""Steps that stand out of the rounding of float32."""


class Sparse(nn.Module):
    """An embedding whose gradient holds the rows of a batch alone."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8, sparse=True)
        self.head = nn.Linear(8, 11)

    def forward(self, words: Tensor) -> Tensor:
        logits: Tensor = self.head(self.embed(words))
        return logits


def wide_net() -> nn.Module:
    """Two tensors of 5632 elements, 22 blocks of 256 or 44 of 128, and a small one."""
    return nn.Sequential(nn.Embedding(11, 512), nn.Linear(512, 11))


def whole_step(optimizer: Optimizer, loss: Callable[[], Tensor]) -> None:
    """The gradient holds the other rows too, as zeros."""
    optimizer.zero_grad()
    loss().backward()
    for group in optimizer.param_groups:
        for p in group["params"]:
            rows, whole = torch.arange(len(p))[None], p.grad.to_dense()
            p.grad = torch.sparse_coo_tensor(rows, whole, check_invariants=True)
    optimizer.step()


def eager_step(optimizer: Optimizer, loss: Callable[[], Tensor]) -> None:
    """torchao compiles its update for each shape, which takes 2 to 40 s; the rule is the same."""
    with torch.compiler.set_stance("force_eager"):
        plain_step(optimizer, loss)


def bitsandbytes(name: str, **options: object) -> Callable[[nn.Module], Optimizer]:
    def make(model: nn.Module) -> Optimizer:
        from bitsandbytes import optim

        split = groups(model, betas=(0.7, 0.9), lr=0.3)
        optimizer: Optimizer = getattr(optim, name)(split, **{**LARGE, **options})
        return optimizer

    return make


def torchao(name: str, **options: object) -> Callable[[nn.Module], Optimizer]:
    def make(model: nn.Module) -> Optimizer:
        from torchao import optim

        optimizer: Optimizer = getattr(optim, name)(
            groups(model, betas=(0.7, 0.9), lr=0.3), **{**LARGE, **options}
        )
        return optimizer

    return make


def single(
    name: str,
    make: Callable[[nn.Module], Optimizer],
    model: Callable[[], nn.Module] | None = wide_net,
) -> Built:
    """One that knows no float64."""
    if not name.startswith("torchao"):
        return Built(name, make, package="bitsandbytes", dtype=torch.float32, model=model)
    return Built(
        name,
        make,
        package="torchao",
        bound=2e-5,
        because="computes 1 - 0.999^t in float32: at t = 1 it is off by 1e-5",
        dtype=torch.float32,
        model=model,
        step=eager_step,
    )


BUILT = (
    Built(
        "torch.optim.Adam",
        lambda m: torch.optim.Adam(groups(m, betas=(0.7, 0.9), lr=3e-3), **DECAYING),
    ),
    Built(
        "torch.optim.AdamW",
        lambda m: torch.optim.AdamW(groups(m, betas=(0.7, 0.9), lr=3e-3), **DECAYING),
    ),
    Built(
        "torch.optim.AdamW, amsgrad, foreach",
        lambda m: torch.optim.AdamW(
            groups(m, betas=(0.1, 0.2)), lr=1e-2, amsgrad=True, foreach=True
        ),
    ),
    Built(
        "torch.optim.AdamW, fused, maximize",
        lambda m: torch.optim.AdamW(groups(m, lr=1e-3), lr=1e-2, fused=True, maximize=True),
    ),
    Built(
        "torch.optim.Adam, maximize, amsgrad",
        lambda m: torch.optim.Adam(
            groups(m, betas=(0.1, 0.2)), **DECAYING, maximize=True, amsgrad=True, foreach=False
        ),
    ),
    Built(
        "torch.optim.SparseAdam, every row held",
        lambda m: torch.optim.SparseAdam([m.embed.weight], lr=1e-2, betas=(0.7, 0.9), eps=1e-4),
        model=Sparse,
        step=whole_step,
    ),
    Built(
        "torch.optim.SparseAdam, maximize",
        lambda m: torch.optim.SparseAdam([m.embed.weight], lr=1e-2, maximize=True),
        model=Sparse,
    ),
    single("bitsandbytes.optim.Adam", bitsandbytes("Adam")),
    single("bitsandbytes.optim.AdamW", bitsandbytes("AdamW")),
    single("bitsandbytes.optim.AdamW, 8 bits", bitsandbytes("AdamW", optim_bits=8)),
    single("bitsandbytes.optim.Adam8bit", bitsandbytes("Adam8bit")),
    single("bitsandbytes.optim.AdamW8bit", bitsandbytes("AdamW8bit")),
    single("bitsandbytes.optim.AdamW32bit", bitsandbytes("AdamW32bit")),
    single("bitsandbytes.optim.PagedAdamW", bitsandbytes("PagedAdamW")),
    single("bitsandbytes.optim.PagedAdamW8bit", bitsandbytes("PagedAdamW8bit")),
    single("torchao.optim.AdamW8bit", torchao("AdamW8bit")),
    single("torchao.optim.AdamW4bit", torchao("AdamW4bit")),
    single("torchao.optim.AdamWFp8", torchao("AdamWFp8")),
    single("torchao.optim.Adam8bit", torchao("Adam8bit")),
    single("torchao.optim.Adam8bit, amsgrad", torchao("Adam8bit", amsgrad=True), None),
)
