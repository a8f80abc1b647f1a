"""What a family of optimizers is to optdoctor: where its state holds what, and its rule.

Nothing here reads a number on the host: counts, rates and decays may be tensors of a device.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

State: TypeAlias = Mapping[str, Any]
"""What an optimizer holds of one tensor; reading creates no entry."""
Group: TypeAlias = Mapping[str, Any]
"""One parameter group: its settings under the optimizer's own names."""
Number: TypeAlias = float | Tensor
"""A number, or a tensor that broadcasts against elements: 0-dim, or [S, 1] in a stack."""

Form = Literal["full", "factored", "quantized", "rooted", "projected"]
"""full: an element for each weight; factored: kept as rows and columns; quantized: in fewer bits,
by blocks; rooted: full, already of the size of a gradient; projected: of another shape or in
another basis, so that its elements are not those of the weights."""


def setting_of(group: Group, name: str) -> Number:
    """A number of the group, as it lies there."""
    number: Number = group[name]
    return number


def rate_times_decay(group: Group) -> Number:
    """-lr * weight_decay: a decay apart from the gradient multiplies the weights by 1 plus it."""
    return -setting_of(group, "lr") * setting_of(group, "weight_decay")


def fit(number: Number, like: Tensor) -> Number:
    """A tensor in the precision of another; a number as it is."""
    return number.to(like.dtype) if isinstance(number, Tensor) else number


@dataclass(frozen=True, slots=True)
class Moment:
    """One running mean of one tensor."""

    key: str
    """The entry of the state that holds it."""
    form: Form = "full"
    decode: Callable[[State, Group], Tensor] | None = None
    """The mean as a plain tensor; None: the entry is one. It must leave the state alone."""

    def read(self, state: State, group: Group) -> Tensor:
        """The mean itself, or decoded into a new tensor."""
        if self.decode is not None:
            return self.decode(state, group)
        mean: Tensor = state[self.key]
        return mean

    @property
    def aligned(self) -> bool:
        """Whether each element belongs to the weight at its place."""
        return self.form != "projected"


@dataclass(frozen=True, slots=True)
class Layout:
    """What the state of one tensor holds; None for what it does not."""

    first: Moment | None = None
    second: Moment | None = None
    divisor: Moment | None = None
    """What divides in place of `second`, where that is another one."""
    further: Mapping[str, Moment] = field(default_factory=dict)
    """Other means that the rule needs, under the names by which it finds them in
    `Elements.state`."""

    @property
    def aligned(self) -> bool:
        """Whether all belong to the weights at their places: `foretell` holds only where they do,
        and one optimizer may project some tensors and others not."""
        several = (self.first, self.second, self.divisor, *self.further.values())
        return all(moment is None or moment.aligned for moment in several)


@dataclass(frozen=True, slots=True)
class Elements:
    """One tensor around its update, or a stack of S alike tensors of one group: what a rule reads.

    Floating tensors are at least float32 wide. For a rule of scope "element" they are [S, K]:
    K sampled elements, the same in all. For scope "tensor" they have the shape of one tensor.
    """

    weight: Tensor
    """Before the update."""
    gradient: Tensor
    """As the optimizer consumed it."""
    first: Tensor | None
    second: Tensor | None
    divisor: Tensor | None
    """The moments after the update, decoded; `divisor` is `second` where nothing replaces it."""
    state: Mapping[str, Tensor]
    """After the update, the entries that the probe `reads` and the layout's `further` means,
    decoded; one number a tensor is [S, 1]."""
    before: Mapping[str, Tensor]
    """Before it, the entries that the probe `keeps`, likewise."""
    group: Group
    rate: Number
    step: Number
    """Updates that the state has seen, this one included; float64 where it is a tensor."""
    c1: Number
    c2: Number
    """The probe's corrections, in the precision of the elements."""

    def fit(self, number: Number) -> Number:
        """In the precision of the elements: what was computed from `step` is float64, and would
        carry them along."""
        return fit(number, self.weight)

    def __getitem__(self, setting: str) -> Number:
        """A setting of the group."""
        return setting_of(self.group, setting)


