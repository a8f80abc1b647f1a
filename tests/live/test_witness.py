"""Whether gradients were set to zero, and how many passes an update adds up, in many loops."""

import copy
import gc
import os
import pickle
import subprocess
import sys
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_training import batches, failures, fingerprint, loss_of, net, quiet, rows
from torch import Tensor, nn
from torch.optim import SGD, AdamW
from torch.utils.checkpoint import checkpoint

from optdoctor.live.doctor import Doctor, start
from optdoctor.live.witness import ALIKE, MicroBatches
from optdoctor.readers.run_record import FINDINGS, json_rows

UPDATES = 6
Loop = Callable[[nn.Module, Any, Doctor], None]


def watched(loop: Loop, model: nn.Module | None = None, **options: Any) -> Doctor:
    """A doctor who has seen the loop to its end."""
    model = net() if model is None else model
    optimizer = SGD(model.parameters(), lr=0.01)
    doctor = quiet(model, optimizer, interval=1 << 20, **options)
    loop(model, optimizer, doctor)
    doctor.close()
    assert failures(doctor) == []
    return doctor


def kept(doctor: Doctor, run: int = 0) -> list[float]:
    """What each update tells."""
    return list(rows(doctor, "gradients_kept", run).values())


def once(model: nn.Module, batch: Any, doctor: Doctor | None = None) -> Tensor:
    loss = loss_of(model, batch)
    loss.backward()
    if doctor is not None:
        doctor.log(loss=loss)
    return loss


