"""Trainings of two processes, each with a doctor: replicated.py RANK FOLDER tells what it saw.

One line of JSON a case: {"case", "found", "series", "facts", "failed"}.
"""

import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import optdoctor

FOLDER = Path(sys.argv[2])
UPDATES = 12
CHANNELS = ("replicas_differ", "unwrapped_differ", "replica_distance", "tensor_replica_distance")
Case = Callable[[int], Any]
CASES: dict[str, Case] = {}


def case(build: Case) -> Case:
    CASES[build.__name__] = build
    return build


def net(*more: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 9), *more, nn.Tanh(), nn.Linear(9, 1))


def train(
    watched: nn.Module,
    forward: Callable[[Tensor], Tensor],
    optimizer: Any,
    rank: int,
    *,
    updates: int = UPDATES,
    accumulate: int = 1,
    scaler: Any = None,
    wrapper: Any = None,
    within: Callable[[], Any] = nullcontext,
    before: Callable[[int], None] = lambda step: None,
    after: Callable[[], None] = lambda: None,
    **more: Any,
) -> Any:
    """Each process has data of its own. `after` comes between the passes and the update."""
    torch.manual_seed(100 + rank)
    options = {"out": None, "sinks": (), "scaler": scaler} | more
    with optdoctor.watch(watched, optimizer, **options) as doctor:
        for step in range(1, updates + 1):
            before(step)
            optimizer.zero_grad()
            for micro in range(accumulate):
                waits = wrapper.no_sync() if micro < accumulate - 1 else nullcontext()
                with waits, within():
                    loss = forward(torch.randn(3, 4)).square().mean() / accumulate
                    (loss if scaler is None else scaler.scale(loss)).backward()
            after()
            doctor.log(loss=loss)
            with within():
                optimizer.step() if scaler is None else scaler.step(optimizer)
            if scaler is not None:
                scaler.update()
    return doctor


def in_step(step: int) -> None:
    """Processes that average nothing may be a whole training apart."""
    dist.barrier()


def adam(model: nn.Module) -> torch.optim.Adam:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def wrapped(model: nn.Module, **options: Any) -> DistributedDataParallel:
    return DistributedDataParallel(model, **options)


@case
def plain(rank: int) -> Any:
    model = wrapped(net())
    return train(model, model, adam(model), rank)


@case
def given_what_is_within(rank: int) -> Any:
    inner = net()
    model = wrapped(inner)
    return train(inner, model, adam(model), rank)


@case
def wrapped_after_watching(rank: int) -> Any:
    inner = net()
    optimizer = adam(inner)
    models: list[nn.Module] = []

    def wrap(step: int) -> None:
        if not models:
            models.append(wrapped(inner))

    return train(inner, lambda x: models[0](x), optimizer, rank, before=wrap)


@case
def dropout_and_batch_norm(rank: int) -> Any:
    model = wrapped(net(nn.BatchNorm1d(9), nn.Dropout(0.3)))
    return train(model, model, adam(model), rank)


@case
def statistics_of_their_own(rank: int) -> Any:
    model = wrapped(net(nn.BatchNorm1d(9)), broadcast_buffers=False)
    return train(model, model, adam(model), rank)


@case
def accumulation(rank: int) -> Any:
    model = wrapped(net())
    return train(model, model, adam(model), rank, accumulate=3, wrapper=model)


@case
def loss_scaling(rank: int) -> Any:
    model = wrapped(net())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=2)
    return train(model, model, adam(model), rank, scaler=scaler)


@case
def half_precision_gradients(rank: int) -> Any:
    model = wrapped(net())
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return train(model, model, adam(model), rank)


@case
def resumed(rank: int) -> Any:
    model = wrapped(net())
    optimizer = adam(model)
    train(model, model, optimizer, rank)
    return train(model, model, optimizer, rank)


@case
def state_in_parts(rank: int) -> Any:
    model = wrapped(net())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    return train(model, model, optimizer, rank)


