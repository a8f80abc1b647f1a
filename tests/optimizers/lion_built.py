"""Lion of lion_pytorch, bitsandbytes, pytorch_optimizer and DeepSpeed; Tiger of the third."""

import torch
from torch import nn

from optimizers.built import Built, groups


def lion_pytorch(module: str, model: nn.Module, **settings: object) -> torch.optim.Optimizer:
    import importlib

    made = importlib.import_module(f"lion_pytorch.{module}").Lion
    return made(
        groups(model, betas=(0.5, 0.9)), lr=1e-2, betas=(0.9, 0.7), weight_decay=0.1, **settings
    )


def blockwise(name: str, model: nn.Module, **settings: object) -> torch.optim.Optimizer:
    from bitsandbytes import optim

    made = getattr(optim, name)
    return made(
        groups(model, betas=(0.5, 0.9)), lr=0.1, betas=(0.9, 0.7), weight_decay=0.1, **settings
    )


def optional(name: str, model: nn.Module, **settings: object) -> torch.optim.Optimizer:
    import pytorch_optimizer

    made = getattr(pytorch_optimizer, name)
    return made(groups(model, lr=0.1), lr=1e-2, weight_decay=0.1, **settings)


def deepspeed(model: nn.Module) -> torch.optim.Optimizer:
    """Compiles for minutes where it never ran before."""
    from deepspeed.ops.lion import DeepSpeedCPULion

    return DeepSpeedCPULion(groups(model, betas=(0.5, 0.9)), lr=0.1, weight_decay=0.1)


BUILT = (
    Built(
        "lion_pytorch.Lion",
        lambda m: lion_pytorch("lion_pytorch", m),
        package="lion_pytorch",
    ),
    Built(
        "lion_pytorch.Lion, decoupled_weight_decay",
        lambda m: lion_pytorch("lion_pytorch", m, decoupled_weight_decay=True),
        package="lion_pytorch",
    ),
    Built(
        "lion_pytorch.foreach.Lion",
        lambda m: lion_pytorch("foreach", m),
        package="lion_pytorch",
    ),
    Built(
        "lion_pytorch.cautious_lion.Lion",
        lambda m: lion_pytorch("cautious_lion", m, cautious_factor=0.3),
        package="lion_pytorch",
    ),
    Built(
        "lion_pytorch.cautious_lion.Lion, cautious decay",
        lambda m: lion_pytorch("cautious_lion", m, cautious_wd=True),
        package="lion_pytorch",
    ),
    Built(
        "bitsandbytes.optim.Lion",
        lambda m: blockwise("Lion", m),
        package="bitsandbytes",
        dtype=torch.float32,
    ),
    Built(
        "bitsandbytes.optim.Lion8bit",
        lambda m: blockwise("Lion8bit", m, min_8bit_size=0),
        package="bitsandbytes",
        dtype=torch.float32,
    ),
    Built(
        "pytorch_optimizer.Lion",
        lambda m: optional("Lion", m, betas=(0.9, 0.7)),
        package="pytorch_optimizer",
    ),
    Built(
        "pytorch_optimizer.Lion, coupled decay, centralized, adanorm, maximize",
        lambda m: optional(
            "Lion", m, weight_decouple=False, use_gc=True, adanorm=True, maximize=True
        ),
        package="pytorch_optimizer",
    ),
    Built(
        "pytorch_optimizer.Lion, fixed decay",
        lambda m: optional("Lion", m, fixed_decay=True),
        package="pytorch_optimizer",
    ),
    Built(
        "pytorch_optimizer.Lion, cautious",
        lambda m: optional("Lion", m, cautious=True),
        package="pytorch_optimizer",
    ),
    Built(
        "pytorch_optimizer.Tiger",
        lambda m: optional("Tiger", m, beta=0.7),
        package="pytorch_optimizer",
    ),
    Built(
        "deepspeed.ops.lion.DeepSpeedCPULion",
        deepspeed,
        package="deepspeed",
        dtype=torch.float32,
    ),
)