def old_fashioned(model: nn.Module) -> None:
    """As loops do that were written before there was `zero_grad`; it counts as no write."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.data.zero_()


ZEROING: dict[str, Callable[[nn.Module, Any], None]] = {
    "to none": lambda model, optimizer: optimizer.zero_grad(),
    "to zero": lambda model, optimizer: optimizer.zero_grad(set_to_none=False),
    "of the model": lambda model, optimizer: model.zero_grad(set_to_none=False),
    "of the data": lambda model, optimizer: old_fashioned(model),
}


def simple(zero: Callable[[nn.Module, Any], None], where: str) -> Loop:
    def loop(model: nn.Module, optimizer: Any, doctor: Doctor) -> None:
        for batch in batches(UPDATES):
            if where == "first":
                zero(model, optimizer)
            loss = loss_of(model, batch)
            if where == "before backward":
                zero(model, optimizer)
            loss.backward()
            doctor.log(loss=loss)
            optimizer.step()
            if where == "last":
                zero(model, optimizer)

    return loop


@pytest.mark.parametrize("zero", ZEROING)
@pytest.mark.parametrize("where", ["first", "before backward", "last"])
def test_gradients_set_to_zero_are_not_kept(zero: str, where: str) -> None:
    told = kept(watched(simple(ZEROING[zero], where)))
    assert told == [0.0] * len(told)
    assert len(told) >= UPDATES - 2


def test_gradients_that_nobody_sets_to_zero_are_kept() -> None:
    assert kept(watched(simple(lambda model, optimizer: None, "never"))) == [1.0] * (UPDATES - 1)


def test_clipping_and_scaling_what_is_kept_sets_nothing_to_zero() -> None:
    def loop(model: nn.Module, optimizer: Any, doctor: Doctor) -> None:
        for batch in batches(UPDATES):
            once(model, batch)
            nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            optimizer.step()

    assert kept(watched(loop)) == [1.0] * (UPDATES - 1)


@pytest.mark.parametrize("several", [1, 3])
def test_gradients_that_a_loop_shrinks_on_purpose_are_not_kept(several: int) -> None:
    """A momentum of gradients, written through `.data`, which counts as no write."""

    def loop(model: nn.Module, optimizer: Any, doctor: Doctor) -> None:
        for batch in batches(UPDATES):
            for _ in range(several):
                once(model, batch)
            optimizer.step()
            for parameter in model.parameters():
                parameter.grad.data.mul_(0.5)

    told = kept(watched(loop))
    assert told[1:] == [0.0] * (UPDATES - 2)
    assert len(told) == UPDATES - 1


@pytest.mark.parametrize(
    ("dtype", "size"), [(torch.float16, 1e-4), (torch.bfloat16, 1e-36), (torch.float64, 1e-36)]
)
def test_tiny_gradients_that_nobody_sets_to_zero_are_kept(dtype: torch.dtype, size: float) -> None:
    def loop(model: nn.Module, optimizer: Any, doctor: Doctor) -> None:
        for batch in batches(UPDATES):
            (size * loss_of(model, batch)).backward()
            optimizer.step()

    assert kept(watched(loop, net(dtype))) == [1.0] * (UPDATES - 1)


def test_forgotten_zeros_are_told_as_soon_as_they_are_known(tmp_path: Path) -> None:
    model = net()
    optimizer = SGD(model.parameters(), lr=1e-4)
    with quiet(model, optimizer, tmp_path, interval=1 << 20):
        for batch in batches(20):
            once(model, batch)
            optimizer.step()
    told = json_rows(tmp_path / FINDINGS)
    (step,) = [row["announced"] for row in told if row["rule"] == "gradients-not-zeroed"]
    assert step <= 1 + 8 + 1


def accumulating(several: int, zero: bool = True, losses: bool = True) -> Loop:
    def loop(model: nn.Module, optimizer: Any, doctor: Doctor) -> None:
        for i, batch in enumerate(batches(several * UPDATES)):
            once(model, batch, doctor if losses or i % several == 0 else None)
            if i % several == several - 1:
                optimizer.step()
                if zero:
                    optimizer.zero_grad()

    return loop


def test_accumulation_keeps_nothing_beyond_its_update() -> None:
    assert set(kept(watched(accumulating(4)))) == {0.0}
    assert set(kept(watched(accumulating(4, zero=False)))) == {1.0}


def test_micro_batches_are_counted_where_each_logs_its_loss() -> None:
    assert watched(accumulating(4)).runs[0].trace.facts["accumulation_steps"] == 4
    assert watched(accumulating(4, zero=False)).runs[0].trace.facts["accumulation_steps"] == 4


@pytest.mark.parametrize("several", [1, 4])
def test_passes_that_may_be_of_one_batch_are_no_micro_batches(several: int) -> None:
    doctor = watched(accumulating(several, losses=False))
    assert "accumulation_steps" not in doctor.runs[0].trace.facts


def test_a_number_of_micro_batches_that_was_given_stands() -> None:
    model = net()
    optimizer = SGD(model.parameters(), lr=0.01)
    given = {"overhead": 0.01, "interval": None, "treat": (), "facts": {"accumulation_steps": 2}}
    doctor = start(model, optimizer, out=None, sinks=(), **given)
    accumulating(4)(model, optimizer, doctor)
    doctor.close()
    assert doctor.runs[0].trace.facts["accumulation_steps"] == 2


def test_a_number_of_micro_batches_must_last() -> None:
    count = MicroBatches()
    assert [count.add(4, 4) for _ in range(ALIKE)] == [None] * (ALIKE - 1) + [4]
    assert count.add(3, 3) is None  # the rest of an epoch
    assert [count.add(4, 4) for _ in range(ALIKE)] == [None] * ALIKE
    assert [count.add(1, 1) for _ in range(ALIKE)][-1] == 1
    assert [MicroBatches().add(1, 1) for _ in range(ALIKE)][-1] is None
    assert [count.add(2, 4) for _ in range(ALIKE)][-1] is None


def test_the_evaluations_of_a_closure_are_no_micro_batches() -> None:
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    doctor = quiet(model, optimizer)
    for batch in batches(UPDATES):

        def closure(batch: Any = batch) -> Tensor:
            optimizer.zero_grad()
            return once(model, batch, doctor)

        optimizer.step(closure)
    doctor.close()
    assert kept(doctor) == [0.0] * (UPDATES - 1)
    assert "accumulation_steps" not in doctor.runs[0].trace.facts


def test_a_generator_that_soils_the_gradients_of_its_critic_keeps_none() -> None:
    torch.manual_seed(0)
    maker, critic = nn.Linear(3, 2), nn.Linear(2, 1)
    optimizers = [SGD(net.parameters(), lr=0.01) for net in (maker, critic)]
    doctor = quiet(nn.ModuleList([maker, critic]), optimizers)
    for _ in range(UPDATES):
        optimizers[0].zero_grad()
        loss = -critic(maker(torch.randn(8, 3))).mean()
        loss.backward()
        doctor.log(loss=loss)
        optimizers[0].step()
        optimizers[1].zero_grad()
        critic(maker(torch.randn(8, 3)).detach()).square().mean().backward()
        (critic(torch.randn(8, 2)) - 1).square().mean().backward()
        optimizers[1].step()
    doctor.close()
    assert failures(doctor) == []
    for run in (0, 1):
        assert kept(doctor, run) == [0.0] * (UPDATES - 1)
        assert "accumulation_steps" not in doctor.runs[run].trace.facts


@pytest.mark.parametrize("zero", ZEROING)
def test_a_second_ascent_as_of_sam_keeps_none(zero: str) -> None:
    def loop(model: nn.Module, optimizer: Any, doctor: Doctor) -> None:
        for batch in batches(UPDATES):
            once(model, batch, doctor)
            ZEROING[zero](model, optimizer)
            once(model, batch, doctor)
            optimizer.step()
            ZEROING[zero](model, optimizer)

    doctor = watched(loop)
    assert set(kept(doctor)) == {0.0}
    assert "accumulation_steps" not in doctor.runs[0].trace.facts


@pytest.mark.parametrize("copied", [False, True])
def test_gradients_that_begin_with_those_of_a_penalty_are_not_kept(copied: bool) -> None:
    def loop(model: nn.Module, optimizer: Any, doctor: Doctor) -> None:
        for batch in batches(UPDATES):
            for parameter in model.parameters():
                if copied and parameter.grad is not None:
                    parameter.grad.copy_(parameter.detach())
                else:
                    parameter.grad = parameter.detach().clone()
            once(model, batch)
            optimizer.step()

    assert set(kept(watched(loop))) == {0.0}


@pytest.mark.parametrize("copied", [False, True])
def test_gradients_that_a_loop_assigns_itself_are_not_kept(copied: bool) -> None:
    def loop(model: nn.Module, optimizer: Any, doctor: Doctor) -> None:
        several = list(model.parameters())
        for batch in batches(UPDATES):
            found = torch.autograd.grad(loss_of(model, batch), several)
            for parameter, grad in zip(several, found, strict=True):
                if copied and parameter.grad is not None:
                    parameter.grad.copy_(grad)
                else:
                    parameter.grad = grad
            optimizer.step()

    assert kept(watched(loop)) == []


def test_a_graph_that_is_walked_twice_keeps_only_what_is_not_set_to_zero() -> None:
    def of(zero: bool) -> Loop:
        def loop(model: nn.Module, optimizer: Any, doctor: Doctor) -> None:
            for batch in batches(UPDATES):
                loss = loss_of(model, batch)
                loss.backward(retain_graph=True)
                loss.backward()
                optimizer.step()
                if zero:
                    optimizer.zero_grad()

        return loop

    assert set(kept(watched(of(True)))) == {0.0}
    assert set(kept(watched(of(False)))) == {1.0}


def test_a_graph_of_gradients_keeps_what_is_not_set_to_zero() -> None:
    def loop(model: nn.Module, optimizer: Any, doctor: Doctor) -> None:
        for batch in batches(UPDATES):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch warns of the circle that this makes
                loss_of(model, batch).backward(create_graph=True)
            optimizer.step()

    assert set(kept(watched(loop))) == {1.0}


@pytest.mark.parametrize(("zero", "infinite"), [(True, ()), (True, (1, 2)), (False, ())])
def test_a_scaler_and_the_updates_that_it_skips_set_nothing_to_zero(
    zero: bool, infinite: tuple[int, ...]
) -> None:
    model = net()
    optimizer = SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    doctor = quiet(model, optimizer, scaler=scaler)
    for i, batch in enumerate(batches(UPDATES)):
        if zero:
            optimizer.zero_grad()
        loss = loss_of(model, batch)
        scaler.scale(loss * (float("inf") if i in infinite else 1)).backward()
        doctor.log(loss=loss)
        scaler.step(optimizer)
        scaler.update()
    doctor.close()
    assert failures(doctor) == []
    assert set(kept(doctor)) == {0.0 if zero else 1.0}
    assert len(kept(doctor)) == UPDATES - 1 - len(infinite)


class Checkpointed(nn.Module):
    """Its layers are computed again in the backward pass, the first one at two places."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.net, self.reentrant = net(), reentrant

    def forward(self, words: Tensor) -> Tensor:
        inner = self.net
        layer = inner.layers[0]
        found = checkpoint(layer, inner.embed(words), use_reentrant=self.reentrant)
        found = checkpoint(layer, found.relu(), use_reentrant=self.reentrant)
        return inner.head(found)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_keep_none(reentrant: bool) -> None:
    doctor = watched(simple(ZEROING["to zero"], "first"), Checkpointed(reentrant))
    assert set(kept(doctor)) == {0.0}
    assert "accumulation_steps" not in doctor.runs[0].trace.facts
    doctor = watched(simple(lambda m, o: None, "never"), Checkpointed(reentrant))
    assert set(kept(doctor)) == {1.0}


