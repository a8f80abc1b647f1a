"""Moments of 8 bits against what bitsandbytes itself makes of them."""

import pytest
import torch
from torch import Tensor, nn

from optdoctor.optimizers.quantized import blockwise_moment, decoded

functional = pytest.importorskip("bitsandbytes.functional")


def stepped(*shape: int, name: str = "SGD8bit") -> dict[str, Tensor]:
    """The state of one tensor after an update whose blocks differ in size a thousandfold."""
    from bitsandbytes import optim

    weight = nn.Parameter(torch.zeros(shape))
    sizes = torch.logspace(0, 3, weight.numel()).reshape(shape)
    weight.grad = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * sizes
    optimizer = getattr(optim, name)([weight], lr=0.1, momentum=0.9)
    optimizer.step()
    return optimizer.state[weight]


@pytest.mark.parametrize("shape", [(4096,), (4097,), (64, 65), (2, 3, 5, 300)])
def test_codes_become_what_bitsandbytes_makes_of_them(shape: tuple[int, ...]) -> None:
    state = stepped(*shape)
    moment = blockwise_moment(state, "state1")
    assert moment.form == "quantized"
    theirs = functional.dequantize_blockwise(
        state["state1"], absmax=state["absmax1"], code=state["qmap1"], blocksize=256
    )
    assert torch.equal(moment.read(state, {}), theirs)


def test_a_tensor_too_small_for_8_bits_is_plain() -> None:
    state = stepped(4095)
    moment = blockwise_moment(state, "state1")
    assert moment.form == "full"
    assert moment.read(state, {}) is state["state1"]


def test_a_state_that_is_still_empty_has_a_plain_moment() -> None:
    assert blockwise_moment({}, "state1").form == "full"


def test_blocks_of_2048_are_told_by_their_number() -> None:
    codes, absmax = torch.full((5000,), 255, dtype=torch.uint8), torch.tensor([1.0, 2.0, 3.0])
    plain = decoded(codes, torch.linspace(-1, 1, 256), absmax)
    assert plain[[0, 2047, 2048, 4095, 4096, 4999]].tolist() == [1, 1, 2, 2, 3, 3]


def test_two_means_in_one_entry_have_blocks_of_their_own() -> None:
    codes = torch.full((2, 10, 30), 255, dtype=torch.uint8)
    absmax = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    plain = decoded(codes, torch.linspace(-1, 1, 256), absmax).reshape(2, 300)
    assert plain[:, [0, 255, 256, 299]].tolist() == [[1, 1, 2, 2], [3, 3, 4, 4]]
