"""A run as data: channels over steps, facts, tensors, events; and the recorder that builds it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from optdoctor.channels import Axis, channel, is_channel
from optdoctor.store import FloatArray, IntArray, Series, StepStore, TensorStore

Fact: TypeAlias = float | int | str | bool | None

SAMPLED = 4096
"""Elements of a tensor above which shares are those of a sample of so many."""

MIN_PEERS = 3
"""Layers that must have a tensor for their median to tell what is usual."""

Kind = Literal[
    "embedding", "attention", "mlp", "norm", "bias", "head", "conv", "recurrent", "adapter", "other"
]
EventKind = Literal[
    "start",
    "resume",
    "epoch",
    "evaluation",
    "checkpoint",
    "step-skipped",
    "tensors-changed",
    "learning-rate-set",
    "fact-changed",
    "alarm",
    "batch-saved",
    "treatment",
    "undo",
    "doctor-failed",
    "gap",
]


class Undeclared(RuntimeError):
    """A rule read a channel that it did not declare."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Static facts of one tensor."""

    name: str
    shape: tuple[int, ...] = ()
    dtype: str = ""
    state_dtype: str = ""
    """dtype of the second moment, or of the first where there is no other."""
    math_dtype: str = ""
    """dtype in which the optimizer computes its update: float32 where it is fused."""
    kind: Kind = "other"
    """`other` counts as any."""
    layer: str = ""
    """The block it belongs to, "h.3"; "" where there is none."""
    order: int = 0
    """Position in the forward pass."""
    group: int = 0
    in_optimizer: bool = True
    trainable: bool = True
    tied_to: str = ""
    grad_dtype: str = ""
    moment1_dtype: str = ""
    update_sampled: bool = False
    """Whether its update is measured on a fixed slice of it."""
    weight_decay: float = 0.0
    """Of its group, 0 where no optimizer holds it."""
    times_held: int = 1
    """How often the groups of the optimizer list it; 0 where they do not."""
    in_model: bool = True
    """Whether the watched model has it."""
    held_elsewhere: bool = False
    """Whether another optimizer holds it, or something else writes to it while training."""
    reached: Literal["", "yes", "no"] = ""
    """Whether a gradient was seen in it, asked where its setup lets no update move it: trainable in
    no optimizer, another model's, or frozen as all of its optimizer; "" where nobody asked."""

    @property
    def num_elements(self) -> int:
        """Product of the shape."""
        return int(np.prod(self.shape, dtype=np.int64)) if self.shape else 1


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened at one step."""

    step: int
    kind: EventKind
    text: str = ""
    old: Fact = None
    new: Fact = None


@dataclass(frozen=True, slots=True)
class Vitals:
    """One sampled step."""

    step: int
    values: Mapping[str, float] = field(default_factory=dict)
    tensors: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)  # {channel: [P]}


@dataclass(frozen=True, slots=True)
class Reading:
    """What a reader did with a log."""

    names: Mapping[str, str] = field(default_factory=dict)
    """{name in the log: channel or metric that it became, "" where it was dropped}."""
    skipped: tuple[tuple[int, str], ...] = ()
    """Line number, 0 where not known, and beginning of the first lines that held no row."""
    why: str = ""
    """One sentence: why this reader claimed the log."""
    guessed: bool = False
    """Whether what the numbers mean was guessed."""


def declares(declared: frozenset[str], name: str) -> bool:
    """Whether `name` is among the declared channels; "metric:*" declares every metric."""
    return name in declared or f"{name.partition(':')[0]}:*" in declared


class _Declared(Mapping[str, Any]):
    """A mapping that refuses channels outside the declared ones."""

    def __init__(self, inner: Mapping[str, Any], declared: frozenset[str]) -> None:
        self._inner, self._declared = inner, declared

    def __getitem__(self, name: str) -> Any:
        if not declares(self._declared, name) and is_channel(name):
            raise Undeclared(f"{name!r} is neither in needs nor in uses")
        return self._inner[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._inner if declares(self._declared, name))

    def __len__(self) -> int:
        return sum(1 for _ in self)


@dataclass(frozen=True, repr=False)
class Trace:
    """A run of channels and events. Immutable; a channel not measured has no series.

    In [T, P] NaN means not measured at that step: a row may cover only part of P. Statistics are
    over finite elements; counts tell the rest.
    """

    facts: Mapping[str, Fact] = field(default_factory=dict)
    series: Mapping[str, Series] = field(default_factory=dict)
    tensors: tuple[TensorInfo, ...] = ()
    events: tuple[Event, ...] = ()
    origin: str = "live"
    """A path, or "live"."""
    reader: str = ""
    """The format it was read from, "" if live."""
    lines_skipped: int = 0
    """Lines of the log that held no row."""
    reading: Reading | None = None
    """What the reader did; None for a run that was not read from a log."""

    def __repr__(self) -> str:
        first, last = self.steps
        channels = ", ".join(self.series)
        return f"<Trace of {self.origin!r}: steps {first}-{last}, channels {channels or 'none'}>"

    @property
    def steps(self) -> tuple[int, int]:
        """First and last step of any channel; (0, 0) if there is none."""
        kept = [s for s in self.series.values() if s.steps.size]
        if not kept:
            return (0, 0)
        return min(int(s.starts[0]) for s in kept), max(int(s.steps[-1]) for s in kept)

    @property
    def last_sample(self) -> int:
        """Last step at which tensors were looked at, 0 if they never were."""
        rows = (
            int(series.steps[-1])
            for name, series in self.series.items()
            # These are told whenever an alarm asks, or at the end.
            if channel(name).axis is Axis.TENSOR
            and name not in ("first_nonfinite_step", "tensor_replica_distance")
            and series.steps.size
        )
        return max(rows, default=0)

    def has(self, name: str) -> bool:
        """Whether the channel was measured: a fact that is known, or a series with rows.

        "metric:*" was where any metric was.
        """
        if name.endswith(":*"):
            several = [n for n in (*self.facts, *self.series) if n.startswith(name[:-1])]
            return any(self._holds(one) for one in several)
        return self._holds(name)

    def _holds(self, name: str) -> bool:
        if self.facts.get(name) is not None:
            return True
        return name in self.series and self.series[name].steps.size > 0

    def only(self, names: Iterable[str]) -> "Trace":
        """The same trace with every other channel out of reach.

        Raises:
            Undeclared: on reading, for a channel that is not in `names`.
        """
        declared = frozenset(names)
        return replace(
            self, facts=_Declared(self.facts, declared), series=_Declared(self.series, declared)
        )

    def thinned(self, rows: int) -> "Trace":
        """The same trace with at most `rows` rows of each step channel; see `Series.thinned`."""
        series = {name: series.thinned(rows) for name, series in self.series.items()}
        return replace(self, series=series)

    def of_kind(self, kind: Kind) -> NDArray[np.bool_]:
        """[P]: tensors of that kind; `other` counts as any."""
        return np.array([t.kind in (kind, "other") for t in self.tensors], bool)

    def by_layer(self, values: FloatArray) -> dict[str, FloatArray]:
        """{layer: the values of its tensors}, in order of first appearance."""
        layers = list(dict.fromkeys(t.layer for t in self.tensors))
        which = np.array([layers.index(t.layer) for t in self.tensors], int)
        return {layer: values[which == i] for i, layer in enumerate(layers)}

    def beside_peers(self, values: FloatArray) -> NDArray[np.float64]:
        """[P]: each value over the median of the same tensor in all layers.

        NaN outside of layers, where fewer than `MIN_PEERS` layers have that tensor, and where the
        median is 0.
        """
        peers: dict[str, list[int]] = {}
        for i, tensor in enumerate(self.tensors):
            if tensor.layer and np.isfinite(values[i]):
                stack = tensor.layer.rstrip("0123456789")
                peers.setdefault(tensor.name.replace(tensor.layer, stack), []).append(i)
        ratios = np.full(len(self.tensors), np.nan)
        for several in peers.values():
            if len(several) >= MIN_PEERS and (median := np.median(values[several])) > 0:
                ratios[several] = np.asarray(values[several], np.float64) / median
        return ratios

    def worst(self, values: FloatArray, among: NDArray[np.bool_] | None = None) -> tuple[str, ...]:
        """Names of the tensors with a finite value, largest first; equals keep their order."""
        chosen = np.isfinite(values) if among is None else np.isfinite(values) & among
        order = np.argsort(-values, kind="stable")
        return tuple(self.tensors[i].name for i in order if chosen[i])

    @property
    def has_samples(self) -> bool:
        """Whether shares of some tensor come from a sample of its elements."""
        return bool(self.num_elements.max(initial=0) > SAMPLED)

    @property
    def num_elements(self) -> NDArray[np.int64]:
        """[P]: elements of each tensor."""
        return np.array([t.num_elements for t in self.tensors], np.int64)


class Recorder:
    """Turns rows into a trace in bounded memory; a function of the order of rows per channel."""

    def __init__(
        self,
        tensors: tuple[TensorInfo, ...] = (),
        *,
        step_capacity: int = 65_536,
        tensor_capacity: int = 448,
        recent: int = 64,
    ) -> None:
        self._tensors = tensors
        self.capacities = {
            "step_capacity": step_capacity,
            "tensor_capacity": tensor_capacity,
            "recent": recent,
        }
        self._steps: dict[str, StepStore] = {}
        self._by_tensor: dict[str, TensorStore] = {}

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        """The P tensors that a row of a tensor channel covers, in its order."""
        return self._tensors

    def widen(self, tensors: tuple[TensorInfo, ...]) -> None:
        """Takes a longer or renewed table of tensors; rows so far are NaN for those added."""
        self._tensors = tensors
        for store in self._by_tensor.values():
            store.widen(len(tensors))

    def add(self, vitals: Vitals) -> None:
        """Adds one step. Steps of one channel must rise.

        Raises:
            KeyError: a name outside the vocabulary.
            ValueError: a step at or below the channel's last, or a row of the wrong width.
        """
        for name, value in vitals.values.items():
            store = self._step_store(name)
            _require_rise(name, store.last_step, vitals.step)
            store.append(vitals.step, float(value))
        for name, row in vitals.tensors.items():
            self.sample(name, vitals.step, row)

    def extend(self, name: str, steps: IntArray, values: NDArray[np.float64]) -> None:
        """Adds rows of one step channel, [T] each, in rising order of steps.

        Raises:
            KeyError, ValueError: as `add`.
        """
        if not len(steps):
            return
        store = self._step_store(name)
        _require_rise(name, store.last_step, *steps[:1])
        if (np.diff(steps) <= 0).any():
            raise ValueError(f"{name}: steps must rise")
        store.extend(steps, values)

    def sample(self, name: str, step: int, row: NDArray[np.float32]) -> None:
        """Adds one row [P] of one tensor channel."""
        if channel(name).axis is not Axis.TENSOR:
            raise KeyError(f"{name} is no tensor channel")
        if row.shape != (len(self._tensors),):
            raise ValueError(f"{name}: row of {row.shape}, not of {len(self._tensors)} tensors")
        store = self._by_tensor.get(name)
        if store is None:
            store = self._by_tensor[name] = TensorStore(
                len(self._tensors), self.capacities["tensor_capacity"], self.capacities["recent"]
            )
        _require_rise(name, store.last_step, step)
        store.append(step, np.array(row, np.float32))

    def _step_store(self, name: str) -> StepStore:
        store = self._steps.get(name)
        if store is None:
            if channel(name).axis is not Axis.STEP:
                raise KeyError(f"{name} is no step channel")
            store = self._steps[name] = StepStore(self.capacities["step_capacity"])
        return store

    def trace(
        self,
        facts: Mapping[str, Fact],
        events: Iterable[Event] = (),
        *,
        only: frozenset[str] | None = None,
        **about: Any,
    ) -> Trace:
        """A snapshot, of all channels or of those declared; `about` are the further fields of
        `Trace`."""
        stores: dict[str, StepStore | TensorStore] = {**self._steps, **self._by_tensor}
        return Trace(
            facts=dict(facts),
            series={
                name: store.series()
                for name, store in sorted(stores.items())
                if only is None or declares(only, name)
            },
            tensors=self._tensors,
            events=tuple(sorted(events, key=lambda event: event.step)),
            **about,
        )


def _require_rise(name: str, last: int, step: int) -> None:
    if step <= last:
        raise ValueError(f"{name}: step {step} does not come after {last}")
