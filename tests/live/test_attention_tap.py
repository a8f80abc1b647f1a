"""What is measured of attention, against softmaxes taken by hand; and that it changes nothing."""

import math
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_training import fingerprint, quiet, seed
from torch import Tensor, nn
from torch.nn import functional as F

import optdoctor
from optdoctor.live import attention_tap
from optdoctor.live.attention_tap import Call, measure
from optdoctor.trace import Trace

ORIGINAL = F.scaled_dot_product_attention
CHANNELS = ("attention_logit_max", "attention_entropy")


@pytest.fixture(autouse=True)
def _leaves_the_function_as_it_was() -> Iterator[None]:
    yield
    assert F.scaled_dot_product_attention is ORIGINAL


class Net(nn.Module):
    """Two layers of attention with dropout, and a head."""

    def __init__(self, sharpness: float = 1.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 16)
        self.mixed = nn.ModuleList(nn.Linear(16, 48) for _ in range(2))
        self.head = nn.Linear(16, 11)
        self.sharpness = sharpness

    def forward(self, words: Tensor) -> Tensor:
        x = self.embed(words)
        for layer in self.mixed:
            q, k, v = (
                part.unflatten(-1, (2, 8)).transpose(1, 2) for part in layer(x).split(16, dim=-1)
            )
            mixed = F.scaled_dot_product_attention(
                q * self.sharpness, k, v, dropout_p=0.1, is_causal=True
            )
            x = x + mixed.transpose(1, 2).flatten(2)
        return self.head(x)


def net(sharpness: float = 1.0) -> Net:
    seed()
    return Net(sharpness)


def batch(number: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(number).integers(0, 11, (3, 20)))


def loss_of(model: nn.Module, number: int) -> Tensor:
    return F.cross_entropy(model(batch(number)).flatten(0, 1), batch(number).flatten())


def train(model: nn.Module, optimizer: Any, steps: int = 6) -> None:
    for number in range(steps):
        optimizer.zero_grad()
        loss_of(model, number).backward()
        optimizer.step()


def trained(model: nn.Module, steps: int = 6, **options: Any) -> Trace:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with quiet(model, optimizer, **{"attention": True, **options}) as doctor:
        train(model, optimizer, steps)
    assert [e.text for e in doctor.runs[0].trace.events if e.kind == "doctor-failed"] == []
    return doctor.runs[0].trace


def steps_of(trace: Trace) -> list[int]:
    return trace.series[CHANNELS[0]].steps.tolist() if CHANNELS[0] in trace.series else []


# The numbers


