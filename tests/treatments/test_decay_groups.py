"""Groups by decay: what is decayed in real models, rules by name, and the same while a run goes."""

import copy
import re
from typing import Any

import bitsandbytes
import prodigyopt
import pytest
import pytorch_optimizer
import schedulefree
import torch
from rated_runs import Blocks, blocks, goes_on_untreated, leaves_schedules_alone, step
from torch import Tensor, nn

from optdoctor.treatments import Refused
from optdoctor.treatments.decay_groups import DecayGroups, decay_groups
from optdoctor.treatments.parameter_kinds import kinds_of
from optdoctor.treatments.rates import Split

SIZES = {"vocab_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16}
MAKERS = {
    "SGD": lambda ps: torch.optim.SGD(ps, lr=0.01, momentum=0.9, weight_decay=0.1),
    "AdamW": lambda ps: torch.optim.AdamW(ps, lr=1e-2, weight_decay=0.1),
    "fused AdamW": lambda ps: torch.optim.AdamW(ps, lr=1e-2, weight_decay=0.1, fused=True),
    "Adafactor": lambda ps: torch.optim.Adafactor(ps, lr=1e-2, weight_decay=0.1),
    "Lion": lambda ps: pytorch_optimizer.Lion(ps, lr=1e-3, weight_decay=0.1),
    "bitsandbytes Lion": lambda ps: bitsandbytes.optim.Lion(ps, lr=1e-3, weight_decay=0.1),
    "StableAdamW": lambda ps: pytorch_optimizer.StableAdamW(ps, lr=1e-3, weight_decay=0.1),
    "Prodigy": lambda ps: prodigyopt.Prodigy(ps, weight_decay=0.1),
    "schedule-free": lambda ps: schedule_free(ps),
}
each = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def schedule_free(several: Any) -> Any:
    """It has to be told that it trains."""
    optimizer = schedulefree.AdamWScheduleFree(several, lr=1e-3, weight_decay=0.1)
    optimizer.train()
    return optimizer


def of_transformers(kind: str) -> nn.Module:
    """A tiny one of random weights."""
    transformers = pytest.importorskip("transformers")
    if kind == "llama":
        options = {"num_key_value_heads": 2, "intermediate_size": 32, "attention_bias": True}
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, **options))
    if kind == "bert":
        config = transformers.BertConfig(**SIZES, intermediate_size=32)
        return transformers.BertForMaskedLM(config)
    if kind == "t5":
        small = {"vocab_size": 64, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_heads": 2}
        return transformers.T5ForConditionalGeneration(transformers.T5Config(**small, num_layers=2))
    config = transformers.GPT2Config(vocab_size=64, n_layer=2, n_head=2, n_embd=16)
    return transformers.GPT2LMHeadModel(config)


def decays(model: nn.Module, groups: list[dict[str, Any]]) -> dict[str, float]:
    """{name: its decay}, of every trainable parameter exactly once."""
    by_id = {id(p): g["weight_decay"] for g in groups for p in g["params"]}
    trainable = {n: p for n, p in model.named_parameters() if p.requires_grad}
    assert sum(len(g["params"]) for g in groups) == len(by_id) == len(trainable)
    return {name: by_id[id(p)] for name, p in trainable.items()}


def decayed(names: dict[str, float]) -> set[str]:
    return {name for name, decay in names.items() if decay}


@pytest.mark.parametrize("kind", ["llama", "gpt2", "bert", "t5"])
def test_bias_and_norm_parameters_of_a_llama_model_all_land_in_the_group_without_decay(
    kind: str,
) -> None:
    """H68: Weight-decay grouping: bias and norm parameters of a Llama model all land in the
    no-decay group (by module type)."""
    model = of_transformers(kind)
    groups = decay_groups(model, 0.1)
    assert [g["weight_decay"] for g in groups] == [0.1, 0.0]
    found = decays(model, groups)
    norms = {
        f"{path}.{name}"
        for path, module in model.named_modules()
        if type(module).__name__ in ("LlamaRMSNorm", "LayerNorm", "T5LayerNorm")
        for name, _ in module.named_parameters(recurse=False)
    }
    biases = {n for n in found if n.endswith(".bias")}
    assert norms
    assert len(norms) + len(biases - norms) == len(groups[1]["params"])
    assert norms.isdisjoint(decayed(found))
    assert biases.isdisjoint(decayed(found))
    assert all(p.dim() >= 2 for p in groups[0]["params"])


@pytest.mark.parametrize("kind", ["llama", "gpt2", "bert", "t5"])
def test_they_are_those_that_the_trainer_of_transformers_leaves_out(kind: str) -> None:
    model = of_transformers(kind)
    trainer = pytest.importorskip("transformers").Trainer
    mine = decays(model, decay_groups(model, 0.1))
    theirs = mine.keys() & set(trainer.get_decay_parameter_names(None, model))
    # A table of relative positions is an embedding, whatever it is called.
    assert decayed(mine) == theirs | {n for n in mine if "relative_attention_bias.weight" in n}


def test_the_scales_of_a_gpt2_that_a_list_of_names_misses_are_found() -> None:
    model = of_transformers("gpt2")
    found = decays(model, decay_groups(model, 0.1))
    assert found["transformer.h.0.ln_1.weight"] == 0
    assert found["transformer.ln_f.weight"] == 0
    by_names = [n for n in found if not any(w in n for w in ("bias", "LayerNorm.weight"))]
    assert "transformer.h.0.ln_1.weight" in by_names


class OwnNorm(nn.Module):
    """Over channels, as it is often written."""

    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(1, 4, 1, 1))


