"""What a sample costs: a transformer of 30 M weights and an MLP of 800 tensors, one thread.

Beside the loop that everyone writes (a dozen statistics a tensor, each with `.item()`) and beside
`wandb.watch(log="all")`; then the doctor's own account beside a stopwatch, and its bill against
its allowance. Variants take turns in one process, in reversed order every other round. Figures are
medians of CPU time, those of hooks taken inside the hooks: a difference of whole steps is uncertain
by 4 % of a step and stands here only where nothing else can be had.

    python tests/benchmarks/collect.py                          # about five minutes
    python tests/benchmarks/collect.py --only mlp --rounds 5    # a first impression
"""

import os

os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "WANDB_SILENT": "true"}

import argparse
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

import optdoctor
from optdoctor.live.schedule import YOUNG
from optdoctor.live.snapshot import SHARE, Snapshot

ROUNDS = 20
NEVER = 1 << 40
"""An interval that samples the first update only."""
LIMITS = {"transformer": (10.5, 9.0), "mlp": (17.0, 50.0)}
"""Full collection in % of a step, at most; times that wandb costs, at least."""
TIMES_NAIVE = 5.0
REAL_UPDATE = 1.0
"""% of a step that the measured update may add."""
ACCOUNT = 0.20
EXCESS = 1.25
"""Times its allowance that the bill may be once the run is old."""
OVERHEADS = (0.2, 0.05)
OLD_UPDATES = 2500


@dataclass(frozen=True)
class Training:
    """A model, its optimizer and one update of it."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[], Tensor]

    def update(self) -> Tensor:
        """Forward, backward, step."""
        self.optimizer.zero_grad()
        loss = self.loss()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


class Hooks:
    """Stops the time of the hooks that a doctor puts on an optimizer; `on` lets them work."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.on = True
        self._cpu_s = self.wall_s = 0.0
        for name in ("register_step_pre_hook", "register_step_post_hook"):
            setattr(optimizer, name, self._registering(getattr(optimizer, name)))

    def take_s(self) -> float:
        """CPU seconds since the last call."""
        taken, self._cpu_s = self._cpu_s, 0.0
        return taken

    def _registering(self, register: Callable[..., Any]) -> Callable[..., Any]:
        def clocked(hook: Callable[..., None]) -> Any:
            def called(*args: Any) -> None:
                if not self.on:
                    return
                start, start_cpu = time.perf_counter(), time.process_time()
                hook(*args)
                self._cpu_s += time.process_time() - start_cpu
                self.wall_s += time.perf_counter() - start

            return register(called)

        return clocked


def adamw(model: nn.Module, loss: Callable[[], Tensor]) -> Training:
    """The model under AdamW(foreach)."""
    return Training(model, torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True), loss)


