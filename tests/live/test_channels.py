"""Every channel of a sample against its twin, on random models, dtypes, layouts and strides."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import twin
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lion_pytorch import Lion
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import SGD, Adafactor, Adagrad, Adam, Adamax, AdamW, Optimizer, RMSprop

from optdoctor.live import shares
from optdoctor.live.collector import FOLLOWED, TENSOR_CHANNELS, Collector
from optdoctor.live.tensors import track
from optdoctor.live.units import chosen
from optdoctor.optimizers import probe_of
from optdoctor.sinks import Histogram
from optdoctor.trace import SAMPLED

EXACT = 1e-6
ROUNDED = 5e-6
"""Of means and ratios that float32 arithmetic makes of float32 moments."""
LEAST = 2e-45
"""Half of the smallest float32 number: samples are told in float32."""
COUNTS = ("grad_nonfinite", "update_nonfinite", "grad_absmax", "moment2_min", "moment2_max")
"""Counts and extremes: identical."""
ROUNDING = ("update_realized", "effective_lr", "moment_ratio")

Groups = list[dict[str, Any]]


@dataclass(frozen=True)
class Kind:
    """An optimizer under some settings."""

    make: Callable[[Groups], Optimizer]
    betas: bool = False
    strides: bool = True
    """Whether its step reads gradients by their strides: fused ones on CPU do not."""
    sparse: bool = False
    complex: bool = False
    largest: float = 1e30
    """Of its weights: beyond, norms that its own rule takes are infinite."""
    empty: bool = True
    """Whether its step survives a tensor without elements."""


KINDS: dict[str, Kind] = {
    "SGD": Kind(lambda g: SGD(g, lr=0.1), complex=True, sparse=True),
    "SGD momentum": Kind(
        lambda g: SGD(g, lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True), complex=True
    ),
    "AdamW foreach": Kind(lambda g: AdamW(g, lr=3e-3, foreach=True), betas=True, complex=True),
    "AdamW one by one": Kind(lambda g: AdamW(g, lr=3e-3, foreach=False), betas=True, complex=True),
    "AdamW fused": Kind(lambda g: AdamW(g, lr=3e-3, fused=True), betas=True, strides=False),
    "AdamW tensor rate": Kind(
        lambda g: AdamW(g, lr=torch.tensor(3e-3), eps=1e-3, foreach=False), betas=True
    ),
    "Adam amsgrad": Kind(
        lambda g: Adam(g, lr=0.01, betas=(0.5, 0.6), amsgrad=True, weight_decay=0.1), betas=True
    ),
    "RMSprop": Kind(lambda g: RMSprop(g, lr=1e-3, eps=1e-4)),
    "RMSprop momentum": Kind(lambda g: RMSprop(g, lr=1e-3, momentum=0.9)),
    "Adagrad": Kind(lambda g: Adagrad(g, lr=0.05, lr_decay=0.1), sparse=True),
    "Adamax": Kind(lambda g: Adamax(g, lr=1e-3), betas=True),
    "Adafactor": Kind(lambda g: Adafactor(g, lr=1e-2, weight_decay=0.1), largest=1.0, empty=False),
    "Lion": Kind(lambda g: Lion(g, lr=1e-3, weight_decay=0.1), betas=True),
}

SMALL = ((), (1,), (3,), (0,), (4, 5), (2, 3, 4, 2), (5, 7))
MIDDLE = ((1025,), (64, 64), (4097,), (40, 3, 5, 5), (31, 64))
LARGE = ((256, 256), (65537,), (3, 47001), (131072,), (512, 257))
MAGNITUDES = (1e-30, 1e-24, 1e-12, 1e-4, 1.0, 1e4, 1e20, 1e30)
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Spec:
    """One tensor, and what its gradients look like."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    group: int
    layout: str
    """contiguous, transposed or channels_last"""
    weight: str
    """normal or constant"""
    weight_size: float
    gradients: tuple[tuple[str, str, float], ...]
    """For each step (elements, layout, size)"""