class NormedLinear(nn.Linear):
    """A matrix whose name says norm."""


class Odd(nn.Module):
    """What is easily taken for something else."""

    def __init__(self) -> None:
        super().__init__()
        self.whole = nn.LayerNorm((3, 4))
        self.batch = nn.BatchNorm2d(4)
        self.group = nn.GroupNorm(2, 4)
        self.own = OwnNorm()
        self.normed = NormedLinear(4, 3, bias=False)
        self.table = nn.Embedding(5, 4)
        self.relative_position_bias_table = nn.Parameter(torch.zeros(9, 2))
        self.attention = nn.MultiheadAttention(4, 2, add_bias_kv=True)
        self.temperature = nn.Parameter(torch.ones(()))
        self.weighted = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))
        self.frozen = nn.Linear(4, 4).requires_grad_(False)


def test_norms_are_told_by_class_and_shape_and_biases_by_name() -> None:
    model = Odd()
    assert decayed(decays(model, decay_groups(model, 0.1))) == {
        "normed.weight",
        "table.weight",
        "attention.in_proj_weight",
        "attention.out_proj.weight",
        "weighted.parametrizations.weight.original0",
        "weighted.parametrizations.weight.original1",
    }
    kinds = kinds_of(model)
    assert kinds[id(model.whole.weight)] == kinds[id(model.own.gamma)] == "norm"
    assert kinds[id(model.temperature)] == "vector"


def test_every_norm_of_torch_is_one() -> None:
    made = [
        nn.BatchNorm1d(4), nn.BatchNorm3d(4), nn.SyncBatchNorm(4), nn.LayerNorm((2, 2)),
        nn.InstanceNorm1d(4, affine=True), nn.GroupNorm(1, 4), nn.RMSNorm((2, 2)),
    ]  # fmt: skip
    for norm in made:
        assert set(kinds_of(norm).values()) == {"norm"}, norm


