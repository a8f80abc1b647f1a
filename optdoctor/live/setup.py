"""What is known of model and optimizer when watching begins, beyond the table of tensors.

Each fact is a question of its own: one that cannot be answered is left out, and never raises.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from optdoctor.live.sentinel import sight_of
from optdoctor.live.tensors import Tracked, local, main_group
from optdoctor.optimizers import number_of
from optdoctor.trace import Fact

MULTIPLYING = re.compile(r"linear|conv|lstm|gru|rnn|attention", re.I)
"""Classes of modules whose matrices multiply what comes in. What other tensors are at the start, as
tables of features or an image that is optimized, says nothing of what they are to be."""
UNSIZED = frozenset({"norm", "bias", "embedding"})
FEWEST = 64
"""Elements below which a root mean square is no statistic."""
LEAST = 1e-3
"""Root mean square below which weights began near zero on purpose, as the second half of an
adapter does; 1 over the root of a million inputs."""

# fmt: off
POST = frozenset((
    "albert", "bart", "bert", "camembert", "data2vec-text", "deberta", "deberta-v2", "distilbert",
    "electra", "ernie", "flaubert", "longformer", "marian", "mpnet", "roberta", "xlm",
    "xlm-roberta",
))
PRE = frozenset((
    "gemma", "gpt2", "gpt_neox", "gptj", "llama", "m2m_100", "mbart", "mistral", "opt", "pegasus",
    "phi", "qwen2", "qwen3", "t5", "vit", "xglm", "xlm-roberta-xl",
))
# fmt: on
"""Types of models in transformers by what their blocks do if nothing else is set: read off their
outputs in tests/live/test_setup.py."""
BEFORE = ("do_layer_norm_before", "normalize_before", "pre_norm")
"""Settings of a configuration that say it."""


@dataclass(frozen=True, slots=True)
class _Start:
    model: nn.Module
    optimizer: Optimizer
    tracked: Tracked

    @property
    def group(self) -> int:
        """Index of the group with the most trained elements."""
        infos = self.tracked.tensors
        return main_group([t for t in infos if t.trainable] or infos)

    def multiplying(self) -> Iterator[Tensor]:
        """Trained matrices of layers in that group."""
        owners: dict[int, str] = {}
        for module in self.model.modules():
            owners |= dict.fromkeys(
                map(id, module.parameters(recurse=False)), type(module).__name__
            )
        group = self.group
        for parameter, info in zip(self.tracked.parameters, self.tracked.tensors, strict=True):
            if not info.in_optimizer or not info.trainable or info.group != group:
                continue
            if parameter.ndim < 2 or info.num_elements < FEWEST or info.kind in UNSIZED:
                continue
            if MULTIPLYING.search(owners.get(id(parameter), "")):
                yield parameter


def setup_facts(model: nn.Module, optimizer: Optimizer, tracked: Tracked) -> dict[str, Fact]:
    """Run channels that no later moment can tell; those that are not known are left out."""
    start = _Start(model, optimizer, tracked)
    facts: dict[str, Fact] = {}
    for name, ask in _QUESTIONS.items():
        with suppress(Exception):
            answer = ask(start)
            if answer is not None:
                facts[name] = answer
    return facts


def scaler_facts(scaler: Any) -> dict[str, Fact]:
    """Whether a scaler of torch multiplies the loss; nothing of none, which may only not be named,
    nor of one that divides in a way of its own, as that of sharded trainings does."""
    with suppress(Exception):
        own = getattr(type(scaler), "_unscale_grads_", None)
        if own is GradScaler._unscale_grads_:
            return {"scaler": "on" if scaler.is_enabled() else "off"}
    return {}


@torch.no_grad()
def _weights_rms(start: _Start) -> float | None:
    """The median over matrices, in one transfer a device; of shards the part that lies here."""
    by_device: dict[torch.device, list[Tensor]] = defaultdict(list)
    for parameter in start.multiplying():
        part = local(parameter)
        if part.numel() and part.is_floating_point() and part.device.type != "meta":
            wide = part.dtype if part.dtype == torch.float64 else torch.float32
            norm = torch.linalg.vector_norm(part, dtype=wide).double()
            by_device[part.device].append(norm / part.numel() ** 0.5)
    sizes = [size for several in by_device.values() for size in torch.stack(several).tolist()]
    sizes = [size for size in sizes if isfinite(size) and size >= LEAST]
    return median(sizes) if sizes else None


def _peak_lr(start: _Start) -> float | None:
    """`max_lr` is of one-cycle schedules, which set it beside a small `initial_lr`."""
    group = start.optimizer.param_groups[start.group]
    for name in ("max_lr", "initial_lr", "lr"):
        rate = number_of(group.get(name))
        if isfinite(rate):
            return rate
    return None


def _norm_placement(start: _Start) -> str | None:
    """From torch's own blocks, else from the configuration of transformers."""
    blocks = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
    first = {m.norm_first for m in start.model.modules() if isinstance(m, blocks)}
    if first:
        return None if len(first) > 1 else "pre" if first.pop() else "post"
    config = _config(start.model)
    for name in BEFORE:
        before = getattr(config, name, None)
        if isinstance(before, bool):
            return "pre" if before else "post"
    kind = getattr(config, "model_type", None)
    return "post" if kind in POST else "pre" if kind in PRE else None