def specs(shapes: tuple[tuple[int, ...], ...], kind: Kind, steps: int) -> st.SearchStrategy[Spec]:
    """Of tensors that this optimizer takes."""
    layouts = ["contiguous", "transposed", "expanded"] if kind.strides else ["contiguous"]
    gradient = st.tuples(
        st.sampled_from(["normal", "normal", "zeros", "constant", "nothing", "NaN", "inf", "none"]),
        st.sampled_from([*layouts, *(["sparse"] if kind.sparse else [])]),
        st.sampled_from(MAGNITUDES),
    )
    return st.builds(
        Spec,
        st.sampled_from([s for s in shapes if kind.empty or math.prod(s)]),
        st.sampled_from((*FLOATS, *([torch.complex64] if kind.complex else []))),
        st.integers(0, 1),
        st.sampled_from(
            ["contiguous", "transposed", "channels_last"] if kind.strides else ["contiguous"]
        ),
        st.sampled_from(["normal", "constant"]),
        st.sampled_from([s for s in (1e-24, 1e-3, 1.0, 1.0, 1e20) if s <= kind.largest]),
        st.tuples(*[gradient] * steps),
    )


def elements(what: str, shape: tuple[int, ...], size: float, like: torch.dtype, g: Any) -> Tensor:
    """Random elements of a dtype, within its range."""
    real = like.to_real()
    limits = torch.finfo(real)
    size = min(size, limits.max / 1e3)
    values = torch.randn(shape, dtype=torch.float64, generator=g) * size
    if what == "constant":
        values = torch.full(shape, size / 3, dtype=torch.float64)
    elif what == "zeros":
        values *= torch.rand(shape, generator=g) < 0.5
    elif what == "nothing":
        values = torch.zeros(shape, dtype=torch.float64)
    elif what in ("NaN", "inf"):
        wrong = torch.rand(shape, generator=g) < 0.2
        values = torch.where(wrong, torch.nan if what == "NaN" else -torch.inf, values)
    if like.is_complex:
        return torch.complex(values, values.flip(0) if shape else values * 0.5).to(like)
    return values.to(like)


def laid(tensor: Tensor, layout: str) -> Tensor:
    """The same elements in another order of memory."""
    if layout == "transposed" and tensor.dim() >= 2:
        return tensor.transpose(0, 1).contiguous().transpose(0, 1)
    if layout == "channels_last" and tensor.dim() == 4:
        return tensor.contiguous(memory_format=torch.channels_last)
    if layout == "expanded" and tensor.dim() and tensor.shape[0]:
        return tensor[:1].expand(tensor.shape)
    if layout == "sparse" and tensor.dim() == 2:
        return tensor.to_sparse(1)
    return tensor


class Training:
    """A model of some tensors, its optimizer and collector."""

    def __init__(self, kind: str, several: list[Spec], seed: int, room: int | None = None) -> None:
        self.specs, self.generator = several, torch.Generator().manual_seed(seed)
        self.model = nn.Module()
        self.parameters = []
        for i, spec in enumerate(several):
            values = elements(spec.weight, spec.shape, spec.weight_size, spec.dtype, self.generator)
            parameter = nn.Parameter(laid(values, spec.layout))
            self.model.register_parameter(f"w{i}", parameter)
            self.parameters.append(parameter)
        of = [
            [p for p, s in zip(self.parameters, several, strict=True) if s.group == i]
            for i in (0, 1)
        ]
        own: dict[str, Any] = {"betas": (0.8, 0.95)} if KINDS[kind].betas else {}
        groups: Groups = [{"params": of[0]}, {"params": of[1], "lr": 0.02, **own}]
        if kind == "AdamW tensor rate":
            groups[1]["lr"] = torch.tensor(0.02)
        self.optimizer = KINDS[kind].make([group for group in groups if group["params"]])
        probe = probe_of(self.optimizer)
        self.tracked = track(self.model, self.optimizer, probe)
        self.collector = Collector(self.optimizer, probe, self.tracked, room)
        self.watched = twin.Watched(self.optimizer)

    def step(self, number: int) -> tuple[dict[str, dict[int, float]], dict[int, twin.Around]]:
        """(the sample: {channel: {id: value}}, what happened)"""
        for parameter, spec in zip(self.parameters, self.specs, strict=True):
            what, layout, size = spec.gradients[number]
            parameter.grad = None
            if what != "none" and torch.rand((), generator=self.generator) > 0.1:
                values = elements(what, spec.shape, size, spec.dtype, self.generator)
                parameter.grad = laid(values, layout)
        self.watched.before()
        self.collector.before()
        self.optimizer.step()
        arounds = self.watched.arounds()
        (reading,) = self.collector.after(number)
        self.norm = reading.values.get("grad_norm_used", math.nan)
        ids = [id(p) for p in self.tracked.parameters]
        return {
            name: dict(zip(ids, row.tolist(), strict=True)) for name, row in reading.tensors.items()
        }, arounds


