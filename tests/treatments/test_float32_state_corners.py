"""Float32 state in odd surroundings: DDP, closures, scalers, tensors of every kind."""

from collections.abc import Iterator

import pytest
import torch
from halves import network, train
from torch import distributed, nn
from treated import MAKERS, odd_gradients

from optdoctor.treatments.float32_state import Float32State
from optdoctor.treatments.swapped import swap


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of one."""
    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def test_ddp_reduces_every_gradient_of_a_treated_run(alone: None) -> None:
    model = nn.parallel.DistributedDataParallel(network(torch.bfloat16))
    calls = []

    def halved(state: object, bucket: distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
        calls.append(1)
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    model.register_comm_hook(None, halved)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    Float32State().apply(optimizer)
    train(model, optimizer, range(1))
    first = len(calls)
    train(model, optimizer, range(1, 5))
    assert first
    assert len(calls) == 5 * first


def test_hooks_on_gradients_stay() -> None:
    model = network(torch.float16)
    seen = []
    for p in model.parameters():
        p.register_hook(lambda grad: seen.append(grad.dtype))
        p.register_post_accumulate_grad_hook(lambda p: seen.append(p.dtype))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    Float32State().apply(optimizer)
    train(model, optimizer, range(3))
    assert seen == [torch.float16] * 2 * 4 * 3


def test_a_step_that_fails_leaves_the_model_as_it_was() -> None:
    weight = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))

    class Broken(torch.optim.SGD):
        def step(self, closure: object = None) -> None:
            if broken:
                raise ArithmeticError

    broken = False
    optimizer = Broken([weight], lr=0.1)
    treatment = Float32State().apply(optimizer)
    broken = True
    weight.grad = gradient = torch.ones_like(weight)
    with pytest.raises(ArithmeticError):
        optimizer.step()
    treatment.undo()
    assert weight.dtype == torch.bfloat16
    assert weight.grad is gradient
    assert weight.detach().tolist() == [1.0] * 3


@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_tensors_of_every_kind_pass(name: str) -> None:
    optimizer, weights = odd_gradients(MAKERS[name])
    dtypes = [w.dtype for w in weights]
    treatment = Float32State().apply(optimizer)
    optimizer.step()
    assert treatment.applied
    assert [w.dtype for w in weights] == dtypes
    treatment.undo()
    assert not any("failed" in note for note in treatment.notes)


def test_a_tensor_in_two_groups_and_a_frozen_one_pass() -> None:
    shared = nn.Parameter(torch.ones(2, dtype=torch.float16))
    frozen = nn.Parameter(torch.ones(2, dtype=torch.float16), requires_grad=False)
    with pytest.warns(UserWarning, match="duplicate"):
        optimizer = torch.optim.SGD([{"params": [shared, shared, frozen]}], lr=0.5)
    Float32State().apply(optimizer)
    for tensor in (shared, frozen):
        tensor.grad = torch.ones_like(tensor)
    optimizer.step()
    assert shared.detach().tolist() == [0.0, 0.0]
    assert frozen.tolist() == [0.5, 0.5]
    assert not frozen.requires_grad


def test_a_sparse_gradient_passes() -> None:
    table = nn.Embedding(10, 4, sparse=True, dtype=torch.bfloat16)
    optimizer = torch.optim.SparseAdam(table.parameters(), lr=1e-4)
    treatment = Float32State().apply(optimizer)
    before = table.weight.detach().clone()
    for _ in range(40):
        optimizer.zero_grad()
        table(torch.tensor([1, 2])).float().square().sum().backward()
        optimizer.step()
    assert treatment.applied
    assert not torch.equal(before[1:3], table.weight[1:3])
    assert torch.equal(before[3:], table.weight[3:])


def test_a_scaler_leaves_out_a_fused_step_and_unscales_the_others() -> None:
    model, plain = network(torch.float16), network(torch.float16)
    scaled = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    twin = torch.optim.AdamW(plain.parameters(), lr=1e-3, fused=True)
    Float32State().apply(scaled)
    Float32State().apply(twin)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for number in range(4):
        inputs = torch.full((4, 8), 0.1 * number, dtype=torch.float16)
        factor = float("inf") if number == 2 else 1.0
        for one, optimizer in ((model, scaled), (plain, twin)):
            optimizer.zero_grad()
            loss = one(inputs).float().square().mean() * (factor if one is model else 1.0)
            (scaler.scale(loss) if one is model else loss).backward()
        if number != 2:
            twin.step()
        scaler.step(scaled)
        scaler.update()
    for one, two in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(one, two, atol=1e-3)
        assert torch.isfinite(one).all()


def test_accumulated_gradients_are_stepped_once() -> None:
    weight = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    optimizer = torch.optim.SGD([weight], lr=0.25)
    Float32State().apply(optimizer)
    for _ in range(2):
        weight.sum().backward()
    optimizer.step()
    assert weight.detach().tolist() == [0.5, 0.5]


def test_swapped_twice_a_tensor_is_itself() -> None:
    one = nn.Parameter(torch.ones(2))
    one.grad = gradient = torch.zeros(2)
    other, place = torch.full((2,), 2.0, dtype=torch.float64), one.data_ptr()
    swap(one, other)
    assert one.tolist() == [2.0, 2.0]
    assert one.grad is None
    assert isinstance(one, nn.Parameter)
    swap(one, other)
    assert one.data_ptr() == place
    assert one.grad is gradient
