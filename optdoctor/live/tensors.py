"""The table of a run's tensors and its facts, from the model and the optimizer."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from math import isfinite

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from optdoctor.knowledge.layers import clean, kind_of, layer_of
from optdoctor.knowledge.precision import least_precise
from optdoctor.live.holders import held, held_by_any
from optdoctor.optimizers import layers, number_of, settings_of, state_of
from optdoctor.optimizers.probe import Form, Group, Probe
from optdoctor.trace import Fact, TensorInfo


@dataclass(frozen=True, slots=True)
class Tracked:
    """The P tensors of a run. `parameters` and `tensors` share their order."""

    parameters: tuple[Tensor, ...]
    tensors: tuple[TensorInfo, ...]


def track(
    model: nn.Module, optimizer: Optimizer, probe: Probe, beside: Iterable[Optimizer] = ()
) -> Tracked:
    """All parameters of the model, and those of the optimizer that the model does not name.

    Those that have no shape yet are left out. `beside` are optimizers known to train other parts;
    further ones are looked for only where a trainable parameter would be nobody's.
    """
    names: dict[int, list[str]] = {}
    by_id: dict[int, Tensor] = {}
    module_of: dict[int, str] = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        for short, parameter in module.named_parameters(recurse=False):
            name = clean(f"{prefix}.{short}" if prefix else short)
            names.setdefault(id(parameter), []).append(name)
            if not is_lazy(parameter):
                by_id[id(parameter)] = parameter
            module_of.setdefault(id(parameter), type(module).__name__)
    named = set(by_id)
    group_of: dict[int, int] = {}
    for index, group in enumerate(optimizer.param_groups):
        for position, parameter in enumerate(group["params"]):
            group_of[id(parameter)] = index
            if id(parameter) not in by_id and not is_lazy(parameter):
                by_id[id(parameter)] = parameter
                names[id(parameter)] = [f"group{index}.{position}"]
    times, elsewhere = held(optimizer), _held_elsewhere(by_id, group_of, optimizer, beside)
    decays = [_decay(probe, group) for group in optimizer.param_groups]
    tensors = tuple(
        replace(
            _info(by_id[k], names[k], module_of.get(k, ""), group_of.get(k), optimizer, probe, i),
            weight_decay=decays[group_of[k]] if k in group_of else 0.0,
            times_held=times[k],
            in_model=k in named,
            held_elsewhere=k in elsewhere,
        )
        for i, k in enumerate(by_id)
    )
    return Tracked(tuple(by_id.values()), tensors)


def _held_elsewhere(
    by_id: Mapping[int, Tensor],
    own: Collection[int],
    optimizer: Optimizer,
    beside: Iterable[Optimizer],
) -> set[int]:
    """Parameters that other optimizers hold, by identity."""
    others = [held(one).keys() for one in beside if one is not optimizer]
    known = by_id.keys() & set().union(*others)
    missing = {k for k, p in by_id.items() if p.requires_grad and k not in own and k not in known}
    return known | held_by_any(missing) if missing else known


def _decay(probe: Probe, group: Group) -> float:
    """Weight decay of a group; 0 where it has none or none can be read."""
    decay = number_of(group.get("weight_decay", 0.0))
    return decay if isfinite(decay) else 0.0


def lazy(model: nn.Module, optimizer: Optimizer) -> list[Tensor]:
    """Parameters that get their shape at their first use."""
    several = [model.parameters(), *(group["params"] for group in optimizer.param_groups)]
    return [parameter for parameters in several for parameter in parameters if is_lazy(parameter)]


def _info(
    parameter: Tensor,
    names: list[str],
    module: str,
    group: int | None,
    optimizer: Optimizer,
    probe: Probe,
    order: int,
) -> TensorInfo:
    dtype, name = dtype_name(parameter), names[0]
    first, second = state_dtypes(parameter, optimizer, probe, group)
    fused = group is not None and bool(optimizer.param_groups[group].get("fused"))
    in_float32 = fused or probe.in_float32 or probe.state_dtype(parameter.dtype) == torch.float32
    return TensorInfo(
        name=name,
        shape=tuple(parameter.shape),
        dtype=dtype,
        state_dtype=second or first,
        math_dtype="" if group is None else _math_dtype(dtype, in_float32),
        kind=kind_of(name, module),
        layer=layer_of(name),
        order=order,
        group=group or 0,
        in_optimizer=group is not None,
        trainable=parameter.requires_grad,
        tied_to=names[1] if len(names) > 1 else "",
        grad_dtype="" if group is None else _grad_dtype(parameter),
        moment1_dtype=first,
    )


def local(tensor: Tensor) -> Tensor:
    """The plain real tensor on this rank."""
    tensor = tensor.detach()
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def is_sharded(tensor: Tensor) -> bool:
    """Whether this process holds a part of it, as with FSDP."""
    return any(not placement.is_replicate() for placement in getattr(tensor, "placements", ()))


def dtype_name(tensor: Tensor) -> str:
    """The dtype as channels spell it: "float16"."""
    return str(tensor.dtype).removeprefix("torch.")


def state_dtypes(
    parameter: Tensor, optimizer: Optimizer, probe: Probe, group: int | None
) -> tuple[str, str]:
    """dtypes of the first and second moment of one tensor; foretold while there are none.

    Of an optimizer that is not adaptive nothing is foretold: whether it keeps any may depend.
    """
    if group is None:
        return "", ""
    state = state_of(optimizer, parameter)
    layout = probe.layout(state, settings_of(optimizer, optimizer.param_groups[group]))
    held = [None if m is None else state.get(m.key) for m in (layout.first, layout.second)]
    first, second = (dtype_name(t) if isinstance(t, Tensor) else "" for t in held)
    if first or second or not probe.adaptive:
        return first, second
    foretold = str(probe.state_dtype(parameter.dtype)).removeprefix("torch.")
    return foretold if layout.first is not None else "", foretold


def _grad_dtype(parameter: Tensor) -> str:
    """That of the gradient; while there is none, of what torch will make one of."""
    if parameter.grad is not None:
        return dtype_name(parameter.grad)
    told = getattr(parameter, "grad_dtype", None)
    return str(told or parameter.dtype).removeprefix("torch.")


def _math_dtype(dtype: str, in_float32: bool) -> str:
    return "float32" if in_float32 and dtype in ("float16", "bfloat16") else dtype


def moment_facts(optimizer: Optimizer, probe: Probe, tracked: Tracked) -> dict[str, Fact]:
    """How the second moments of most elements are held, and what tells effective rates: known once
    an update has made the state."""
    elements: Counter[Form] = Counter()
    for parameter, info in zip(tracked.parameters, tracked.tensors, strict=True):
        state = state_of(optimizer, parameter) if info.in_optimizer else {}
        if state:
            group = settings_of(optimizer, optimizer.param_groups[info.group])
            second = probe.layout(state, group).second
            if second is not None and second.key in state:
                elements[second.form] += info.num_elements
    facts: dict[str, Fact] = {}
    if elements:
        facts["moment2_form"] = max(elements, key=lambda form: elements[form])
    if not probe.adaptive:
        facts["effective_lr_from"] = "update"
    elif set(elements) - {"quantized"}:
        facts["effective_lr_from"] = "moments"
    return facts


def facts_of(optimizer: Optimizer, probe: Probe, tensors: Iterable[TensorInfo]) -> dict[str, Fact]:
    """Run channels that are known before step 1; of groups that differ, the least precise.

    Epsilon and betas are those of a group that holds tensors of the least precise arithmetic: a
    number format and an epsilon that never meet would tell of a fault that nobody has.
    """
    given = [t for t in tensors if t.in_optimizer]
    trained = [t for t in given if t.trainable] or given
    math_dtype = least_precise([t.math_dtype for t in trained])
    groups = [probe.facts(group) for group in optimizer.param_groups]
    exposed = sorted({t.group for t in trained if t.math_dtype == math_dtype}) or [0]
    exposed = exposed if groups else []
    facts: dict[str, Fact] = dict(groups[exposed[0]]) if groups else {}
    of_main = groups[main_group(trained)] if groups else {}
    facts |= {k: of_main[k] for k in ("weight_decay", "momentum") if k in of_main}
    if epsilons := [e for g in exposed if (e := groups[g].get("eps")) and e > 0]:
        facts["eps"] = min(epsilons)
    return facts | {
        "optimizer": type(optimizer).__name__,
        "optimizer_family": probe.family,
        "param_dtype": least_precise([t.dtype for t in trained]),
        "state_dtype": least_precise([t.state_dtype for t in trained if t.state_dtype]),
        "math_dtype": math_dtype,
        "num_parameters": sum(t.num_elements for t in trained if t.trainable),
    }


def main_group(tensors: Iterable[TensorInfo]) -> int:
    """Index of the group with the most elements."""
    totals: dict[int, int] = {}
    for tensor in tensors:
        if tensor.in_optimizer:
            totals[tensor.group] = totals.get(tensor.group, 0) + tensor.num_elements
    return max(totals, key=lambda group: totals[group], default=0)


def steps_in_state(optimizer: Optimizer, probe: Probe) -> int | None:
    """Updates that the optimizer's state has seen; 0 where it does not count, None if none.

    Some optimizers hold state before their first update, with counters at 0.
    """
    if not any(layers(optimizer)[-1].state.values()):
        return None
    counts = []
    for group in optimizer.param_groups:
        asked = settings_of(optimizer, group)
        held = [state_of(optimizer, parameter) for parameter in group["params"]]
        counts += [number_of(probe.count(state, asked)) for state in held if state]
    counts = [count for count in counts if isfinite(count)]
    if counts and max(counts) <= 0:
        return None
    return int(max(counts, default=0))


@torch.no_grad()
def weights_nonfinite(tracked: Tracked) -> int:
    """Elements of the trained weights that are NaN or infinite, in one transfer."""
    bad = [
        (~torch.isfinite(p.detach())).sum().to("cpu", non_blocking=True)
        for p, info in zip(tracked.parameters, tracked.tensors, strict=True)
        if info.in_optimizer and p.requires_grad and p.numel()
    ]
    return int(torch.stack(bad).sum()) if bad else 0