def _config(model: nn.Module) -> Any:
    """Of the model, or of the one that it wraps."""
    for module in (model, *model.children()):
        config = getattr(module, "config", None)
        if hasattr(config, "model_type"):
            return config
    return None


class SlowNorms:
    """Batch norms whose running statistics are as they were made, 0 and 1, when watching begins:
    others hold what was learned. Which of them the training uses, its first forward pass tells.

    Without a momentum statistics are means over all updates, with one of 0 they are frozen.
    """

    @torch.no_grad()
    def __init__(self, model: nn.Module) -> None:
        self._fresh: list[tuple[_BatchNorm, Tensor, int]] = []
        """(module, its count of batches, how often that was written to), the slowest first."""
        with suppress(Exception):
            norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and _memory(m)]
            norms.sort(key=_memory, reverse=True)
            known, learnt = [], []
            for module in norms:
                count, mean = module.num_batches_tracked, module.running_mean
                if count is not None and mean is not None and not mean.is_meta:
                    known.append((module, count, sight_of(count)[1]))
                    learnt.append(mean.any().to("cpu", non_blocking=True))
            pairs = zip(known, torch.stack(learnt).tolist(), strict=True)
            self._fresh = [one for one, is_learnt in pairs if not is_learnt]

    def facts(self) -> dict[str, Fact]:
        """The memory of the slowest one that has averaged since over what it was given.

        A pass adds 1 to the count, in one write: those that are frozen, or that no pass goes
        through, stand still; and a count of more than was written was loaded with its statistics.
        """
        with suppress(Exception):
            for module, counted, version in self._fresh:
                count = module.num_batches_tracked
                if count is None:
                    continue
                writes = sight_of(count)[1] - (version if count is counted else 0)
                if writes > 0 and 1 <= int(count) <= writes:
                    return {"batchnorm_memory": _memory(module)}
        return {}


def _memory(norm: _BatchNorm) -> float:
    """Batches over which its statistics are averaged; 0 where they are not."""
    momentum = norm.momentum
    if not isinstance(norm.running_mean, Tensor) or not isinstance(momentum, int | float):
        return 0.0
    return 1 / momentum if 0 < momentum <= 1 else 0.0


_QUESTIONS: Mapping[str, Callable[[_Start], Fact]] = {
    "weights_rms": _weights_rms,
    "peak_lr": _peak_lr,
    "norm_placement": _norm_placement,
}