def test_module_wise_decay_and_rates_are_built_by_name_pattern() -> None:
    """H69: Module-wise weight decay and LR groups can be built by name pattern."""
    model = of_transformers("gpt2")
    groups = decay_groups(
        model,
        0.3,
        rules={
            "transformer.wpe": {"weight_decay": 0.01},
            "*.attn": {"weight_decay": 0.05},
            re.compile(r"\.mlp\."): {"weight_decay": 0.1, "lr": 1e-4},
            "transformer.h.1.mlp": {"lr": 5e-5},
            "transformer.ln_f.weight": {"weight_decay": 0.2},
        },
    )
    found = decays(model, groups)
    rates = {id(p): g.get("lr") for g in groups for p in g["params"]}
    rate = {n: rates[id(p)] for n, p in model.named_parameters()}
    assert found["transformer.wte.weight"] == 0.3
    assert found["transformer.wpe.weight"] == 0.01
    assert found["transformer.h.0.attn.c_attn.weight"] == 0.05
    assert found["transformer.h.1.attn.c_proj.bias"] == 0.0, "a rule for many decays no bias"
    assert found["transformer.h.1.mlp.c_fc.weight"] == 0.1, "settings of several rules add up"
    assert rate["transformer.h.0.mlp.c_fc.bias"] == 1e-4
    assert rate["transformer.h.1.mlp.c_fc.weight"] == 5e-5, "the last rule holds"
    assert rate["transformer.h.1.attn.c_attn.weight"] is None
    assert found["transformer.ln_f.weight"] == 0.2, "one that is named in full is meant"
    optimizer = torch.optim.AdamW(groups, lr=1e-3)
    assert {g["lr"] for g in optimizer.param_groups} == {1e-3, 1e-4, 5e-5}


def test_a_tied_parameter_is_in_one_group_and_goes_by_any_of_its_names() -> None:
    model = of_transformers("gpt2")
    assert model.lm_head.weight is model.transformer.wte.weight
    found = decays(model, decay_groups(model, 0.1, rules={"lm_head": {"weight_decay": 0.7}}))
    assert found["transformer.wte.weight"] == 0.7
    found = decays(model, decay_groups(model, 0.1, decay_embeddings=False))
    assert found["transformer.wte.weight"] == found["transformer.wpe.weight"] == 0.0


def test_names_are_those_of_the_model_within_its_wrappers() -> None:
    model = torch.compile(nn.DataParallel(Blocks()))
    groups = decay_groups(model, 0.1, rules={"blocks.1": {"lr": 0.5}})
    (named,) = [g for g in groups if g.get("lr") == 0.5 and g["weight_decay"]]
    assert named["params"][0].shape == (10, 10)


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        ({"block.1": {"lr": 1.0}}, "did you mean blocks.1"),
        ({re.compile(r"^transformer\."): {"lr": 1.0}}, "there are scale, embed, embed.weight"),
        ({"blocks": {"weigth_decay": 0.1}}, "did you mean weight_decay"),
        ({"blocks": {"wd": 0.1}}, "is no setting of a group"),
        ({"blocks": {"lr": -1.0}}, "lr must be a number of at least 0"),
        ({"blocks": {"betas": (0.9, float("nan"))}}, "betas must be a number"),
        ({"blocks": {"lr": "0.1"}}, "lr must be a number"),
    ],
)
def test_what_a_rule_gets_wrong_is_refused(rules: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        decay_groups(blocks(), 0.1, rules=rules)


def test_what_cannot_be_grouped_is_refused() -> None:
    with pytest.raises(ValueError, match="weight_decay must be"):
        decay_groups(blocks(), float("nan"))
    with pytest.raises(ValueError, match="nothing to optimize"):
        decay_groups(blocks().requires_grad_(False), 0.1)
    with pytest.raises(ValueError, match=r"0\.weight has no shape yet"):
        decay_groups(nn.Sequential(nn.LazyLinear(3)), 0.1)

    class FullyShardedDataParallel(nn.Sequential):
        """By its name."""

    with pytest.raises(ValueError, match="flattens parameters"):
        decay_groups(FullyShardedDataParallel(nn.Linear(2, 2)), 0.1)


# In a running training


@each
def test_a_treated_run_is_one_whose_optimizer_was_built_of_such_groups(make: Any) -> None:
    model, built = blocks(), blocks()
    optimizer, twin = make(model.parameters()), make(decay_groups(built, 0.1))
    treatment = DecayGroups().apply(optimizer, model)
    for number in range(20):
        for one, steps in ((model, optimizer), (built, twin)):
            step(one, steps, number)
    assert treatment.applied, list(treatment.notes)
    for mine, theirs in zip(model.parameters(), built.parameters(), strict=True):
        torch.testing.assert_close(
            mine, theirs, rtol=0, atol=0 if make != MAKERS["Prodigy"] else 1e-6
        )


@each
def test_undone_the_run_goes_on_as_one_that_was_never_treated(make: Any) -> None:
    goes_on_untreated(DecayGroups(), make)


@pytest.mark.parametrize("kind", ["SGD", "AdamW", "Lion"])
def test_schedules_see_the_groups_of_the_user(kind: str) -> None:
    leaves_schedules_alone(DecayGroups, MAKERS[kind])


def test_without_a_gradient_signal_only_matrices_shrink() -> None:
    model = blocks()
    before = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.5)
    DecayGroups().apply(optimizer, model)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for (name, new), old in zip(model.named_parameters(), before.parameters(), strict=True):
        kept = 0.95 if new.dim() > 1 else 1.0
        torch.testing.assert_close(new, old * kept, msg=name)
    assert [g["weight_decay"] for g in optimizer.param_groups] == [0.5]


