"""Ties that a model's configuration calls for and that are broken."""

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from small_training import quiet
from torch import nn
from torch.optim import AdamW

from optdoctor.findings import Severity
from optdoctor.live.ties import tie_facts

transformers = pytest.importorskip("transformers")


def gpt() -> Any:
    config = transformers.GPT2Config(
        n_layer=1, n_embd=8, n_head=2, vocab_size=50, bos_token_id=1, eos_token_id=1
    )
    return transformers.GPT2LMHeadModel(config)


def broken(model: nn.Module) -> object:
    return tie_facts(model).get("ties_broken")


def untie(model: Any) -> Any:
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    return model


def test_a_model_whose_weights_are_tied_has_none() -> None:
    assert broken(gpt()) == 0
    assert broken(nn.ModuleList([gpt(), nn.Linear(2, 2)])) == 0


def test_a_head_of_its_own_breaks_the_tie_and_is_told_before_step_1() -> None:
    model = untie(gpt())
    assert broken(model) == 1
    doctor = quiet(model, AdamW(model.parameters()))
    assert {f.rule: f.severity for f in doctor.diagnosis.findings} == {"tie-broken": Severity.WARN}


def test_tying_again_mends_it() -> None:
    model = untie(gpt())
    model.tie_weights()
    assert broken(model) == 0


def test_each_pair_is_counted_once() -> None:
    model = transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, vocab_size=50,
            tie_word_embeddings=True, decoder_start_token_id=0,
        )
    )  # fmt: skip
    assert broken(model) == 0
    assert broken(nn.ModuleList([untie(model), untie(gpt()), model])) == 2
    outer, inner = Older(tied=False), Older()
    inner.embed, inner.head, outer.inner = outer.embed, outer.head, inner
    assert broken(outer) == 1


def test_a_model_that_calls_nothing_tied_says_nothing() -> None:
    config = transformers.LlamaConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        vocab_size=50, tie_word_embeddings=False,
    )  # fmt: skip
    assert broken(transformers.LlamaForCausalLM(config)) is None
    assert broken(nn.Linear(2, 2)) is None


def test_one_storage_under_two_parameters_is_a_tie() -> None:
    model = gpt()
    model.lm_head.weight = nn.Parameter(model.transformer.wte.weight.data)
    assert model.lm_head.weight is not model.transformer.wte.weight
    assert broken(model) == 0


def test_frozen_copies_are_as_good_as_tied_until_their_values_differ() -> None:
    model = untie(gpt()).requires_grad_(False)
    assert broken(model) == 0
    model.lm_head.weight += 1
    assert broken(model) == 1
    model.lm_head.weight -= 1
    model.lm_head.requires_grad_(True)
    assert broken(model) == 1


def test_other_shapes_are_no_tie() -> None:
    model = gpt()
    longer = torch.cat([model.transformer.wte.weight.detach(), torch.zeros(10, 8)])
    model.lm_head.weight = nn.Parameter(longer)
    assert broken(model) == 1
    assert broken(model.requires_grad_(False)) == 1


def test_a_deep_copy_keeps_the_tie() -> None:
    assert broken(copy.deepcopy(gpt())) == 0


def test_a_model_on_the_meta_device_is_not_judged() -> None:
    assert broken(untie(gpt()).to("meta")) == 0


def test_copies_that_peft_trains_were_untied_on_purpose() -> None:
    peft = pytest.importorskip("peft")
    plain = peft.get_peft_model(gpt(), peft.LoraConfig(r=2, target_modules=["c_attn", "lm_head"]))
    assert broken(plain) == 0
    own = peft.LoraConfig(r=2, target_modules=["c_attn"], modules_to_save=["lm_head"])
    assert broken(peft.get_peft_model(gpt(), own)) is None


class Older(nn.Module):
    """A model as transformers 4 makes it, as far as ties go."""

    def __init__(self, tie: object = True, tied: bool = True) -> None:
        super().__init__()
        self.config = SimpleNamespace(tie_word_embeddings=tie)
        self.embed, self.head = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def get_input_embeddings(self) -> nn.Module:
        return self.embed

    def get_output_embeddings(self) -> Any:
        return self.head


class Headless(Older):
    def get_output_embeddings(self) -> Any:
        return None


class Refusing(Older):
    def get_output_embeddings(self) -> Any:
        raise NotImplementedError


def test_a_model_of_the_release_before_names_its_two_embeddings() -> None:
    assert broken(Older()) == 0
    assert broken(Older(tied=False)) == 1
    assert broken(Older(tie=False, tied=False)) is None
    assert broken(Older(tie=None, tied=False)) is None
    assert broken(Headless(tied=False)) is None
    assert broken(Refusing(tied=False)) is None
    assert broken(nn.ModuleList([Refusing(), Older(tied=False)])) == 1


@pytest.mark.parametrize("told", [{"lm_head.weight": "gone.weight"}, {1: 2}, {"": ""}, 7])
def test_names_that_lead_nowhere_say_nothing(told: Any) -> None:
    model = gpt()
    model.all_tied_weights_keys = told
    model.config.tie_word_embeddings = False
    assert broken(model) is None
