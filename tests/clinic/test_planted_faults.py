"""A few of the plants of `scripts/plant_faults.py`, which makes 200 of them."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from optdoctor.trace import TensorInfo, Trace

PLANTS = 3
FAULTS = ("frozen", "rate x30", "exploded init", "underflowing state")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    torch.set_num_threads(1)
    path = Path(__file__).parents[2] / "scripts" / "plant_faults.py"
    spec = importlib.util.spec_from_file_location("plant_faults", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclasses look for their annotations
    spec.loader.exec_module(module)
    return module


def test_every_fault_has_a_sign(script):
    assert tuple(script.SIGNS) == tuple(script.PLANTING) == FAULTS


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_the_planted_layer_stands_first(script, fault):
    plants = [script.plant(fault, seed) for seed in range(PLANTS)]
    assert [p.first for p in plants if not p.hit] == []
    assert len({p.layer for p in plants}) > 1
    for plant in plants:
        assert [e.text for e in plant.trace.events if e.kind == "doctor-failed"] == []


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["rate x30", "exploded init"])
def test_a_healthy_layer_does_not_stand_first(script, fault, monkeypatch):
    monkeypatch.setattr(script, "FACTOR", 1)
    assert sum(script.plant(fault, seed).hit for seed in range(PLANTS)) <= 1


# What a tensor is beside the same one of the other layers


def trace_of(*names: str) -> Trace:
    layers = [".".join(name.split(".")[:2]) if name[0] == "h" else "" for name in names]
    tensors = (TensorInfo(n, (2,), layer=at) for n, at in zip(names, layers, strict=True))
    return Trace(tensors=tuple(tensors))


def beside(values: dict[str, float]) -> NDArray[np.float64]:
    return trace_of(*values).beside_peers(np.array(list(values.values())))


def test_a_tensor_is_compared_with_the_same_one_of_the_other_layers():
    found = beside(
        {"h.0.w": 2, "h.0.b": 0.1, "h.1.w": 4, "h.1.b": 0.1, "h.11.w": 40, "h.11.b": 0.3}
    )
    assert found == pytest.approx([0.5, 1, 1, 1, 10, 3])


def test_what_has_no_peers_is_not_compared():
    found = beside({"embed.w": 1, "h.0.w": 1, "h.1.w": 1, "h.2.b": 1, "head.w": 1})
    assert np.isnan(found).all()


def test_what_was_not_measured_is_no_peer():
    found = beside({"h.0.w": 1, "h.1.w": np.nan, "h.2.w": 2, "h.3.w": np.inf, "h.4.w": 8})
    assert found == pytest.approx([0.5, np.nan, 1, np.nan, 4], nan_ok=True)
    assert np.isnan(beside({"h.0.w": 1, "h.1.w": np.nan, "h.2.w": 2})).all()


def test_beside_peers_that_are_0_nothing_stands_out():
    assert np.isnan(beside({"h.0.w": 0, "h.1.w": 0, "h.2.w": 1})).all()