def by_hand(call: Call) -> tuple[float, float | None]:
    """Query by query and key by key, in float64."""
    *lead, num_queries, width = call.query.shape
    num_keys = call.key.shape[-2]
    scale = 1 / math.sqrt(width) if call.scale is None else call.scale
    mask = None if call.mask is None else call.mask.expand(*lead, num_queries, num_keys)
    logits, entropies = [0.0], []
    group = lead[-1] // call.key.shape[-3] if lead else 1
    first = min(8, num_queries) - 1
    for head in product(*map(range, lead)):
        if head and head[-1] % group:
            continue
        of_key = (*head[:-1], head[-1] // group) if head else head
        for i in range(first, num_queries):
            scores = []
            for j in range(num_keys):
                logit = float(call.query[head][i].double() @ call.key[of_key][j].double()) * scale
                added = 0.0
                if mask is not None:
                    added = float(mask[head][i, j])
                    if mask.dtype is torch.bool:
                        added = 0.0 if added else -math.inf
                if (call.is_causal and j > i) or added <= -1e3:
                    continue
                logits.append(abs(logit))
                scores.append(logit + added)
            if len(scores) >= 8:
                weights = np.exp(np.array(scores) - max(scores))
                shares = weights / weights.sum()
                entropies.append(float(-(shares * np.log(shares)).sum()))
    if num_keys < 8:
        return max(logits), None
    return max(logits), float(np.mean(entropies)) if entropies else math.inf


def tensors(*lead: int, queries: int = 12, keys: int = 12, groups: int = 1) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(3)
    of_keys = (*lead[:-1], lead[-1] // groups) if lead else lead
    yield 2 * torch.randn(*lead, queries, 4, generator=generator)
    yield 2 * torch.randn(*of_keys, keys, 4, generator=generator)


TRIL = torch.ones(12, 12, dtype=torch.bool).tril(2)
GIVEN = tuple(tensors(2, 3))
LOUD = torch.ones(12, 1).index_fill(0, torch.tensor(4), 50.0)
"""Makes one key far larger than the others."""
QUIET = torch.ones(12, dtype=torch.bool).index_fill(0, torch.tensor(4), False)
drawn = partial(torch.rand, generator=torch.Generator().manual_seed(4))
CALLS = {
    "plain": Call(*tensors(2, 3)),
    "causal": Call(*tensors(2, 3), is_causal=True),
    "scaled": Call(*tensors(2, 3), scale=0.1),
    "one head": Call(*tensors(3)),
    "no head": Call(*tensors()),
    "five dimensions": Call(*tensors(2, 2, 2), is_causal=True),
    "few keys": Call(*tensors(2, 3, keys=7)),
    "few queries": Call(*tensors(2, 3, queries=1, keys=30)),
    "causal with more keys": Call(*tensors(1, 2, queries=9, keys=30), is_causal=True),
    "mask": Call(*tensors(2, 3), mask=TRIL),
    "mask of each head": Call(*tensors(2, 3), mask=drawn(2, 3, 12, 12) > 0.2),
    "mask of a batch": Call(*tensors(2, 3), mask=drawn(2, 1, 1, 12) > 0.1),
    "sees nothing": Call(*tensors(2, 3), mask=torch.zeros(12, 12, dtype=torch.bool)),
    "infinite bias": Call(*tensors(2, 3), mask=torch.zeros(12, 12).masked_fill(~TRIL, -torch.inf)),
    "finite bias": Call(*tensors(2, 3), mask=torch.zeros(12, 12).masked_fill(~TRIL, -65504.0)),
    "loud key": Call(GIVEN[0], GIVEN[1] * LOUD),
    "hidden loud key": Call(GIVEN[0], GIVEN[1] * LOUD, mask=QUIET),
    "finitely hidden loud key": Call(
        GIVEN[0], GIVEN[1] * LOUD, mask=torch.zeros(12) - 65504.0 * ~QUIET
    ),
    "bias": Call(*tensors(2, 3), mask=-drawn(2, 3, 12, 12) * 5),
    "shared keys": Call(*tensors(2, 6, groups=3), is_causal=True, shares_keys=True),
    "shared keys and mask": Call(
        *tensors(2, 6, groups=3), mask=drawn(2, 6, 12, 12) > 0.2, shares_keys=True
    ),
    "one key for all": Call(*tensors(2, 6, groups=6), shares_keys=True),
}


@pytest.mark.parametrize("name", CALLS)
def test_logits_and_entropy_are_those_of_a_softmax_by_hand(name: str) -> None:
    measured = measure(CALLS[name])
    assert measured is not None
    logit, entropy = by_hand(CALLS[name])
    assert float(measured[0]) == pytest.approx(logit, rel=1e-5)
    assert (measured[1] is None) == (entropy is None)
    assert entropy is None or float(measured[1]) == pytest.approx(entropy, rel=1e-5)


def test_half_precision_and_autocast_do_not_blur_what_was_given() -> None:
    query, key = (t.to(torch.bfloat16) for t in tensors(2, 3))
    exact = by_hand(Call(query, key))
    with torch.autocast("cpu", torch.bfloat16):
        measured = measure(Call(query, key))
    assert measured is not None
    assert [float(x) for x in measured] == pytest.approx(exact, rel=1e-5)


def test_heads_and_queries_are_evenly_spaced_views_within_bounds() -> None:
    for shape in [
        (64, 40, 4000, 8),
        (1, 1, 1, 2),
        (5, 9, 8, 8),
        (3, 2, 2, 33, 16),
        (7, 4),
        (3, 7, 4),
    ]:
        query = torch.empty(shape, device="meta")
        for num_keys in (1, 100, 10**6):
            heads, queries = attention_tap._chosen(query, num_keys)
            part = query[(*heads, queries)]
            assert part.shape[-2] <= 16
            assert part.shape[-2] >= min(shape[-2], 8) / 8
            looked_at = math.prod(part.shape[:-2])
            assert looked_at <= 8 * 2 ** max(len(shape) - 3, 0)
            assert looked_at * num_keys * shape[-1] <= 2**22 or looked_at <= 2 ** (len(shape) - 3)
    query = torch.arange(100.0)[:, None].expand(1, 16, 100, 4)
    heads, queries = attention_tap._chosen(query, 100)
    assert query[(*heads, queries)].shape[:2] == (1, 8)
    assert query[(*heads, queries)][0, 0, :, 0].tolist() == list(range(7, 100, 6))


@pytest.mark.parametrize(
    "call",
    [
        Call(torch.ones(4), torch.ones(4)),
        Call(torch.ones(2, 12, 4), torch.ones(12, 4)),
        Call(torch.ones(2, 12, 4), torch.ones(1, 12, 4)),
        Call(torch.ones(2, 0, 4), torch.ones(2, 12, 4)),
        Call(torch.ones(2, 12, 4), torch.ones(2, 0, 4)),
    ],
)
def test_what_does_not_fit_is_left_out(call: Call) -> None:
    assert measure(call) is None


# While training


def test_the_largest_logit_and_the_smallest_entropy_of_an_update_are_told() -> None:
    calls: list[Call] = []
    model = net()
    for layer in model.mixed:
        layer.register_forward_hook(lambda module, given, out: calls.append(out.detach()))
    trace = trained(model, steps=3)
    for step in (1, 2, 3):
        told = [float(trace.series[name].values[step - 1]) for name in CHANNELS]
        expected = []
        for out in calls[2 * step - 2 : 2 * step]:
            q, k, _ = (
                part.unflatten(-1, (2, 8)).transpose(1, 2)[:2] for part in out.split(16, dim=-1)
            )
            expected.append(by_hand(Call(q, k, is_causal=True)))
        assert told[0] == pytest.approx(max(logit for logit, _ in expected), rel=1e-5)
        assert told[1] == pytest.approx(min(e for _, e in expected if e), rel=1e-5)


def test_sharper_attention_has_larger_logits_and_less_entropy() -> None:
    mild, sharp = trained(net()), trained(net(200.0))
    assert mild.series[CHANNELS[1]].values.min() > 2 > 1 > sharp.series[CHANNELS[1]].values.max()
    assert mild.series[CHANNELS[0]].values.max() < 4 < 32 < sharp.series[CHANNELS[0]].values.min()


def test_only_sampled_updates_are_looked_at() -> None:
    assert steps_of(trained(net(), steps=9, interval=4)) == [1, 5, 9]


def test_nothing_is_looked_at_unless_asked_for() -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with quiet(model, optimizer) as doctor:
        assert F.scaled_dot_product_attention is ORIGINAL
        train(model, optimizer)
    assert steps_of(doctor.runs[0].trace) == []


def test_passes_that_do_not_train_are_not_looked_at() -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with quiet(model, optimizer, attention=True) as doctor:
        train(model, optimizer, 1)
        model.sharpness = 1000.0
        with torch.no_grad():
            model(batch(0))
            F.scaled_dot_product_attention(*[nn.Parameter(torch.full((2, 12, 4), 9.0))] * 3)
        frozen = Net(1000.0).requires_grad_(False)
        frozen(batch(0))
        model.sharpness = 1.0
        train(model, optimizer, 1)
    assert doctor.runs[0].trace.series[CHANNELS[0]].values.max() < 4


def test_micro_batches_of_one_update_count_together() -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with quiet(model, optimizer, attention=True) as doctor:
        for sharpness in (200.0, 1.0):
            model.sharpness = sharpness
            loss_of(model, 0).backward()
        optimizer.step()
        loss_of(model, 1).backward()
        optimizer.step()
    logits = doctor.runs[0].trace.series[CHANNELS[0]].values
    assert logits[0] > 32
    assert logits[1] < 4


def test_an_update_that_was_skipped_leaves_nothing_to_the_next() -> None:
    model = net(200.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with quiet(model, optimizer, attention=True) as doctor:
        loss_of(model, 0).backward()
        doctor.runs[0].skip()
        model.sharpness = 1.0
        train(model, optimizer, 1)
    assert doctor.runs[0].trace.series[CHANNELS[0]].values.max() < 4


def test_too_few_keys_give_no_entropy() -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with quiet(model, optimizer, attention=True) as doctor:
        F.cross_entropy(model(batch(0)[:, :7]).flatten(0, 1), batch(0)[:, :7].flatten()).backward()
        optimizer.step()
    assert "attention_entropy" not in doctor.runs[0].trace.series
    assert steps_of(doctor.runs[0].trace) == [1]


# What it must not do


def test_weights_state_and_random_numbers_stay_as_they_would_be() -> None:
    prints = []
    for attention in (False, True):
        model = net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        with quiet(model, optimizer, attention=attention):
            train(model, optimizer)
        prints.append(fingerprint(model, optimizer))
    assert str(prints[0]) == str(prints[1])


def test_the_function_is_put_back_by_the_last_doctor_and_after_an_exception() -> None:
    one, other = net(), net()
    first = quiet(one, torch.optim.SGD(one.parameters(), lr=0.1), attention=True)
    second = quiet(other, torch.optim.SGD(other.parameters(), lr=0.1), attention=True)
    assert F.scaled_dot_product_attention is not ORIGINAL
    first.close()
    assert F.scaled_dot_product_attention is not ORIGINAL
    with pytest.raises(KeyError), second:
        raise KeyError
    assert F.scaled_dot_product_attention is ORIGINAL


def test_another_wrapper_around_ours_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    doctor = quiet(model, optimizer, attention=True)
    ours = F.scaled_dot_product_attention
    theirs = partial(ours)
    monkeypatch.setattr(F, "scaled_dot_product_attention", theirs)
    doctor.close()
    assert F.scaled_dot_product_attention is theirs
    train(model, optimizer, 1)
    monkeypatch.undo()
    again = quiet(model, optimizer, attention=True)
    assert F.scaled_dot_product_attention is ours
    train(model, optimizer, 1)
    again.close()
    assert steps_of(again.runs[0].trace)


def test_a_failure_of_ours_ends_the_looking_and_not_the_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(call: Call) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(attention_tap, "measure", fail)
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with quiet(model, optimizer, attention=True) as doctor:
        train(model, optimizer, 3)
        assert F.scaled_dot_product_attention is ORIGINAL
    trace = doctor.runs[0].trace
    assert [e.text[:16] for e in trace.events if e.kind == "doctor-failed"] == ["attention failed"]
    assert trace.series["lr"].rows == 3
    assert steps_of(trace) == []


def test_an_error_of_the_function_itself_passes() -> None:
    model = net()
    with quiet(model, torch.optim.AdamW(model.parameters()), attention=True):
        query = torch.ones(2, 12, 4, requires_grad=True)
        with pytest.raises(RuntimeError):
            F.scaled_dot_product_attention(query, torch.ones(2, 12, 5), torch.ones(2, 12, 5))


def test_a_compiled_pass_stays_one_graph() -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with quiet(model, optimizer, attention=True) as doctor:
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        compiled(batch(0)).sum().backward()
        optimizer.step()
        torch._dynamo.reset()
    assert steps_of(doctor.runs[0].trace) == []


def test_functions_of_functions_are_left_alone() -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    query = torch.randn(5, 2, 12, 4, requires_grad=True)
    with quiet(model, optimizer, attention=True) as doctor:
        torch.vmap(lambda q: F.scaled_dot_product_attention(q, q, q))(query).sum().backward()
        torch.func.grad(lambda q: F.scaled_dot_product_attention(q, q, q).sum())(query)
        optimizer.step()
    trace = doctor.runs[0].trace
    assert [e for e in trace.events if e.kind == "doctor-failed"] == []
    assert steps_of(trace) == []


@pytest.mark.parametrize(("how", "seen"), [("sdpa", True), ("eager", False)])
def test_transformers_is_seen_where_it_calls_the_function(how: str, seen: bool) -> None:
    transformers = pytest.importorskip("transformers")
    seed()
    config = transformers.GPT2Config(
        n_layer=1, n_head=2, n_embd=16, n_positions=16, vocab_size=11, attn_implementation=how
    )
    model = transformers.GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with quiet(model, optimizer, attention=True) as doctor:
        words = torch.arange(12)[None] % 11
        model(words, labels=words).loss.backward()
        optimizer.step()
    assert steps_of(doctor.runs[0].trace) == ([1] if seen else [])


def test_layers_of_torch_are_seen() -> None:
    seed()
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-3)
    with quiet(layer, optimizer, attention=True) as doctor:
        layer(torch.randn(2, 12, 16)).sum().backward()
        optimizer.step()
    assert steps_of(doctor.runs[0].trace) == [1]


def test_the_record_holds_both_channels(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with quiet(model, optimizer, tmp_path, attention=True) as doctor:
        train(model, optimizer)
    read = optdoctor.read(tmp_path)
    for name in CHANNELS:
        live = doctor.runs[0].trace.series[name].values
        assert read.series[name].values.tolist() == live.tolist()