def transformer() -> Training:
    """30.4 M weights in 88 tensors; 512 tokens an update, so few that the doctor weighs most."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=7, n_embd=512, n_head=8, vocab_size=16000))
    tokens = torch.randint(16000, (4, 128))
    return adamw(model, lambda: model(tokens, labels=tokens).loss)


def mlp(depth: int = 200, width: int = 64, batch: int = 64) -> Training:
    """0.86 M weights in 800 tensors, four a layer, if nothing else is asked for."""
    torch.manual_seed(0)
    pairs = [(nn.Linear(width, width), nn.LayerNorm(width)) for _ in range(depth)]
    model = nn.Sequential(*(layer for pair in pairs for layer in pair))
    inputs = torch.randn(batch, width)
    return adamw(model, lambda: (model(inputs) - inputs).square().mean())


def watched(training: Training, out: str | None = None, **settings: Any) -> Any:
    """The doctor of a training, through the public road."""
    return optdoctor.watch(training.model, training.optimizer, out=out, sinks=(), **settings)


def naive(training: Training) -> None:
    """The loop that everyone writes."""
    for parameter, state in training.optimizer.state.items():
        weight, grad = parameter.detach(), parameter.grad
        assert grad is not None
        first, second = state["exp_avg"], state["exp_avg_sq"]
        grad.norm().item(), grad.abs().max().item(), grad.mean().item()
        (~torch.isfinite(grad)).sum().item(), (grad == 0).sum().item()
        weight.norm().item(), weight.abs().max().item()
        first.norm().item(), second.min().item(), second.max().item()
        (second == 0).sum().item(), (1e-4 / (second.sqrt() + 1e-8)).mean().item()


def look(training: Training) -> object:
    """The least with which a bad gradient can be told at every update: a norm a tensor."""
    return torch._foreach_norm([parameter.grad for parameter in training.model.parameters()])


def cpu_s(work: Callable[[], object]) -> float:
    """CPU seconds of this process while it does the work."""
    start = time.process_time()
    work()
    return time.process_time() - start


def in_turns(
    works: Mapping[str, Callable[[], Mapping[str, float]]], rounds: int
) -> dict[str, list[float]]:
    """Every figure of every round, in reversed order every other one; the first is for warmth."""
    figures: dict[str, list[float]] = {}
    for i in range(rounds + 1):
        for work in list(works.values())[:: 1 if i % 2 else -1]:
            for name, value in work().items():
                figures.setdefault(name, []).append(value)
    return {name: values[1:] for name, values in figures.items()}


@contextmanager
def wandb_watching(training: Training) -> Iterator[Callable[[], object]]:
    """An update of the training with `wandb.watch(log="all")` at each, written offline."""
    import wandb

    with tempfile.TemporaryDirectory() as folder:
        run = wandb.init(mode="offline", dir=folder, project="collect")
        run.watch(training.model, log="all", log_freq=1)

        def update() -> None:
            run.log({"loss": training.update()})

        try:
            yield update
        finally:
            run.finish()


def no_snapshot() -> AbstractContextManager[object]:
    """Samples without the weights before the step, hence without the measured update."""
    return patch.object(Snapshot, "take", lambda self, parameters: self.drop())


def little_room(room_bytes: int) -> AbstractContextManager[object]:
    """Doctors that begin now may keep so many bytes of weights."""
    return patch("optdoctor.live.run.LEAST_BYTES", room_bytes)


def check(doctor: Any, num_samples: int, channel: str = "grad_rms") -> None:
    """Raises RuntimeError where the doctor stepped back, or does not hold what was to be timed."""
    run = doctor.runs[0]
    failures = [event.text for event in run.trace.events if event.kind == "doctor-failed"]
    if failures:
        raise RuntimeError(failures[0])
    series = run.trace.series
    found = len(series[channel].steps) if channel in series else 0
    if found < num_samples:
        raise RuntimeError(f"{channel} holds {found} of {num_samples} samples")


class Report:
    """Prints figures with their limits; counts those beyond."""

    def __init__(self) -> None:
        self.num_beyond = 0

    def __call__(
        self,
        name: str,
        value: float,
        unit: str,
        *,
        at_most: float | None = None,
        at_least: float | None = None,
        note: str = "",
    ) -> None:
        beyond = at_most is not None and not value <= at_most
        beyond |= at_least is not None and not value >= at_least
        self.num_beyond += beyond
        limits = {"at least": at_least, "at most": at_most}
        limit = ", ".join(f"{how} {bound:g}" for how, bound in limits.items() if bound is not None)
        mark = "BEYOND" if beyond else ""
        print(f"  {name:48}{value:9.3f} {unit:10}{limit:27}{mark:7}{note}".rstrip(), flush=True)


class Sampled:
    """A training with a doctor on it whose hooks can be stopped, timed and left out."""

    def __init__(self, training: Training) -> None:
        self.training, self._hooks = training, Hooks(training.optimizer)
        self.doctor: Any = None

    def plain(self) -> Mapping[str, float]:
        """An update without the doctor."""
        self._hooks.on = False
        step_s = cpu_s(self.training.update)
        self._hooks.on = True
        return {"step": step_s}

    def update(
        self, part: str = "ours", within: AbstractContextManager[object] | None = None
    ) -> Mapping[str, float]:
        """A watched update: CPU seconds of the hooks, and of all of it."""
        self._hooks.take_s()
        with within or nullcontext():
            whole_s = cpu_s(lambda: self.doctor.log(loss=self.training.update()))
        return {part: self._hooks.take_s(), f"{part}, whole": whole_s}


def sampling(name: str, make: Callable[[], Training], rounds: int, report: Report) -> None:
    """Full collection, idle steps, the measured update and two rivals on one model."""
    most, least_wandb = LIMITS[name]
    ours = Sampled(make())
    ours.plain()
    with (
        watched(ours.training, interval=1) as ours.doctor,
        wandb_watching(make()) as wandb_update,
    ):
        s = in_turns(
            {
                "plain": ours.plain,
                "ours": ours.update,
                "naive": lambda: {"naive": cpu_s(lambda: naive(ours.training))},
                "wandb": lambda: {"wandb": cpu_s(wandb_update)},
            },
            rounds,
        )
        check(ours.doctor, rounds)
    middle = {part: statistics.median(values) for part, values in s.items()}
    step_s, ours_s = middle["step"], middle["ours"]
    whole_s, wandb_s = gap_s(s["ours, whole"], s["step"]), gap_s(s["wandb"], s["step"])
    low, _, high = statistics.quantiles(100 * value / step_s for value in s["ours"])
    print(f"{name}: a plain step takes {1000 * step_s:.1f} ms CPU, {rounds} rounds")
    note = f"(quartiles {low:.2f}-{high:.2f}) {1000 * ours_s:.2f} ms"
    report("full collection", 100 * ours_s / step_s, "% step", at_most=most, note=note)
    report("  as a difference of whole steps", 100 * whole_s / step_s, "% step")
    report("the .item() loop", 100 * middle["naive"] / step_s, "% step")
    report("  times ours", middle["naive"] / ours_s, "x", at_least=TIMES_NAIVE)
    report('wandb.watch("all")', 100 * wandb_s / step_s, "% step")
    report("  times ours", wandb_s / ours_s, "x", at_least=least_wandb)
    idle_and_tenth(ours, step_s, most / 10, rounds, report)
    measured_update(name, ours, rounds, report)


def gap_s(with_it: list[float], without: list[float]) -> float:
    """Median of the differences of pairs."""
    return statistics.median(a - b for a, b in zip(with_it, without, strict=True))


def idle_and_tenth(ours: Sampled, step_s: float, most: float, rounds: int, report: Report) -> None:
    """Hooks that never sample, and hooks that do at every tenth update."""
    idle, norms = list[float](), list[float]()
    with watched(ours.training, interval=NEVER) as ours.doctor:
        for _ in range(rounds // 2 + 2):
            idle.append(ours.update()["ours"])
            norms.append(cpu_s(lambda: look(ours.training)))
        check(ours.doctor, 1)
    with watched(ours.training, interval=10) as ours.doctor:
        ours.update()
        several = [ours.update()["ours"] for _ in range(10 * max(2, rounds // 8))]
        sampled = several[9::10]  # the first was sampled too
        check(ours.doctor, 1 + len(sampled))
    idle_s, norms_s = (statistics.median(values[2:]) for values in (idle, norms))
    tenth_s = (statistics.median(sampled) - idle_s) / 10
    report("at interval 10, beyond idle", 100 * tenth_s / step_s, "% step", at_most=most)
    report("idle step", 100 * idle_s / step_s, "% step", note=f"{1e6 * idle_s:.0f} us")
    report("  where a norm a gradient would take", 100 * norms_s / step_s, "% step")


def measured_update(name: str, ours: Sampled, rounds: int, report: Report) -> None:
    """What it adds: the transformer's at an eighth of its memory, the MLP's as by default."""
    weights = [p.numel() * p.element_size() for p in ours.training.model.parameters()]
    eighth = name == "transformer"
    with little_room(sum(weights) // SHARE) if eighth else nullcontext():
        ours.doctor = watched(ours.training, interval=1)
    s = in_turns(
        {
            "plain": ours.plain,
            "with": lambda: ours.update("with"),
            "without": lambda: ours.update("without", no_snapshot()),
        },
        rounds,
    )
    check(ours.doctor, rounds, "update_rms")
    kept = ours.doctor.runs[0]._collector.snapshot_bytes / sum(weights)
    ours.doctor.close()
    extra = 100 * gap_s(s["with"], s["without"]) / statistics.median(s["step"])
    limit, part = (REAL_UPDATE, 1 / SHARE) if eighth else (None, None)
    report("measured update", extra, "% step", at_most=limit)
    report("  the copies it needs", 100 * kept, "% weights", at_most=part and 100 * part)


def account(rounds: int, report: Report) -> None:
    """The cost that the doctor reports over a stopwatch around all that it does, wall clock."""
    print(f"reported cost over a stopwatch's, within {100 * ACCOUNT:g} %")
    settings: dict[str, tuple[int, int, dict[str, Any]]] = {
        "800 tensors, interval 1": (200, 2 * rounds, {"interval": 1}),
        "800 tensors, interval 10": (200, 5 * rounds, {"interval": 10}),
        "40 tensors, overhead 0.01": (10, 100 * rounds, {}),
        "40 tensors, interval 4": (10, 50 * rounds, {"interval": 4}),
    }
    watched(mlp(1)).close()  # what is imported at the first of a process is no cost of a run
    for name, (depth, updates, chosen) in settings.items():
        training = mlp(depth)
        hooks = Hooks(training.optimizer)
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            doctor = watched(training, folder, **chosen)
            log_s = 0.0
            began_s = time.perf_counter() - start
            for _ in range(updates):
                loss = training.update()
                start = time.perf_counter()
                doctor.log(loss=loss)
                log_s += time.perf_counter() - start
            told = doctor.runs[0].cost
            check(doctor, 1)
            doctor.close()
        us = re.search(r"([\d.]+) us a step", told)
        assert us is not None, told
        reported_s = float(us[1]) * 1e-6 * updates
        # What begins a run is work too.
        ratio = reported_s / (hooks.wall_s + log_s + began_s)
        note = f"{us[1]} us a step reported; beginning {1e3 * began_s:.1f} ms"
        report(name, ratio, "x", at_least=1 - ACCOUNT, at_most=1 + ACCOUNT, note=note)


def bill(report: Report) -> None:
    """The worst of the bill over the share, at every update once the run is old.

    Updates of some 20 ms: where they are as short as hooks are long, these alone exceed a share.
    """
    print(f"bill over its share after update {YOUNG}, the worst of {OLD_UPDATES - YOUNG} updates")
    for overhead in OVERHEADS:
        training = mlp(4, 256, 1024)
        worst = 0.0
        with watched(training, overhead=overhead) as doctor:
            schedule = doctor.runs[0]._schedule
            start = time.perf_counter()
            for age in range(1, OLD_UPDATES + 1):
                doctor.log(loss=training.update())
                if age > YOUNG:
                    share_s = overhead * (time.perf_counter() - start)
                    worst = max(worst, schedule.billed_s / share_s)
            elapsed_s = time.perf_counter() - start
            check(doctor, 1)
        step_us, num = 1e6 * elapsed_s / OLD_UPDATES, schedule.samples
        idle = 100 * schedule.idle_s / elapsed_s
        note = f"{num} samples, {step_us:.0f} us a step, {idle:.1f} % of them idle"
        report(f"overhead {overhead:g}", worst, "x", at_most=EXCESS, note=note)


def main() -> int:
    """Measures and prints; 1 where a figure is beyond its limit."""
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", choices=(*LIMITS, "account", "bill"))
    chosen = parser.parse_args()
    report = Report()
    parts: dict[str, Callable[[], None]] = {
        "transformer": lambda: sampling("transformer", transformer, chosen.rounds, report),
        "mlp": lambda: sampling("mlp", mlp, chosen.rounds, report),
        "account": lambda: account(chosen.rounds, report),
        "bill": lambda: bill(report),
    }
    for name, part in parts.items():
        if chosen.only in (None, name):
            part()
    print(f"{report.num_beyond} beyond their limits")
    return 1 if report.num_beyond else 0


if __name__ == "__main__":
    sys.exit(main())
