"""A look with care: what it says is of the whole tensor, what it takes is not."""

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import AdamW
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from optdoctor.live import shares, sums
from optdoctor.live.collector import Collector
from optdoctor.live.shares import Means
from optdoctor.live.tensors import track
from optdoctor.live.units import CHUNK
from optdoctor.optimizers import probe_of

LENGTHS = (1, 7, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5)
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
ODD = (math.nan, math.inf, -math.inf)


class Largest(TorchDispatchMode):
    """Records how many bytes the largest new memory of an operation has."""

    def __init__(self) -> None:
        super().__init__()
        self.num_bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = {_place(t) for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        answer = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(answer):
            if isinstance(leaf, Tensor) and _place(leaf) not in given:
                self.num_bytes = max(self.num_bytes, leaf.untyped_storage().nbytes())
        return answer


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def largest(of: Callable[[], object]) -> int:
    with Largest() as mode:
        of()
    return mode.num_bytes


def spoilt(length: int, dtype: torch.dtype, odd: int) -> Tensor:
    """With so many elements that are not finite, at both ends and between."""
    torch.manual_seed(length)
    tensor = torch.randn(length).to(dtype)
    places = torch.linspace(0, length - 1, odd).long()
    for i, place in enumerate(places):
        tensor[place] = ODD[i % 3]
    return tensor


def expected(tensor: Tensor) -> dict[str, float]:
    finite = tensor[torch.isfinite(tensor)].double()
    return {
        "squares": float(finite.square().sum()),
        "low": float(finite.min()) if len(finite) else math.inf,
        "high": float(finite.max()) if len(finite) else -math.inf,
        "bad": tensor.numel() - len(finite),
    }


def agree(column: dict[str, Tensor], tensor: Tensor) -> None:
    assert {name: value.shape for name, value in column.items()} == dict.fromkeys(column, (1,))
    told, wanted = {name: value.item() for name, value in column.items()}, expected(tensor)
    assert told.pop("squares") == pytest.approx(wanted.pop("squares"), rel=1e-12)
    assert told == wanted


@pytest.mark.parametrize("odd", [0, 1, 4])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("length", LENGTHS)
def test_it_says_what_the_finite_elements_of_the_whole_tensor_say(
    length: int, dtype: torch.dtype, odd: int
) -> None:
    tensor = spoilt(length, dtype, odd)
    before = tensor.clone()
    agree(sums.careful(tensor), tensor)
    assert torch.equal(tensor.nan_to_num(2, 3, 4), before.nan_to_num(2, 3, 4))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("length", LENGTHS)
def test_of_a_difference_it_says_the_same(length: int, dtype: torch.dtype) -> None:
    new, old = spoilt(length, dtype, 2), torch.randn(length).to(dtype)
    kept = old.clone()
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    agree(sums.careful(new, old), new.to(exact) - old.to(exact))
    assert torch.equal(old, kept)


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_squares_that_float32_cannot_hold_are_told(size: float) -> None:
    tensor = torch.randn(2 * CHUNK + 1) * size
    agree(sums.careful(tensor), tensor)


def moments(length: int, dtype: torch.dtype) -> Means:
    """Of which every share is another, and none is 0."""
    generator = torch.Generator().manual_seed(length)
    limits = torch.finfo(dtype)
    values = [0.0, limits.tiny / 4, 1e-3, limits.max * 0.75, math.inf, math.nan]
    chances = torch.tensor([0.1, 0.05, 0.6, 0.15, 0.03, 0.07])
    picked = torch.multinomial(chances, length, replacement=True, generator=generator)
    second = torch.tensor(values, dtype=dtype)[picked].view(1, -1)
    first = torch.randint(0, 3, (1, length), generator=generator).to(dtype)
    return Means(first, second, second, "full", dtype, 1.0, 1.0, 1e-8, 1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("length", [100, CHUNK, CHUNK + 1, 3 * CHUNK + 5])
def test_shares_are_those_of_the_whole_second_moment(length: int, dtype: torch.dtype) -> None:
    means = moments(length, dtype)
    v, m, limits = means.second, means.first, torch.finfo(dtype)
    assert v is not None
    assert m is not None
    line = shares.line(means)
    assert line is not None
    hits = {
        "moment2_subnormal": (v > 0) & (v < limits.tiny),
        "moment2_saturated": ~(v <= limits.max / 2),
        "moment2_zero": (v == 0) & (m != 0),
        "moment2_below_eps": v.double() < line.double(),
    }
    told = shares.of_second(means)
    assert told.keys() == hits.keys()
    for name, hit in hits.items():
        assert 0 < float(hit.double().mean()) < 1
        assert float(told[name]) == pytest.approx(float(hit.double().mean()), rel=1e-6), name


def test_it_takes_the_memory_of_a_chunk_only() -> None:
    tensor, old = torch.randn(40 * CHUNK), torch.randn(40 * CHUNK)
    assert largest(lambda: tensor + 1) == 4 * 40 * CHUNK
    assert largest(lambda: sums.careful(tensor)) <= 8 * CHUNK
    assert largest(lambda: sums.careful(tensor, old)) <= 8 * CHUNK
    means = moments(40 * CHUNK, torch.bfloat16)
    assert largest(lambda: shares.of_second(means)) <= 4 * CHUNK


LOOKS = {
    "gradient": ("careful", 80 * CHUNK),
    "second moment": ("of_second", 80 * CHUNK),
    "update": ("careful", 2 * CHUNK),
}
"""What looks at how many elements; copies of an update are of one row."""


@pytest.mark.parametrize("spoil", LOOKS)
def test_no_sample_takes_a_copy_of_the_tensor_it_looks_at_with_care(
    spoil: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = nn.ParameterList([nn.Parameter(torch.randn(40, 2 * CHUNK))])
    optimizer = AdamW(model.parameters(), lr=1e-3, fused=True)
    probe = probe_of(optimizer)
    collector = Collector(optimizer, probe, track(model, optimizer, probe), 1 << 20)
    gradient = torch.randn_like(model[0])
    if spoil == "second moment":
        gradient[:3] = 0
    looks = []
    for name, module in (("careful", sums), ("of_second", shares)):
        real = getattr(module, name)

        def seen(*args: Any, real: Any = real, name: str = name) -> Any:
            looks.append((name, tensor_of(args[0]).numel()))
            return real(*args)

        monkeypatch.setattr(module, name, seen)
    model[0].grad = gradient
    for step in (1, 2):
        if spoil == "gradient":
            gradient[1, 1] = math.nan
        looks.clear()
        collector.before()
        optimizer.step()
        if spoil == "update":
            with torch.no_grad():
                model[0][:, 0] = math.nan
        taken = largest(functools.partial(collector.after, step))
        assert taken <= gradient.nbytes / 10, "the memory of a hot sample"
        name, size = LOOKS[spoil]
        assert (name, size) in looks
        collector.forget()


@pytest.mark.parametrize("shape", [(10, 2 * CHUNK), (1, 4 * CHUNK)])
def test_an_update_that_is_not_finite_is_told_of_what_is_kept(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model = nn.ParameterList([nn.Parameter(torch.randn(shape))])
    optimizer = AdamW(model.parameters(), lr=1e-3)
    probe = probe_of(optimizer)
    collector = Collector(optimizer, probe, track(model, optimizer, probe), 1 << 20)
    model[0].grad = torch.randn_like(model[0])
    before = model[0].detach().double()
    collector.before()
    optimizer.step()
    with torch.no_grad():
        model[0][0, :9] = torch.tensor(ODD * 3)
    change = model[0].detach().double() - before
    kept = change.reshape(-1)[::3] if shape[0] == 1 else change[::10]
    finite = kept[torch.isfinite(kept)]
    (reading,) = collector.after(1)
    told = {name: float(row[0]) for name, row in reading.tensors.items()}
    assert told["update_rms"] == pytest.approx(float(finite.square().mean().sqrt()), rel=1e-6)
    assert told["update_nonfinite"] == kept.numel() - finite.numel() > 1


def tensor_of(looked_at: Tensor | Means) -> Tensor:
    tensor = looked_at.second if isinstance(looked_at, Means) else looked_at
    assert tensor is not None
    return tensor
