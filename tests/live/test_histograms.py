"""Histograms of a sample against numpy's, of the same elements between the same edges."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from small_training import Make
from torch import nn
from torch.optim import SGD, AdamW

from optdoctor.live import histograms
from optdoctor.live.collector import Collector
from optdoctor.live.histograms import BINS, binned
from optdoctor.live.tensors import track
from optdoctor.optimizers import probe_of
from optdoctor.sinks import Histogram
from optdoctor.trace import SAMPLED

Elements = NDArray[np.float64]
KINDS: dict[str, Make] = {
    "AdamW": lambda ps: AdamW(ps, lr=3e-3),
    "SGD": lambda ps: SGD(ps, lr=0.1, momentum=0.9),
}


def must_equal_numpy(histogram: Histogram, elements: Elements) -> None:
    finite = elements[np.isfinite(elements)]
    assert histogram.left_out == len(elements) - len(finite)
    assert (histogram.edges.dtype, histogram.edges.shape) == (np.float64, (BINS + 1,))
    assert (histogram.counts.dtype, histogram.counts.shape) == (np.int64, (BINS,))
    assert (np.diff(histogram.edges) > 0).all()
    if finite.min() < finite.max():
        assert (histogram.edges[0], histogram.edges[-1]) == (finite.min(), finite.max())
    counts, _ = np.histogram(finite, histogram.edges)
    assert histogram.counts.tolist() == counts.tolist()


def chosen(collector: Collector, number: int, tensor: torch.Tensor) -> Elements:
    """The collector's sample of it, in float64."""
    (index,) = (unit.index for unit in collector._watched.units if number in unit.positions)
    flat = tensor.detach().double().reshape(-1).numpy()
    return flat if index is None else flat[index[0].numpy()]


