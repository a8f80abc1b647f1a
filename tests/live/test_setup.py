"""What is known when watching begins: of odd models too, and never at the price of the training."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from small_training import failures, net, quiet, train
from torch import nn
from torch.amp import GradScaler
from torch.optim import SGD, Adafactor, AdamW
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR

import optdoctor
from optdoctor.live import setup
from optdoctor.live.setup import LEAST, POST, PRE, scaler_facts, setup_facts
from optdoctor.live.tensors import track
from optdoctor.optimizers import probe_of
from optdoctor.trace import Fact

FACTS = ("weights_rms", "peak_lr", "norm_placement")


def facts(model: nn.Module, optimizer: Any = None) -> dict[str, Fact]:
    optimizer = optimizer or AdamW(model.parameters(), lr=1e-3)
    return setup_facts(model, optimizer, track(model, optimizer, probe_of(optimizer)))


def rms(tensor: torch.Tensor) -> float:
    return float(np.sqrt(np.mean(tensor.detach().double().numpy() ** 2)))


# The size of the weights


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_size_is_the_median_of_the_matrices_of_layers(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Embedding(50, 16),
        nn.Linear(16, 32),
        nn.LayerNorm(32),
        nn.Conv1d(32, 8, 3),
        nn.GRU(8, 8),
        nn.Linear(8, 2),  # 16 elements are no statistic
    ).to(dtype)
    gru = model[4]
    sizes = [rms(w) for w in (model[1].weight, model[3].weight, gru.weight_ih_l0, gru.weight_hh_l0)]
    assert facts(model)["weights_rms"] == pytest.approx(np.median(sizes), rel=1e-6)


def test_weights_that_begin_near_zero_are_left_out() -> None:
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(3)))
    nn.init.zeros_(model[0].weight)
    nn.init.constant_(model[1].weight, LEAST * 0.99)
    assert facts(model)["weights_rms"] == pytest.approx(rms(model[2].weight), rel=1e-6)
    nn.init.zeros_(model[2].weight)
    assert "weights_rms" not in facts(model)


def test_frozen_weights_and_those_of_smaller_groups_are_left_out() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(16, 16), nn.Linear(16, 8))
    model[0].requires_grad_(False)
    groups = [{"params": model[i].parameters(), "lr": lr} for i, lr in enumerate((1.0, 0.1, 0.01))]
    found = facts(model, AdamW(groups))
    assert found["weights_rms"] == pytest.approx(rms(model[1].weight), rel=1e-6)
    assert found["peak_lr"] == 0.1


def test_frozen_weights_tables_and_vectors_of_the_same_group_are_left_out() -> None:
    class ScaledLinear(nn.Linear):
        def __init__(self) -> None:
            super().__init__(64, 64)
            self.scale = nn.Parameter(torch.ones(64))

    model = nn.ModuleDict({"wte": nn.Embedding(64, 64), "frozen": nn.Linear(64, 64)})
    model["head"], model["layer"] = nn.Linear(64, 64), ScaledLinear()
    model["head"].weight = model["wte"].weight
    model["frozen"].requires_grad_(False)
    nn.init.constant_(model["frozen"].weight, 9.0)
    assert facts(model)["weights_rms"] == pytest.approx(rms(model["layer"].weight), rel=1e-6)


def test_tensors_of_no_known_layer_have_no_size() -> None:
    class Grid(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features = nn.Parameter(torch.full((512, 4), 0.5))

    assert "weights_rms" not in facts(Grid())


def test_an_adapter_is_measured_by_its_half_that_is_not_zero() -> None:
    peft = pytest.importorskip("peft")
    base = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32))
    model = peft.get_peft_model(base, peft.LoraConfig(r=4, target_modules=["0", "2"]))
    halves = [p for n, p in model.named_parameters() if "lora_A" in n]
    trained = [p for p in model.parameters() if p.requires_grad]
    found = facts(model, AdamW(trained, lr=1e-3))
    assert found["weights_rms"] == pytest.approx(np.median([rms(p) for p in halves]), rel=1e-6)


def test_one_transfer_brings_all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    model, reads = nn.Sequential(*(nn.Linear(16, 16) for _ in range(9))), []
    tolist = torch.Tensor.tolist

    def counted(tensor: torch.Tensor) -> Any:
        reads.append(tensor.shape)
        return tolist(tensor)

    monkeypatch.setattr(torch.Tensor, "tolist", counted)
    assert facts(model)["weights_rms"] is not None
    assert reads == [(9,)]


# The peak of the rate


def test_a_scheduler_that_begins_low_does_not_hide_the_peak() -> None:
    model = nn.Linear(8, 8)
    optimizer = SGD(model.parameters(), lr=0.5)
    LambdaLR(optimizer, lambda step: min(1, step / 100))
    assert optimizer.param_groups[0]["lr"] == 0
    assert facts(model, optimizer)["peak_lr"] == 0.5
    OneCycleLR(optimizer, max_lr=0.7, total_steps=100)
    assert facts(model, optimizer)["peak_lr"] == 0.7


def test_a_rate_may_be_a_tensor_or_none() -> None:
    model = nn.Linear(8, 8)
    held = torch.tensor(0.25)
    assert facts(model, AdamW(model.parameters(), lr=held, foreach=False))["peak_lr"] == 0.25
    optimizer = Adafactor(model.parameters())
    optimizer.param_groups[0]["lr"] = None
    assert "peak_lr" not in facts(model, optimizer)


# Where blocks normalize

SIZES = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "emb_dim", "embedding_size"), 16),
    **dict.fromkeys(("word_embed_proj_dim", "image_size"), 16),
    **dict.fromkeys(("num_hidden_layers", "n_layers", "n_layer", "num_layers"), 3),
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 3),
    **dict.fromkeys(("num_attention_heads", "n_heads", "n_head", "num_heads"), 2),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2),
    **dict.fromkeys(("num_key_value_heads", "eos_token_id"), 2),
    **dict.fromkeys(("intermediate_size", "hidden_dim", "ffn_dim", "d_ff"), 32),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 32),
    **dict.fromkeys(("vocab_size", "n_words"), 50),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 64),
    **dict.fromkeys(("head_dim", "d_kv", "rotary_dim", "patch_size"), 8),
    "pad_token_id": 0,
    "bos_token_id": 1,
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(POST | PRE))
def test_the_outputs_of_each_type_of_model_are_normalized_where_the_table_says(kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    usual = transformers.AutoConfig.for_model(kind)
    sizes = {name: size for name, size in SIZES.items() if hasattr(usual, name)}
    config = transformers.AutoConfig.for_model(kind, **sizes)
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(config).eval()
    words = torch.randint(3, 50, (2, 7))
    inputs = {"input_ids": words} if kind != "vit" else {"pixel_values": torch.randn(2, 3, 16, 16)}
    if config.is_encoder_decoder:
        inputs["decoder_input_ids"] = words
    with torch.no_grad():
        output = model(**inputs, output_hidden_states=True)
    states = getattr(output, "hidden_states", None) or output.encoder_hidden_states
    off = max(float((h.var(-1, correction=0) - 1).abs().max()) for h in states[1:-1])
    off = max(off, *(float(h.mean(-1).abs().max()) for h in states[1:-1]))
    placement = "post" if off < 1e-3 else "pre"
    assert placement == ("post" if kind in POST else "pre")
    assert facts(model)["norm_placement"] == placement


def test_torch_blocks_say_it_themselves() -> None:
    def stack(*first: bool) -> nn.Module:
        return nn.ModuleList([nn.TransformerEncoderLayer(8, 2, 8, norm_first=f) for f in first])

    assert facts(stack(False, False))["norm_placement"] == "post"
    assert facts(stack(True))["norm_placement"] == "pre"
    assert "norm_placement" not in facts(stack(True, False))
    assert "norm_placement" not in facts(nn.Linear(4, 4))


def test_a_setting_overrules_the_type() -> None:
    class Config:
        model_type, do_layer_norm_before = "opt", False

    model = nn.Linear(4, 4)
    model.config = Config()
    assert facts(model)["norm_placement"] == "post"
    assert facts(nn.Sequential(model))["norm_placement"] == "post"


# Batch norm


def row_of_norms() -> nn.Sequential:
    norms = [nn.BatchNorm1d(4, momentum=m) for m in (0.1, 0.001, None, 0.0)]
    norms.append(nn.BatchNorm1d(4, momentum=1e-4, track_running_stats=False))
    return nn.Sequential(nn.Linear(4, 4), *norms)


def memory_of(model: nn.Module, between: Callable[[], Any] = int) -> Fact:
    """What is told at the first update; `between` comes after `watch`."""
    optimizer = SGD(model.parameters(), lr=1e-3)
    doctor = quiet(model, optimizer)
    assert "batchnorm_memory" not in doctor.runs[0].trace.facts
    between()
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
    doctor.close()
    assert failures(doctor) == []
    return doctor.runs[0].trace.facts.get("batchnorm_memory")


def test_the_slowest_batch_norm_that_is_at_its_start_counts() -> None:
    assert memory_of(row_of_norms()) == pytest.approx(1_000)
    model = row_of_norms()
    model[2].running_mean += 0.5  # as it was loaded
    assert memory_of(model) == pytest.approx(10)
    assert memory_of(nn.Sequential(nn.Linear(4, 4), model[3], model[4])) is None


def test_a_batch_norm_that_is_frozen_or_not_used_is_no_slow_one() -> None:
    model = row_of_norms()
    model[2].eval()
    assert memory_of(model) == pytest.approx(10)

    class Spare(nn.Sequential):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self[0](inputs)

    assert memory_of(Spare(nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=1e-4))) is None


@pytest.mark.parametrize("assign", [False, True])
def test_a_batch_norm_whose_statistics_are_loaded_after_watch_is_no_slow_one(assign: bool) -> None:
    model, old = row_of_norms(), row_of_norms()
    for _ in range(50):
        old(torch.randn(8, 4))
    saved = copy.deepcopy(old.state_dict())
    assert memory_of(model, lambda: model.load_state_dict(saved, assign=assign)) is None


def test_a_batch_norm_that_moves_after_watch_is_still_slow() -> None:
    model = row_of_norms()

    def move() -> None:
        """As to another device, which makes new buffers."""
        model[2].num_batches_tracked = torch.tensor(0)

    assert memory_of(model, move) == pytest.approx(1_000)


# The scaler


def test_a_scaler_of_torch_is_on_or_off_and_others_are_not_known() -> None:
    class Sharded(GradScaler):
        def _unscale_grads_(self, *args: Any) -> Any:
            return super()._unscale_grads_(*args)

    assert scaler_facts(GradScaler("cpu")) == {"scaler": "on"}
    assert scaler_facts(GradScaler("cpu", enabled=False)) == {"scaler": "off"}
    assert scaler_facts(Sharded("cpu")) == scaler_facts(None) == scaler_facts(object()) == {}


# Odd models


def test_a_model_without_numbers_has_its_settings() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16))
    found = facts(model)
    assert found == {"peak_lr": 1e-3}


def test_a_model_that_gets_its_shapes_later_is_asked_then(tmp_path: Any) -> None:
    model = nn.Sequential(nn.LazyLinear(16), nn.ReLU(), nn.Linear(16, 16))
    optimizer = AdamW(model.parameters(), lr=1e-3)
    doctor = quiet(model, optimizer)
    assert "weights_rms" not in doctor.runs[0].trace.facts
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    assert doctor.runs[0].trace.facts["weights_rms"] > LEAST
    doctor.close()


def test_an_empty_shard_and_an_empty_model_are_no_failure() -> None:
    held = nn.Parameter(torch.zeros(0, 4))
    model = nn.Linear(4, 4)
    model.weight = held
    assert facts(model) == {"peak_lr": 1e-3}
    assert facts(nn.Module(), AdamW([nn.Parameter(torch.zeros(0))], lr=1e-3)) == {"peak_lr": 1e-3}


def test_a_question_that_fails_leaves_the_others_and_the_training_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(start: Any) -> Fact:
        raise RuntimeError

    monkeypatch.setattr(setup, "_QUESTIONS", {**setup._QUESTIONS, "weights_rms": fail})
    model = net()
    optimizer = AdamW(model.parameters(), lr=1e-3)
    with optdoctor.watch(model, optimizer, out=None, sinks=()) as doctor:
        train(model, optimizer, 3, doctor)
    trace = doctor.runs[0].trace
    assert "weights_rms" not in trace.facts
    assert trace.facts["peak_lr"] == 1e-3
    assert [e for e in trace.events if e.kind == "doctor-failed"] == []


def test_weights_that_are_not_finite_have_no_size() -> None:
    model = nn.Linear(16, 16)
    nn.init.constant_(model.weight, float("nan"))
    assert "weights_rms" not in facts(model)


def test_a_loop_tells_what_hooks_cannot_see() -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    told = {"total_steps": 500, "num_classes": 2}
    with optdoctor.watch(model, optimizer, out=None, sinks=(), facts=told) as doctor:
        facts = doctor.runs[0].trace.facts
    assert {name: facts[name] for name in told} == told


@pytest.mark.parametrize(
    ("told", "value"),
    [(True, "yes"), (False, "no"), ("no", "no"), (None, None)],
)
def test_a_fact_of_two_words_may_be_told_as_true_or_false(told: Fact, value: str | None) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with optdoctor.watch(
        model, optimizer, out=None, sinks=(), facts={"losses_comparable": told}
    ) as doctor:
        assert doctor.runs[0].trace.facts.get("losses_comparable") == value


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"total_step": 3}, "no fact is named 'total_step': did you mean total_steps"),
        ({"epochs": 3}, "no fact is named 'epochs': a loop can tell total_steps, "),
        ({"loss": 3}, "no fact is named 'loss': a loop can tell .*loss_kind"),
        ({"losses_comparable": "maybe"}, "losses_comparable is 'yes' or 'no', not 'maybe'"),
        ({"losses_comparable": 1}, "losses_comparable is 'yes' or 'no', not 1"),
        ({"loss_kind": "rewards"}, "loss_kind is 'falling', .* or 'unknown', not 'rewards'"),
        ({"loss_kind": True}, "loss_kind is 'falling', .* not True"),
        ({"total_steps": "500"}, "total_steps is a number, not '500'"),
        ({"num_classes": True}, "num_classes is a number, not True"),
    ],
    ids=str,
)
def test_a_fact_that_no_rule_would_understand_is_refused(told: dict[str, Fact], said: str) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=said):
        optdoctor.watch(model, optimizer, out=None, sinks=(), facts=told)
