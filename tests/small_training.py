"""A small training in plain PyTorch, with or without a doctor, for the tests of the live half."""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import optdoctor
from optdoctor.live.doctor import Doctor
from optdoctor.optimizers import innermost

WORDS, WIDTH = 11, 8


class Net(nn.Module):
    """Embedding, dropout, norm, block and head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH)])
        self.norm = nn.LayerNorm(WIDTH)
        self.dropout = nn.Dropout(0.25)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.norm(self.dropout(self.layers[0](self.embed(words)).relu())))


def seed(number: int = 0) -> None:
    """Seeds every generator that a training draws from."""
    torch.manual_seed(number)
    np.random.seed(number)  # noqa: NPY002 (the global generator is what must stay untouched)
    random.seed(number)


def net(dtype: torch.dtype = torch.float32) -> Net:
    seed()
    return Net().to(dtype)


def batches(number: int, first: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """Words and the words that follow them: each is its neighbour's successor."""
    for i in range(first, first + number):
        words = torch.from_numpy(np.random.default_rng(i).integers(0, WORDS, 16))
        yield words, (words + 1) % WORDS


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]).float(), batch[1])


def train(
    model: nn.Module, optimizer: Any, steps: int, doctor: Doctor | None = None, first: int = 0
) -> list[float]:
    """Plain steps; the loss of each is logged before it is made."""
    losses = []
    for batch in batches(steps, first):
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        if doctor is not None:
            doctor.log(loss=loss)
        optimizer.step()
        losses.append(loss.item())
    return losses


def quiet(model: nn.Module, optimizer: Any, out: Path | None = None, **options: Any) -> Doctor:
    """A doctor that says nothing and samples every update unless told otherwise."""
    return optdoctor.watch(model, optimizer, out=out, **{"interval": 1, "sinks": (), **options})


def fingerprint(model: nn.Module, optimizers: Any) -> dict[str, Any]:
    """Every bit that a doctor must leave alone: weights, gradients, optimizer state, generators."""
    parts: dict[str, Any] = {}
    for name, parameter in model.named_parameters():
        parts[f"weight {name}"] = bits(parameter)
        parts[f"gradient {name}"] = None if parameter.grad is None else bits(parameter.grad)
    for i, optimizer in enumerate(optimizers if isinstance(optimizers, list) else [optimizers]):
        parts |= {f"optimizer {i} {path}": v for path, v in leaves(optimizer.state_dict())}
        parts[f"optimizer {i} entries"] = len(innermost(optimizer).state)
    parts["torch generator"] = bits(torch.get_rng_state())
    parts["numpy generator"] = repr(np.random.get_state())  # noqa: NPY002
    parts["python generator"] = random.getstate()
    return parts


def bits(tensor: Tensor) -> tuple[Any, ...]:
    """dtype, shape and bytes: NaN equals NaN, 0 differs from -0."""
    tensor = tensor.detach()
    if hasattr(tensor, "__tensor_flatten__"):  # as of quantized state: made of other tensors
        return tuple(bits(getattr(tensor, name)) for name in tensor.__tensor_flatten__()[0])
    layout = tensor.layout
    plain = (tensor if layout == torch.strided else tensor.to_dense()).contiguous().reshape(-1)
    plain = torch.view_as_real(plain) if plain.is_complex() else plain
    content = plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
    return layout, tensor.dtype, tuple(tensor.shape), content


def leaves(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(path, value) of everything in nested dictionaries and lists, empty ones included."""
    if isinstance(node, Mapping):
        children: Iterable[tuple[Any, Any]] = node.items()
    elif isinstance(node, list | tuple):
        children = enumerate(node)
    elif isinstance(node, Tensor):
        yield path, bits(node)
        return
    elif type(node).__module__.partition(".")[0] == "pytorch_optimizer":  # a helper in the state
        children = vars(node).items()
    else:
        yield path, node
        return
    children = list(children)
    yield f"{path}/", len(children)
    for key, child in children:
        yield from leaves(child, f"{path}/{key}")


def failures(doctor: Doctor) -> list[str]:
    """What the doctor says that it stepped back from."""
    return [e.text for run in doctor.runs for e in run.trace.events if e.kind == "doctor-failed"]


def events(doctor: Doctor, run: int = 0) -> list[str]:
    return [event.kind for event in doctor.runs[run].trace.events]


def rows(doctor: Doctor, channel: str, run: int = 0) -> dict[int, Any]:
    """{step: value or [P]} of one channel."""
    series = doctor.runs[run].trace.series.get(channel)
    return {} if series is None else dict(zip(series.steps.tolist(), series.values, strict=True))


Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
