"""Norms of gradients of every kind, and gradients made shorter."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, multiprocessing, nn

from optdoctor.treatments.norms import are_finite, excess, global_norm, norms, shorten


def with_gradient(gradient: Tensor) -> nn.Parameter:
    weight = nn.Parameter(torch.zeros(gradient.shape, dtype=gradient.dtype))
    weight.grad = gradient
    return weight


def test_all_kinds_of_gradients_have_the_norm_of_their_numbers() -> None:
    sparse = torch.sparse_coo_tensor([[0, 0, 2]], [3.0, 1.0, 3.0], (4,))
    kinds = [
        torch.tensor(-2.0),
        torch.zeros(0, 3),
        torch.tensor([3 + 4j, 0]),
        torch.full((4,), 300.0, dtype=torch.float16),  # whose square is infinite
        torch.full((4,), 2.0, dtype=torch.bfloat16),
        torch.full((4,), 0.5, dtype=torch.float64),
        sparse,
    ]
    parameters = [with_gradient(kind) for kind in kinds]
    assert norms(parameters).tolist() == pytest.approx([2.0, 0.0, 5.0, 600.0, 4.0, 1.0, 5.0])
    expected = math.sqrt(sum(n * n for n in (2.0, 5.0, 600.0, 4.0, 1.0, 5.0)))
    assert float(global_norm(parameters)) == pytest.approx(expected)
    assert are_finite(parameters).all()
    shorten(parameters, torch.tensor([0.5, 1, 0.5, 0.5, 1, 0.5, 0.5]))
    assert norms(parameters).tolist() == pytest.approx([1.0, 0.0, 2.5, 300.0, 4.0, 0.5, 2.5])
    assert parameters[-1].grad is not None
    assert parameters[-1].grad.is_sparse
    shorten(parameters, torch.tensor(0.5))
    assert norms(parameters).tolist() == pytest.approx([0.5, 0.0, 1.25, 150.0, 2.0, 0.25, 1.25])


def test_a_norm_beyond_half_precision_is_one_all_the_same() -> None:
    parameters = [with_gradient(torch.full((4,), 6e4, dtype=torch.float16))]
    assert norms(parameters).tolist() == pytest.approx([1.2e5], rel=1e-3)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.complex64])
def test_one_number_that_is_not_finite_is_seen(bad: float, dtype: torch.dtype) -> None:
    gradient = torch.ones(3, 3, dtype=dtype)
    gradient[1, 1] = bad
    parameters = [with_gradient(torch.ones(2)), with_gradient(gradient), with_gradient(sparse(bad))]
    assert are_finite(parameters).tolist() == [True, False, False]


def sparse(value: float) -> Tensor:
    return torch.sparse_coo_tensor([[0, 1]], [value, 1.0], (4,))


def test_numbers_whose_squares_are_infinite_are_finite() -> None:
    assert are_finite([with_gradient(torch.full((4,), 1e30))]).all()


def test_what_is_below_its_limit_or_not_finite_keeps_every_bit() -> None:
    norm = torch.tensor([1.0, 4.0, math.nan, math.inf])
    factors = excess(norm, torch.full((4,), 2.0))
    assert factors.tolist() == [1.0, 0.5, 1.0, 1.0]
    gradient = torch.tensor([math.inf, 1.0, -0.0])
    parameter = with_gradient(gradient.clone())
    shorten([parameter], factors[3])
    assert torch.equal(gradient, parameter.grad)


def _rank(rank: int, folder: str) -> None:
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2
    )
    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(0)
    weight = nn.Parameter(distribute_tensor(torch.zeros(4, 3), mesh, [Shard(0)]))
    whole = torch.arange(12.0).reshape(4, 3)
    weight.grad = distribute_tensor(whole.clone(), mesh, [Shard(0)])
    plain = with_gradient(torch.tensor([3.0, 4.0]))
    found = norms([weight, plain])
    shorten([weight, plain], torch.tensor([0.5, 1.0]))
    torch.save([found, weight.grad.full_tensor()], f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_a_sharded_tensor_has_the_norm_of_the_whole_in_every_process(tmp_path: Path) -> None:
    multiprocessing.spawn(_rank, (str(tmp_path),), nprocs=2)
    whole = torch.arange(12.0).reshape(4, 3)
    for rank in (0, 1):
        found, gradient = torch.load(tmp_path / f"{rank}.pt")
        assert found.tolist() == pytest.approx([float(whole.norm()), 5.0])
        assert torch.equal(gradient, whole * 0.5)