def entry_count(state: State, group: Group) -> Any:
    """The count under "step" in the state, else in the group; None if there is none."""
    return state.get("step", group.get("step"))


def group_rate(group: Group, step: Number) -> Any:
    """The rate under "lr"."""
    return group.get("lr")


def no_corrections(group: Group, step: Number) -> tuple[Number, Number]:
    """Means that start at their first value, or are used as they are."""
    return 1.0, 1.0


def no_facts(group: Group) -> dict[str, float]:
    """Nothing that a run channel names."""
    return {}


def nothing(state: State, group: Group) -> Layout:
    """No moment."""
    return Layout()


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One kind of optimizer: classes that share a layout and a rule."""

    family: str
    """Name of its file; what rules know it by."""
    matches: tuple[str, ...]
    """Qualified class names; a subclass matches through its bases."""
    layout: Callable[[State, Group], Layout] = nothing
    """From the state that it has after an update; entries that are missing or strange are left out
    by who asks."""
    facts: Callable[[Group], dict[str, float]] = no_facts
    """Run channels from one parameter group: beta1, beta2, eps, weight_decay, momentum."""
    rate: Callable[[Group, Number], Any] = group_rate
    """The rate that the update of this count used, as number or tensor; None where it has none."""
    count: Callable[[State, Group], Any] = entry_count
    """Updates that the state has seen, as number or tensor; None where nobody counts."""
    adaptive: bool = False
    """Whether an element's rate is rate / (c1 * (sqrt(divisor / c2) + eps)), with c1 and c2 its
    `corrections`; a rooted divisor takes no root, a quantized one was rounded after the update and
    tells no rate (in 4 bits its median was off by 17 to 28 %)."""
    corrections: Callable[[Group, Number], tuple[Number, Number]] = no_corrections
    """(c1, c2): what first and second moment are divided by, to mend that they began at zero."""
    foretell: Callable[[Elements], Tensor] | None = None
    """The change of the weights that the rule asks for, decay included, shaped like them."""
    scope: Literal["element", "tensor"] = "element"
    """Whether the change of an element depends on that element alone."""
    reads: tuple[str, ...] = ()
    keeps: tuple[str, ...] = ()
    """Further entries of the state that `foretell` needs after and before the update; "first" and
    "second" keep those moments, decoded."""
    unforetold: str = ""
    """Why there is no `foretell`, in a few words."""
    knows: Callable[[Group], bool] = lambda group: True
    """Whether `foretell` and `decay_apart` hold under these settings; the layout always does."""
    own: tuple[str, ...] = ()
    """Settings that it keeps on itself, not in its groups: `settings_of` adds them to a group."""
    rate_before: bool = False
    """Whether the rate stands in the groups only until the update, which moves it on: it is then
    asked before it, with the count of then."""
    overwrites_gradient: bool = False
    """Whether its step leaves something else where the gradient was: what it consumed has to be
    read before, and settings that it applies in place (`maximize`, decay) are not in it yet."""
    inside: str = ""
    """The attribute that holds the optimizer around which this one is built."""
    moves_inside: bool = False
    """Whether, from one update to the next, weights change only in the step of the one inside."""
    around: Callable[["Probe"], "Probe"] | None = None
    """What is known of both together, from what is known of the one inside."""
    decay_apart: Callable[[Group], Number] = field(default=lambda group: 0.0)
    """Factor less one by which decay alone multiplies the weights, in an operation of its own
    (-lr * weight_decay); 0 where decay travels with the gradient or with the rest."""
    state_dtype: Callable[[torch.dtype], torch.dtype] = lambda dtype: dtype
    """dtype of the moments that it will hold of a tensor of this dtype."""
    in_float32: bool = False
    """Whether it computes its update in float32 whatever the weights and moments are; one whose
    moments are float32 does so anyway."""


def adam_corrections(group: Group, step: Number) -> tuple[Number, Number]:
    """1 - beta1^t and 1 - beta2^t (Kingma & Ba 2015, section 3)."""
    beta1, beta2 = group["betas"][:2]
    return 1 - beta1**step, 1 - beta2**step
