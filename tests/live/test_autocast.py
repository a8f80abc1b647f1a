"""An autocast that is never left is told from one that is, by a weight of the doctor's own."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn

import optdoctor


def casts_kept(around: bool, within: bool, cache: bool = True, compiled: bool = False) -> object:
    """The fact after five updates, with autocast around the loop, or around each update."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    if compiled:
        model.compile(backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.randn(16, 4)

    def autocast(on: bool) -> torch.autocast | nullcontext[None]:
        half = torch.bfloat16
        return torch.autocast("cpu", half, cache_enabled=cache) if on else nullcontext()

    with optdoctor.watch(model, optimizer, out=None, sinks=()) as doctor, autocast(around):
        for _ in range(5):
            with autocast(within):
                loss = model(inputs).float().square().mean()
                optimizer.zero_grad()
                loss.backward()
                doctor.log(loss=loss)
                optimizer.step()
    assert not [e for e in doctor.runs[0].trace.events if e.kind == "doctor-failed"]
    return doctor.runs[0].trace.facts.get("casts_kept")


def test_copies_that_outlive_an_update_are_told() -> None:
    assert casts_kept(around=True, within=False) == "yes"
    assert casts_kept(around=True, within=True) == "yes", "an inner context keeps them too"


@pytest.mark.parametrize(
    ("around", "within", "cache"),
    [(False, False, True), (False, True, True), (True, False, False)],
)
def test_copies_that_are_made_anew_are_no_fault(around: bool, within: bool, cache: bool) -> None:
    assert casts_kept(around, within, cache) == "no"


def test_a_compiled_model_casts_in_its_graph() -> None:
    assert casts_kept(around=True, within=False, compiled=True) is None


def test_what_is_told_is_what_the_forward_pass_does() -> None:
    model, inputs = nn.Linear(4, 1), torch.ones(1, 4)
    with torch.autocast("cpu", torch.bfloat16):
        before = model(inputs)
        nn.init.constant_(model.weight, 100.0)
        assert torch.equal(model(inputs), before), "autocast no longer keeps its copies"
    with torch.autocast("cpu", torch.bfloat16):
        assert not torch.equal(model(inputs), before)