def test_it_tells_how_many_tensors_and_of_which_decay() -> None:
    model = blocks()
    told: list[Any] = []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    DecayGroups().apply(optimizer, model, tell=lambda *event: told.append(event)).undo()
    assert told[0][2:] == (0.1, 0.0)
    assert "9 of 15 tensors" in told[0][1]
    assert told[1][0] == "undo"


def test_a_decay_that_is_scheduled_and_groups_that_come_later_are_heeded() -> None:
    model, late = blocks(), nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.5)
    DecayGroups().apply(optimizer, model)
    optimizer.param_groups[0]["weight_decay"] = 0.2
    optimizer.add_param_group({"params": late.parameters(), "weight_decay": 0.4})
    old = late.weight.detach().clone(), late.bias.detach().clone(), model.head.weight.clone()
    for parameter in [*model.parameters(), *late.parameters()]:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    torch.testing.assert_close(late.weight, old[0] * 0.96)
    torch.testing.assert_close(late.bias, old[1])
    torch.testing.assert_close(model.head.weight, old[2] * 0.98)
    assert [g["weight_decay"] for g in optimizer.param_groups] == [0.2, 0.4]


@pytest.mark.parametrize(
    ("make", "model", "told"),
    [
        (lambda ps: torch.optim.Adam(ps), True, "no weight decay above 0"),
        (lambda ps: torch.optim.LBFGS(ps), True, "no weight decay above 0"),
        (lambda ps: torch.optim.AdamW(ps), False, "give it the model"),
        (lambda ps: torch.optim.AdamW([p for p in ps if p.dim() > 1]), True, "nothing to do: no"),
    ],
)
def test_what_has_no_decay_to_leave_out_is_refused(make: Any, model: bool, told: str) -> None:
    network = blocks()
    optimizer = make(list(network.parameters()))
    with pytest.raises(Refused, match=told):
        DecayGroups().apply(optimizer, network if model else None)
    assert not optimizer._optimizer_step_pre_hooks


def test_an_optimizer_that_was_built_of_such_groups_is_refused() -> None:
    model = blocks()
    with pytest.raises(Refused, match="nothing to do"):
        DecayGroups().apply(torch.optim.AdamW(decay_groups(model, 0.1)), model)


def test_a_scaler_and_half_precision_change_nothing() -> None:
    model = blocks().to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    treatment = DecayGroups().apply(optimizer, model)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(model(torch.ones(2, 6, dtype=torch.bfloat16)).square().mean()).backward()
    scaler.step(optimizer)
    assert treatment.applied
    assert len(optimizer.param_groups) == 1


def test_a_group_without_the_setting_stays_whole() -> None:
    several: list[Tensor] = [nn.Parameter(torch.ones(2)) for _ in range(4)]
    optimizer = torch.optim.SGD([{"params": several[:2]}, {"params": several[2:]}], lr=1.0)
    optimizer.param_groups[0]["weight_decay"] = None
    optimizer.add_param_group({"params": []})
    groups = list(optimizer.param_groups)
    split = Split(optimizer, "weight_decay")
    split.open({id(several[0]): "a", id(several[2]): "a"}, {"a": 0.0})
    assert [len(g["params"]) for g in optimizer.param_groups] == [2, 1, 1, 0]
    split.close()
    assert all(map(lambda a, b: a is b, optimizer.param_groups, groups))