@pytest.mark.parametrize("broken", [False, True], ids=["finite", "with NaN and infinity"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_every_histogram_equals_its_twin(kind: str, dtype: torch.dtype, broken: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(70, 70), nn.LayerNorm(70)).to(dtype)
    optimizer = KINDS[kind](list(model.parameters()))
    probe = probe_of(optimizer)
    collector = Collector(optimizer, probe, track(model, optimizer, probe))
    parameters = dict(model.named_parameters())
    assert parameters["0.weight"].numel() > SAMPLED
    for step in range(3):
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter) * 10.0 ** (-step)
            parameter.grad[:3] = 0  # of v they make zeros, which have no logarithm
        if broken and step == 2:
            parameters["0.weight"].grad[10:20] = torch.nan
            parameters["1.bias"].grad[-1] = -torch.inf
        old = {name: p.detach().clone() for name, p in parameters.items()}
        collector.before()
        optimizer.step()
        collector.after(step + 1)
        found = collector.histograms()
    quantities = {"weight", "gradient", "update", "moment1"}
    assert found.keys() == quantities | ({"log10_moment2"} if kind == "AdamW" else set())
    for number, (name, parameter) in enumerate(parameters.items()):
        new, before = (chosen(collector, number, t) for t in (parameter, old[name]))
        must_equal_numpy(found["weight"][name], new)
        must_equal_numpy(found["gradient"][name], chosen(collector, number, parameter.grad))
        with np.errstate(invalid="ignore"):
            moved = (new.astype(np.float32) - before.astype(np.float32)).astype(np.float64)
        must_equal_numpy(found["update"][name], moved)
        if kind == "AdamW":
            state = optimizer.state[parameter]
            must_equal_numpy(found["moment1"][name], chosen(collector, number, state["exp_avg"]))
            with np.errstate(divide="ignore"):
                v = np.log10(chosen(collector, number, state["exp_avg_sq"]))
            assert np.isneginf(v).any(), "zeros are to be left out"
            must_equal_numpy(found["log10_moment2"][name], v)


def random_tensors() -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    for size in (1, 2, 3, 64, 65, 1000, 4096):
        for exponent in (-30, -3, 0, 20):
            for shift in (0.0, 1.0, -1e3):
                spread = torch.randn(size, generator=generator) * 10.0**exponent
                yield spread + shift
                yield spread.double() + shift
        yield torch.randint(-3, 4, (size,), generator=generator).float()  # on the very edges


def test_any_finite_tensor_is_binned_as_numpy_does() -> None:
    tensors = list(random_tensors())
    found = binned(("q", str(i), t) for i, t in enumerate(tensors))["q"]
    for i, tensor in enumerate(tensors):
        must_equal_numpy(found[str(i)], tensor.double().numpy())


def test_elements_on_the_very_edges_and_beside_them_are_binned_as_numpy_does() -> None:
    for number in range(20):
        ends = torch.from_numpy(np.random.default_rng(number).standard_normal(2) + number)
        edges = binned([("q", "t", ends)])["q"]["t"].edges
        beside = [np.nextafter(edges, np.inf)[:-1], np.nextafter(edges, -np.inf)[1:]]
        elements = np.concatenate([edges, *beside])
        must_equal_numpy(binned([("q", "t", torch.from_numpy(elements))])["q"]["t"], elements)


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = list(random_tensors())
    whole = binned(("q", str(i), t) for i, t in enumerate(tensors))["q"]
    monkeypatch.setattr(histograms, "BLOCK", 5000)
    parts = binned(("q", str(i), t) for i, t in enumerate(tensors))["q"]
    assert whole.keys() == parts.keys()
    for name, histogram in whole.items():
        np.testing.assert_array_equal(histogram.edges, parts[name].edges)
        np.testing.assert_array_equal(histogram.counts, parts[name].counts)


@pytest.mark.parametrize("value", [0.0, 1.0, -7e-9, 3e38, 5e-324])
def test_a_constant_stands_in_one_bin_within_its_edges(value: float) -> None:
    histogram = binned([("q", "t", torch.full((9,), value, dtype=torch.float64))])["q"]["t"]
    assert histogram.counts.max() == histogram.counts.sum() == 9
    at = int(histogram.counts.argmax())
    assert histogram.edges[at] <= value < histogram.edges[at + 1]
    assert (np.diff(histogram.edges) > 0).all()


def test_float64_neighbours_count_as_constant() -> None:
    pair = torch.tensor([1.0, np.nextafter(1.0, 2.0)], dtype=torch.float64)
    assert binned([("q", "t", pair)])["q"]["t"].counts.sum() == 2


@pytest.mark.parametrize("nothing", [[], [torch.nan], [torch.inf, -torch.inf]])
def test_without_a_finite_element_there_is_no_histogram(nothing: list[float]) -> None:
    assert binned([("q", "t", torch.tensor(nothing))]) == {}


def test_the_largest_float64_numbers_are_binned() -> None:
    huge = torch.tensor([-1.7e308, 0.0, 1.7e308], dtype=torch.float64)
    assert binned([("q", "t", huge)])["q"]["t"].counts.sum() == 3


def test_all_tensors_come_in_one_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    transfers = []
    real = torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: transfers.append(1) or real(self))
    for name in ("item", "tolist", "__bool__", "__float__", "__int__", "nonzero"):
        monkeypatch.setattr(torch.Tensor, name, lambda self: pytest.fail("waits for the device"))
    found = binned(("q", str(i), torch.ones(i + 1)) for i in range(50))
    assert len(found["q"]) == 50
    assert transfers == [1]


def test_what_is_frozen_or_of_no_optimizer_has_no_histogram() -> None:
    model = nn.ModuleDict({name: nn.Linear(2, 2, bias=False) for name in ("a", "b", "c")})
    model["b"].requires_grad_(False)
    optimizer = AdamW([*model["a"].parameters(), *model["b"].parameters()])
    probe = probe_of(optimizer)
    collector = Collector(optimizer, probe, track(model, optimizer, probe))
    model["a"].weight.grad = torch.ones(2, 2)
    collector.before()
    optimizer.step()
    collector.after(1)
    assert collector.histograms()["weight"].keys() == {"a.weight"}