def differences(training: Training, number: int) -> Iterator[str]:
    """What the sample of one step says otherwise than the twin."""
    with np.errstate(all="ignore"):
        sample, arounds = training.step(number)
        gradients = [a.gradient for a in arounds.values() if a.gradient is not None]
        norm = norm_of(gradients)
        if not agree("grad_norm_used", float(np.float32(training.norm)), twin.Said(norm)):
            yield f"grad_norm_used: {training.norm} instead of {norm}"
        for parameter, spec in zip(training.parameters, training.specs, strict=True):
            if not parameter.numel():
                continue
            around = arounds[id(parameter)]
            wanted = twin.twin(around, counted=training.collector._host)
            finite_before = np.isfinite(around.before.weight).all()
            assert wanted.keys() <= set(TENSOR_CHANNELS)
            for channel in TENSOR_CHANNELS:
                value = sample.get(channel, {}).get(id(parameter), math.nan)
                said = wanted.get(channel, twin.Said(math.nan))
                if channel == "decay_unchanged" and not finite_before:
                    continue  # an infinite weight stays, and nobody asks
                if not agree(channel, value, said):
                    yield f"{channel} of {spec}: {value!r} instead of {said}"


def norm_of(gradients: list[NDArray[np.float64]]) -> float:
    """Over finite elements; NaN where no tensor has one."""
    several = [kept for g in gradients if (kept := twin.finite(g)).size]
    if not several:
        return math.nan
    every = np.concatenate(several)
    return twin.root_mean_square(every) * math.sqrt(every.size)


def agree(channel: str, value: float, said: twin.Said) -> bool:
    """Whether a sample may say this."""
    wanted = float(np.float32(said.value))
    if math.isinf(wanted) or (wanted == 0 and said.value != 0):
        wanted = math.nan  # more than the record can hold, or less
    if math.isinf(said.error):
        return True
    if math.isnan(wanted) or math.isnan(value):
        return math.isnan(wanted) and math.isnan(value)
    if wanted == value:
        return True
    if channel in COUNTS:
        return False
    relative = ROUNDED if channel in ROUNDING else EXACT
    return abs(value - wanted) <= relative * abs(wanted) + LEAST + 4 * said.error