@case
def averaged_now_and_then(rank: int) -> Any:
    model = wrapped(net())
    alone, _ = dist.new_subgroups(group_size=1)
    state = post_localSGD_hook.PostLocalSGDState(None, alone, start_localSGD_iter=2)
    model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    return train(model, model, adam(model), rank)


@case
def each_on_its_own(rank: int) -> Any:
    torch.manual_seed(rank)
    model = nn.Linear(4, 1)
    return train(model, model, adam(model), rank)


def averaging(model: nn.Module) -> Callable[[], None]:
    def average() -> None:
        for parameter in model.parameters():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
            parameter.grad /= 2

    return average


@case
def averaged_by_hand(rank: int) -> Any:
    model = net()
    told = {"replicated": "yes"}
    return train(model, model, adam(model), rank, after=averaging(model), facts=told)


@case
def not_averaged_by_hand(rank: int) -> Any:
    model = net()
    told = {"replicated": "yes"}
    return train(model, model, adam(model), rank, before=in_step, facts=told)


@case
def told_not_to_be(rank: int) -> Any:
    inner = net()
    model = wrapped(inner)
    return train(model, inner, adam(model), rank, facts={"replicated": "no"})


@case
def another_checkpoint(rank: int) -> Any:
    model = wrapped(net())
    if rank == 1:
        with torch.no_grad():
            model.module[0].weight.mul_(1.5)
    return train(model, model, adam(model), rank)


@case
def around_the_wrapper(rank: int) -> Any:
    inner = net()
    model = wrapped(inner)
    return train(model, inner, adam(model), rank, before=in_step)


@case
def another_rate(rank: int) -> Any:
    model = wrapped(net())
    optimizer = adam(model)

    def turn(step: int) -> None:
        if rank == 1 and step == 7:
            optimizer.param_groups[0]["lr"] = 0.02

    return train(model, model, optimizer, rank, before=turn, out=FOLDER / "run")


@case
def one_ends_early(rank: int) -> Any:
    inner = net()
    model = wrapped(inner)
    updates = UPDATES if rank == 0 else 3
    return train(model, inner, adam(model), rank, updates=updates)


@case
def one_row_of_a_table(rank: int) -> Any:
    """One element of one tensor, and that of neither end."""
    model = wrapped(net(nn.Linear(9, 9)))
    if rank == 1:
        with torch.no_grad():
            model.module[1].weight[4, 4] += 1e-3
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    return train(model, model, optimizer, rank)


@case
def always_within_no_sync(rank: int) -> Any:
    model = wrapped(net())
    return train(model, model, adam(model), rank, before=in_step, within=model.no_sync)


@case
def head_left_out(rank: int) -> Any:
    inner = net()
    body, head = wrapped(inner[:2]), inner[2]
    whole = nn.Sequential(body, head)
    return train(whole, whole, adam(whole), rank)


@case
def watched_in_the_first_only(rank: int) -> Any:
    """The last: what comes after it would not be compared."""
    model = wrapped(net())
    optimizer = adam(model)
    if rank == 0:
        return train(model, model, optimizer, rank)
    for _ in range(UPDATES):
        optimizer.zero_grad()
        model(torch.randn(3, 4)).square().mean().backward()
        optimizer.step()
    return None


def told(name: str, doctor: Any) -> dict[str, Any]:
    if doctor is None:
        return {"case": name, "found": None, "series": {}, "facts": {}, "failed": []}
    run = doctor.runs[0]
    trace = run.trace
    findings = {f.rule: (f.severity, f.steps, f.tensors, f.summary) for f in run.diagnosis.findings}
    return {
        "case": name,
        "found": findings.get("replicas-differ"),
        "series": {
            channel: [trace.series[channel].steps.tolist(), trace.series[channel].values.tolist()]
            for channel in CHANNELS
            if channel in trace.series
        },
        "facts": {k: v for k, v in trace.facts.items() if k in ("replicated", "replicas_apart")},
        "failed": [e.text for e in trace.events if e.kind == "doctor-failed"],
    }


def main(rank: int) -> None:
    store = f"file://{FOLDER / 'store'}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    for name, build in CASES.items():
        print(json.dumps(told(name, build(rank))), flush=True)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]))
