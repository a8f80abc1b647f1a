"""The hot path of a sample, up to its transfer, on a device that has no numbers to read."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from optimizers.built import Built, every
from small_training import batches, loss_of, net
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.utils._pytree import tree_map_only

from optdoctor.live import collector, shares
from optdoctor.live.collector import Collector
from optdoctor.live.digest import SUMMED, Doubts
from optdoctor.live.sums import Sheet
from optdoctor.live.tensors import track
from optdoctor.live.units import SAMPLED, STACKED
from optdoctor.optimizers import innermost, layers, probe_of

META = torch.device("meta")


def to_meta(outer: Any, *, counts: bool) -> None:
    """Moves an optimizer with all that it holds; `counts` says whether steps and rates too, which
    torch itself keeps on the host unless it is asked to capture graphs."""
    twins: dict[int, Tensor] = {}

    def moved(held: Any) -> Any:
        if not isinstance(held, dict):
            return tree_map_only(Tensor, lambda tensor: tensor.to(META), held)
        return {k: v if k == "step" and not counts else moved(v) for k, v in held.items()}

    def twin(parameter: Tensor) -> Tensor:
        if parameter.device != META and id(parameter) not in twins:
            like = nn.Parameter(parameter.detach().to(META), parameter.requires_grad)
            like.grad = torch.empty_like(like)
            twins[id(parameter)] = like
        return twins.get(id(parameter), parameter)

    for one in layers(outer):
        for group in one.param_groups:
            parameters = [twin(p) for p in group.pop("params")]
            group.update(moved(dict(group)) if counts else {}, params=parameters)
        state = {
            twin(p) if isinstance(p, Tensor) else p: moved(held) for p, held in one.state.items()
        }
        one.state = defaultdict(dict, state)


def sheets(optimizer: Optimizer, *, room: int | None = None) -> list[Sheet]:
    """What the hot path measures: of a sample that left nothing open, and of one that doubts all
    that the one before it told."""
    probe = probe_of(optimizer)
    tracked = track(nn.Module(), optimizer, probe)
    watched = Collector(optimizer, probe, tracked, room)
    everyone = range(len(tracked.tensors))
    all_of_them = frozenset(everyone)
    every_doubt = Doubts(
        {of: list(everyone) for of in SUMMED}, all_of_them, all_of_them, all_of_them
    )
    found = []
    for doubts in (Doubts(), every_doubt):
        watched.before_clip(everyone)
        watched.before()
        with torch.no_grad():
            found.append(watched._measure(doubts))
        for device in found[-1].devices():
            found[-1].packed(device)
        if watched._rule.gaps.counted:
            raise RuntimeError(f"left out of the sample: {list(watched._rule.gaps.counted)}")
    return found


def names_of(sheet: Sheet) -> set[str]:
    """Of its statistics."""
    return {name for entries in sheet.entries.values() for name in entries}


def trained(built: Built) -> Any:
    """An optimizer after two steps on the host."""
    if not built.available:
        pytest.skip(f"{built.package} is not installed")
    torch.manual_seed(0)
    model = (built.model() if built.model else net()).to(built.dtype)
    outer = built.make(model)
    for batch in batches(2):
        built.step(outer, lambda batch=batch: loss_of(model, batch))
    return outer


@pytest.mark.parametrize("built", every(), ids=lambda built: built.name)
def test_no_optimizer_makes_the_hot_path_read_a_number(built: Built) -> None:
    outer = trained(built)
    optimizer = innermost(outer)
    for counts in (False, True) if built.package == "torch" else (True,):
        to_meta(outer, counts=counts)
        quiet, doubting = sheets(optimizer)
        wanted = {"raw squares", "param squares", "update squares", "grad high"}
        assert wanted <= names_of(quiet)
        assert {"param bad", "update bad", "grad bad"} <= names_of(doubting)
        for sheet in (quiet, doubting):
            assert list(sheet.devices()) == [META], "all numbers cross in one transfer"


def large(make: Callable[[Sequence[nn.Parameter]], Optimizer], **options: Any) -> Optimizer:
    """Of tensors stacked and big, with members that lack a gradient or a state."""
    sizes = [(3, 5)] * 4 + [(SAMPLED + 1,)] * 3 + [(STACKED + 1,), (300, 1000), ()]
    parameters = [nn.Parameter(torch.zeros(size, **options)) for size in sizes]
    optimizer = make(parameters)
    for parameter in parameters[1:]:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    parameters[2].grad, parameters[0].grad = None, torch.ones_like(parameters[0])
    return optimizer


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64], ids=str)
@pytest.mark.parametrize("room", [None, 100_000], ids=["whole", "in turns"])
@pytest.mark.parametrize("on_meta", [True, False], ids=["stepped there", "moved"])
def test_neither_sizes_nor_what_is_missing_make_it_read(
    dtype: torch.dtype, room: int | None, on_meta: bool
) -> None:
    device = META if on_meta else torch.device("cpu")
    optimizer = large(
        lambda p: AdamW(p, lr=1e-3, foreach=False, amsgrad=True), dtype=dtype, device=device
    )
    if not on_meta:
        to_meta(optimizer, counts=True)
        parameters = optimizer.param_groups[0]["params"]
        parameters[2].grad = None
    for sheet in sheets(optimizer, room=room):
        assert META in sheet.devices()


READS: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda t: t.sum().item(),
    "bool": lambda t: bool(t.sum()),
    "float": lambda t: float(t.sum()),
    "tolist": lambda t: t.tolist(),
    "numpy": lambda t: t.numpy(),
    "cpu": lambda t: t.cpu(),
    "mask": lambda t: t[t > 0],
    "nonzero": lambda t: t.nonzero(),
}


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("place", ["of_rates", "of_second", "unchanged", "realized"])
def test_a_read_in_the_hot_path_would_show(
    read: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimizer = large(lambda p: AdamW(p, lr=1e-3, foreach=False))
    to_meta(optimizer, counts=True)
    real = getattr(shares, place)

    def reading(*args: Any, **options: Any) -> Any:
        answer = real(*args, **options)
        for tensor in answer.values() if isinstance(answer, dict) else [answer]:
            READS[read](tensor)
        return answer

    sheets(optimizer)
    monkeypatch.setattr(collector.shares, place, reading)
    with pytest.raises((RuntimeError, NotImplementedError, TypeError)):
        sheets(optimizer)