def many(examples: int) -> settings:
    """The same ones in every run: a share may leave its four standard errors once in 15 000."""
    return settings(
        deadline=None,
        derandomize=True,
        max_examples=examples,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


def trainings(
    kind: str, shapes: tuple[tuple[int, ...], ...], most: int, copies: int
) -> st.SearchStrategy[Training]:
    """Of some tensors, each with as many others alike."""
    return st.builds(
        lambda several, alike, seed: Training(kind, several * alike, seed),
        st.lists(specs(shapes, KINDS[kind], FOLLOWED), min_size=1, max_size=most),
        st.integers(1, copies),
        st.integers(0, 2**32),
    )


each_kind = pytest.mark.parametrize("kind", KINDS)


@each_kind
@many(60)
@given(data=st.data())
def test_every_channel_of_small_tensors_equals_its_twin(kind: str, data: st.DataObject) -> None:
    training = data.draw(trainings(kind, SMALL, most=4, copies=3))
    for number in range(FOLLOWED):
        assert list(differences(training, number)) == []


@each_kind
@many(20)
@given(data=st.data())
def test_every_channel_of_sampled_tensors_is_near_its_twin(kind: str, data: st.DataObject) -> None:
    training = data.draw(trainings(kind, MIDDLE, most=3, copies=2))
    for number in range(FOLLOWED):
        assert list(differences(training, number)) == []


@pytest.mark.slow
@each_kind
@many(6)
@given(data=st.data())
def test_every_channel_of_big_tensors_is_near_its_twin(kind: str, data: st.DataObject) -> None:
    training = data.draw(trainings(kind, LARGE, most=2, copies=1))
    for number in range(2):
        assert list(differences(training, number)) == []


def plain_spec(shape: tuple[int, ...], *what: str, size: float = 1.0, **own: Any) -> Spec:
    """An ordinary tensor; for each step, what its gradients are."""
    chosen = {"dtype": torch.float32, "group": 0, "layout": "contiguous", "weight": "normal"}
    gradients = tuple((one, "contiguous", size) for one in what)
    return Spec(shape=shape, weight_size=1.0, gradients=gradients, **{**chosen, **own})


@each_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_on_a_device_the_same_channels_are_told(kind: str, dtype: torch.dtype) -> None:
    several = [
        plain_spec(shape, "normal", "normal", "normal", size=size, dtype=dtype, group=group)
        for group, size in ((0, 1.0), (1, 1e-2))
        for shape in ((), (4, 5), (4, 5), (64, 64), (4097,), (65537,), (3, 47001))
    ]
    training = Training(kind, several, 0)
    training.collector._host = False  # its numbers are then sent, and looked at one sample later
    for number in range(3):
        assert list(differences(training, number)) == []


@pytest.mark.parametrize("what", ["NaN", "inf", "zeros", "nothing"])
@pytest.mark.parametrize("size", [1.0, 1e-24])
def test_on_a_device_the_next_sample_takes_care_of_what_one_left_open(
    what: str, size: float
) -> None:
    several = [plain_spec(shape, what, what, size=size) for shape in ((7,), (7,), (65537,))]
    training = Training("SGD momentum", several, 1)
    training.collector._host = False
    told_at_once = what == "nothing" or (what == "zeros" and size == 1.0)
    assert (list(differences(training, 0)) == []) is told_at_once
    assert [d for d in differences(training, 1) if "update_" not in d] == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(64, 64), (65536,), (131072,), (3, 47001), (1024, 512)], ids=str)