def test_a_witness_that_no_pass_reaches_any_more_is_replaced() -> None:
    def loop(model: nn.Module, optimizer: Any, doctor: Doctor) -> None:
        for number, batch in enumerate(batches(3 * UPDATES)):
            if number == UPDATES:  # the smallest ones, of which the witness is one
                for part in (model.norm, model.layers[0].bias):
                    for parameter in part.parameters() if isinstance(part, nn.Module) else [part]:
                        parameter.requires_grad_(False)
            once(model, batch)
            optimizer.step()

    told = kept(watched(loop))
    assert set(told) == {1.0}
    assert len(told) >= 2 * UPDATES


class Passing(nn.Module):
    """Its first parameter is used as long as `uses` says so."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.uses = nn.Parameter(torch.ones(8)), nn.Linear(8, 9), True

    def forward(self) -> Tensor:
        return self.second(torch.ones(2, 8) * (self.first if self.uses else 1.0)).square().mean()


def test_a_witness_stays_as_long_as_passes_reach_it_and_others_follow_in_turn() -> None:
    model = Passing()
    optimizer = SGD(model.parameters(), lr=0.01)
    doctor = quiet(model, optimizer, interval=1 << 20)
    hooked = []
    for number in range(2 * UPDATES):
        model.uses = number < UPDATES
        model().backward()
        optimizer.step()
        hooked.append([name for name, p in model.named_parameters() if p._backward_hooks])
    doctor.close()
    assert hooked == [["first"]] * UPDATES + [["second.bias"]] * UPDATES
    assert len(kept(doctor)) == 2 * UPDATES - 2


def test_where_no_pass_reaches_any_the_search_is_rare(monkeypatch: Any) -> None:
    looked = []
    monkeypatch.setattr("optdoctor.live.witness._can_tell", lambda p: bool(looked.append(p)))
    model = Passing()
    optimizer = SGD(model.parameters(), lr=0.01)
    doctor = quiet(model, optimizer, interval=1 << 20)
    for _ in range(64):
        model().backward()
        optimizer.step()
    doctor.close()
    assert failures(doctor) == []
    assert len(looked) == 7 * len(list(model.parameters()))


def test_an_update_without_a_backward_pass_tells_nothing() -> None:
    def loop(model: nn.Module, optimizer: Any, doctor: Doctor) -> None:
        once(model, next(batches(1)))
        for _ in range(UPDATES):
            optimizer.step()

    assert kept(watched(loop)) == []


def test_a_compiled_model_tells_and_is_not_compiled_again() -> None:
    compiled = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    for zero, told in ((ZEROING["to zero"], 0.0), (lambda m, o: None, 1.0)):
        torch._dynamo.reset()
        compiled.clear()
        model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
        optimizer = SGD(model.parameters(), lr=0.01)
        doctor = quiet(model, optimizer)
        fast = torch.compile(model, backend=backend)
        for _ in range(UPDATES):
            zero(model, optimizer)
            fast(torch.randn(5, 4)).square().mean().backward()
            optimizer.step()
        doctor.close()
        assert set(kept(doctor)) == {told}
        assert len(compiled) == 1


def test_a_model_can_be_copied_pickled_and_converted_while_it_is_watched() -> None:
    model = net()
    optimizer = AdamW(model.parameters(), lr=0.01)
    doctor = quiet(model, optimizer)
    for batch in batches(3):
        once(model, batch)
        optimizer.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pickle.dumps(model)
        twin = copy.deepcopy(model)
    assert [
        p for p in twin.parameters() if p._backward_hooks or p._post_accumulate_grad_hooks
    ] == []
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        optimizer.zero_grad()
        model.double()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    doctor.close()
    assert failures(doctor) == []


def test_close_leaves_no_hook_and_no_gradient_alive() -> None:
    model = net()
    optimizer = SGD(model.parameters(), lr=0.01)
    doctor = quiet(model, optimizer)
    for batch in batches(3):
        once(model, batch)
        optimizer.step()
    hooked = [p for p in model.parameters() if p._backward_hooks]
    assert len(hooked) == 1
    gradient = weakref.ref(hooked[0].grad)
    assert weakref.getweakrefcount(hooked[0].grad) == 1
    optimizer.zero_grad()
    gc.collect()
    assert gradient() is None
    doctor.close()
    assert [p for p in model.parameters() if p._backward_hooks] == []
    assert [p for p in model.parameters() if p._post_accumulate_grad_hooks] == []


@pytest.mark.parametrize("several", [1, 3])
def test_gradients_that_nobody_sets_to_zero_train_the_same(several: int, tmp_path: Path) -> None:
    def training(watch: bool) -> dict[str, Any]:
        model = net()
        optimizer = AdamW(model.parameters(), lr=0.01)
        doctor = quiet(model, optimizer, tmp_path) if watch else None
        for i, batch in enumerate(batches(several * UPDATES)):
            once(model, batch, doctor)
            if i % several == several - 1:
                optimizer.step()
        return fingerprint(model, optimizer)

    assert training(True) == training(False)


def test_what_fails_in_a_backward_pass_reaches_no_training(monkeypatch: Any) -> None:
    def broken(*args: Any) -> Any:
        raise RuntimeError("broken")

    model = net()
    optimizer = SGD(model.parameters(), lr=0.01)
    doctor = quiet(model, optimizer)
    for number, batch in enumerate(batches(UPDATES)):
        if number == 2:
            monkeypatch.setattr("optdoctor.live.witness.sight_of", broken)
        once(model, batch, doctor)
        optimizer.step()
    doctor.close()
    (text,) = failures(doctor)
    assert text.startswith("backward failed, RuntimeError: broken")
    assert len(rows(doctor, "grad_norm_used")) == UPDATES
    assert [p for p in model.parameters() if p._backward_hooks] == []


REPLICATED = """
import sys
import torch
import torch.distributed as dist
from torch import nn
import optdoctor

rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
for as_view in (False, True):
    for zero in (None, True, False):
        torch.manual_seed(0)
        inner = nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 1))
        model = nn.parallel.DistributedDataParallel(inner, gradient_as_bucket_view=as_view)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        doctor = optdoctor.watch(model, optimizer, out=None, sinks=())
        for _ in range(6):
            model(torch.randn(3, 4)).square().mean().backward()
            optimizer.step()
            if zero is not None:
                optimizer.zero_grad(set_to_none=zero)
        doctor.close()
        trace = doctor.runs[0].trace
        failed = [e.text for e in trace.events if e.kind == "doctor-failed"]
        print(as_view, zero, trace.series["gradients_kept"].values.tolist(), failed)
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_in_replicas_that_average_their_gradients_it_tells_the_same(tmp_path: Path) -> None:
    both = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", REPLICATED, str(rank), str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for rank in range(2)
    ]
    # Replicas build their buckets anew after the first pass: its gradients are replaced.
    never = {False: [1.0] * 5, True: [0.0] + [1.0] * 4}
    wanted = [
        f"{as_view} {zero} {never[as_view] if zero is None else [0.0] * 5} []"
        for as_view in (False, True)
        for zero in (None, True, False)
    ]
    for told in [process.communicate(timeout=100)[0] for process in both]:
        assert told.splitlines() == wanted
