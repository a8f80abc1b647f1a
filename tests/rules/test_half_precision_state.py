"""What the contract cannot know of `half-precision-state`."""

import math
from typing import Any

import pytest

from optdoctor.engine import examine
from optdoctor.findings import Finding, Severity, Status
from optdoctor.rules.half_precision_state import DECAYING, FAMILIES, RULE
from optdoctor.synthetic import make_trace, small_gpt
from optdoctor.trace import Trace

BFLOAT16, FLOAT16 = 1 - 2.0**-9, 1 - 2.0**-12
"""Decays of a quarter of the formats' steps, 2^-7 and 2^-10."""


def run(dtype: str, beta2: float = 0.999, **more: Any) -> Trace:
    facts = {
        "optimizer": "AdamW",
        "optimizer_family": "adam",
        "beta2": beta2,
        "eps": 1e-8,
        "state_dtype": dtype,
        "math_dtype": "float32",
    }
    return make_trace({**facts, **more}, tensors=small_gpt(dtype, "float32"))


AT_LIMIT = {
    "bfloat16": (
        lambda: run("bfloat16", math.nextafter(BFLOAT16, 0)),
        lambda: run("bfloat16", BFLOAT16),
    ),
    "float16": (
        lambda: run("float16", math.nextafter(FLOAT16, 0), math_dtype="float16"),
        lambda: run("float16", FLOAT16, math_dtype="float16"),
    ),
}


def only_finding(trace: Trace) -> Finding:
    outcome = examine(RULE, trace)
    assert outcome.status is Status.FOUND, outcome.reason
    (finding,) = outcome.findings
    return finding


def status(trace: Trace) -> Status:
    return examine(RULE, trace).status


def test_it_is_a_note_before_step_1_that_names_what_is_lost() -> None:
    finding = only_finding(run("bfloat16"))
    assert (finding.severity, finding.steps) == (Severity.NOTE, (0, 0))
    assert finding.summary == (
        "The second moment of AdamW cannot fall: its decay of 0.1 % an update is less than half the"
        " spacing of bfloat16, 0.2 to 0.39 %."
    )
    assert finding.tensors == tuple(t.name for t in small_gpt())


@pytest.mark.parametrize("beta2", [0.9, 0.95, 0.98, 0.99, 0.995])
def test_a_faster_decay_is_silent_in_bfloat16(beta2: float) -> None:
    assert status(run("bfloat16", beta2)) is Status.CLEAR


@pytest.mark.parametrize("dtype", ["float32", "float64", "uint8"])
def test_other_formats_are_silent(dtype: str) -> None:
    assert status(run(dtype, 0.99999)) is Status.CLEAR


def test_float16_with_an_epsilon_left_tells_which_gradients_are_lost() -> None:
    finding = only_finding(run("float16"))
    assert "gradients up to 0.0055 are 0 at beta2 = 0.999" in finding.summary
    assert len(finding.treatments) == 1


def test_float16_whose_epsilon_is_0_is_left_to_the_graver_rule() -> None:
    assert status(run("float16", math_dtype="float16")) is Status.CLEAR
    assert status(run("float16", eps=0.0)) is Status.CLEAR


@pytest.mark.parametrize("form", ["quantized", "factored", "rooted"])
def test_state_that_is_not_whole_is_silent(form: str) -> None:
    assert status(run("bfloat16", moment2_form=form)) is Status.CLEAR
    assert status(run("bfloat16", moment2_form="full")) is Status.FOUND


@pytest.mark.parametrize("name", ["AdamW8bit", "Adam4bit", "AdamWFp8", "PagedAdamW8bit"])
def test_a_quantized_kind_is_known_by_its_name_before_it_holds_anything(name: str) -> None:
    assert status(run("bfloat16", optimizer=name)) is Status.CLEAR


@pytest.mark.parametrize("family", ["sgd", "lion", "adafactor", "muon", "stable_adamw", "other"])
def test_families_that_were_not_seen_to_stall_are_silent(family: str) -> None:
    assert status(run("bfloat16", optimizer_family=family)) is Status.CLEAR


def fallen(make: Any, dtype: Any) -> float:
    """Share of the entries of the second moment that fell under gradients 10,000 times smaller."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(2048).to(dtype))
    optimizer = make([weight])
    if hasattr(optimizer, "train"):
        optimizer.train()
    held: list[Any] = []
    for scale, updates in ((1.0, 60), (1e-4, 100)):
        for _ in range(updates):
            sizes = (torch.rand(2048) + 0.5) * torch.randn(2048).sign() * scale
            weight.grad = sizes.to(dtype)
            optimizer.step()
        state = optimizer.state[weight]
        name = next(n for n in ("exp_avg_sq", "exp_avg_var") if n in state)
        held.append(state[name].float().clone())
    return float((held[1] < held[0]).float().mean())


def built(beta2: float) -> dict[str, Any]:
    torch = pytest.importorskip("torch")
    other = pytest.importorskip("pytorch_optimizer")
    free = pytest.importorskip("schedulefree")
    betas = (0.9, beta2)
    return {
        "adam": lambda p: torch.optim.AdamW(p, betas=betas),
        "nadam": lambda p: torch.optim.NAdam(p, betas=betas),
        "radam": lambda p: torch.optim.RAdam(p, betas=betas),
        "adabelief": lambda p: other.AdaBelief(p, betas=betas),
        "adan": lambda p: other.Adan(p, betas=(0.98, 0.92, beta2)),
        "ademamix": lambda p: other.AdEMAMix(p, betas=(0.9, beta2, 0.9999)),
        "lamb": lambda p: other.Lamb(p, betas=betas),
        "prodigy": lambda p: other.Prodigy(p, betas=betas),
        "schedule_free": lambda p: free.AdamWScheduleFree(p, betas=betas),
        "soap": lambda p: other.SOAP(p, betas=betas),
    }


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_each_family_stalls_at_the_usual_beta2_and_not_at_the_proposed_one(family: str) -> None:
    torch = pytest.importorskip("torch")
    assert fallen(built(0.999)[family], torch.bfloat16) == 0
    assert fallen(built(DECAYING)[family], torch.bfloat16) > 0.9
    assert fallen(built(0.999)[family], torch.float32) > 0.9


@pytest.mark.parametrize("kind", [{"foreach": True}, {"foreach": False}, {"fused": True}])
@pytest.mark.parametrize(("dtype", "edge"), [("bfloat16", BFLOAT16), ("float16", FLOAT16)])
def test_at_the_edge_nothing_falls_however_the_step_is_made(
    kind: Any, dtype: str, edge: float
) -> None:
    torch = pytest.importorskip("torch")
    half = getattr(torch, dtype)

    def make(beta2: float) -> Any:
        return lambda p: torch.optim.AdamW(p, betas=(0.9, beta2), **kind)

    assert fallen(make(edge), half) == 0
    assert fallen(make(1 - 4 * (1 - edge)), half) > 0.9