def test_elements_that_are_all_alike_add_up_exactly(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    # Added one by one in float32, as torch.dot does, half a million of them lose 1e-4.
    alike = plain_spec(shape, "constant", "constant", weight="constant", dtype=dtype)
    training = Training("SGD momentum", [alike], 0)
    for number in range(2):
        assert list(differences(training, number)) == []


@pytest.mark.parametrize("bad", [0, 1, (1 << 24) - 1, 1 << 24])
def test_counts_are_exact_up_to_two_to_the_24(bad: int) -> None:
    model = nn.Module()
    model.w = nn.Parameter(torch.zeros(1 << 24, dtype=torch.bfloat16))
    model.w.grad = torch.zeros_like(model.w)
    model.w.grad[:bad] = torch.nan
    optimizer = SGD(model.parameters(), lr=1.0)
    probe = probe_of(optimizer)
    collector = Collector(optimizer, probe, track(model, optimizer, probe), None)
    collector.before()
    optimizer.step()
    (reading,) = collector.after(1)
    assert reading.tensors["grad_nonfinite"][0] == bad
    assert reading.tensors["update_nonfinite"][0] == bad


def off_in_rank(elements: NDArray[np.float64], histogram: Histogram) -> float:
    """The largest difference between the share of elements below an edge and that of the sample,
    in standard errors of the latter."""
    finite = np.sort(elements[np.isfinite(elements)])
    true = np.searchsorted(finite, histogram.edges[1:-1]) / len(finite)
    told = np.cumsum(histogram.counts)[:-1] / histogram.counts.sum()
    one = np.sqrt(np.maximum(true * (1 - true), 1 / SAMPLED) / SAMPLED)
    return float((np.abs(told - true) / one).max())


def test_the_error_of_a_median_is_three_percent_at_most() -> None:
    assert 4 * math.sqrt(0.25 / SAMPLED) == pytest.approx(0.032, abs=1e-3)


@pytest.mark.parametrize(
    "shape", [(4097,), (128, 64), (512, 257), (1024, 256), (3, 47001)], ids=str
)
@pytest.mark.parametrize("spread", ["alike", "columns", "rows", "tails"])
def test_quantiles_are_within_four_standard_errors_in_rank(
    spread: str, shape: tuple[int, ...]
) -> None:
    torch.manual_seed(1)
    elements = torch.randn(shape)
    if spread == "columns":
        elements *= 10.0 ** (torch.arange(shape[-1]) % 8 - 4)
    elif spread == "rows":
        elements *= 10.0 ** (torch.arange(shape[0]) % 8 - 4).view(-1, *[1] * (len(shape) - 1))
    elif spread == "tails":
        elements = elements.exp()
    model = nn.Module()
    model.w = nn.Parameter(elements)
    optimizer = AdamW(model.parameters(), lr=1e-3)
    probe = probe_of(optimizer)
    collector = Collector(optimizer, probe, track(model, optimizer, probe), None)
    model.w.grad = elements.detach().flip(0)
    old = twin.flat(model.w)
    collector.before()
    optimizer.step()
    collector.after(1)
    found = {quantity: of["w"] for quantity, of in collector.histograms().items()}
    state = optimizer.state[model.w]
    true = {
        "weight": twin.flat(model.w),
        "gradient": twin.flat(model.w.grad),
        "moment1": twin.flat(state["exp_avg"]),
        "log10_moment2": np.log10(twin.flat(state["exp_avg_sq"])),
        "update": twin.flat(model.w) - old,
    }
    assert found.keys() == true.keys()
    for quantity, elements_of_it in true.items():
        assert off_in_rank(elements_of_it, found[quantity]) <= 4, quantity


@pytest.mark.parametrize("length", [2, 64, 96, 256, 1024])
def test_neither_sample_has_the_period_of_a_matrix(length: int) -> None:
    whole = chosen("w", length * 3 * SAMPLED)
    assert whole is not None
    for places, width in (
        (whole.numpy(), length),
        (shares.thin(torch.arange(SAMPLED).view(1, -1))[0].numpy(), min(length, 256)),
    ):
        counts = np.bincount(places % width, minlength=width)
        wanted = len(places) / width
        assert np.abs(counts - wanted).max() <= 5 * math.sqrt(wanted) + 1, "columns, about equally"


def test_the_rates_of_a_matrix_are_those_of_all_its_columns() -> None:
    model = nn.Module()
    model.w = nn.Parameter(torch.zeros(64, 64))
    optimizer = AdamW(model.parameters(), lr=1e-3)
    probe = probe_of(optimizer)
    collector = Collector(optimizer, probe, track(model, optimizer, probe), None)
    model.w.grad = torch.ones(64, 64) * torch.where(torch.arange(64) % 4 == 0, 1.0, 100.0)
    watched = twin.Watched(optimizer)
    collector.before()
    optimizer.step()
    (reading,) = collector.after(1)
    said = twin.twin(watched.arounds()[id(model.w)])["effective_lr"]
    assert reading.tensors["effective_lr"][0] == pytest.approx(said.value, abs=4 * said.error)
    assert said.error < 0.06 * said.value
