import inspect
import re
from pathlib import Path

import pytest

from optdoctor.channels import Axis, channel
from optdoctor.knowledge.knobs import frameworks, look_inside, spell
from optdoctor.rules import RULES

FLOAT32 = dict.fromkeys(("param_dtype", "state_dtype", "math_dtype"), ("float16", "float32"))
VALUES = {"eps": 1e-8, "weight_decay": 0.1, "beta2": 0.95, "max_grad_norm": 1.0}


def test_every_knob_is_a_run_channel() -> None:
    for module in frameworks().values():
        for knob in module.KNOBS:
            assert channel(knob).axis is Axis.RUN


def test_every_change_of_every_rule_is_spelled_in_every_framework() -> None:
    from optdoctor.engine import diagnose

    for rule in RULES:
        for finding in diagnose(rule.sick(), [rule]).findings:
            for treatment in finding.treatments:
                if treatment.changes:
                    labels = {label for label, _ in spell(None, treatment.changes)}
                    assert labels == {module.LABEL for module in frameworks().values()}


def test_dtypes_that_change_together_give_one_line() -> None:
    assert spell("huggingface", FLOAT32) == [
        ("HF", "from_pretrained(.., dtype=torch.float32), TrainingArguments(bf16=True)")
    ]
    assert len(spell(None, FLOAT32)) == 2


def test_a_knob_or_value_without_a_spelling_is_left_out() -> None:
    assert spell("torch", {"schedule": (None, "cosine"), "param_dtype": ("float32", "int8")}) == []


def test_lightning_falls_back_to_plain_code() -> None:
    assert [label for label, _ in spell("lightning", {"eps": (1e-8, 1e-4)})] == ["plain"]
    assert look_inside("huggingface")[0][1].startswith("Trainer(")


@pytest.mark.parametrize("knob", VALUES)
def test_the_trainer_takes_every_argument_as_spelled(knob: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    ((_, code),) = spell("huggingface", {knob: (0.5, VALUES[knob])})
    name, value = re.fullmatch(r"TrainingArguments\((\w+)=(.+)\)", code).groups()  # type: ignore[union-attr]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), report_to=[], use_cpu=True, **{name: float(value)}
    )
    assert getattr(arguments, name) == VALUES[knob]


def test_bfloat16_autocast_and_the_dtype_argument_exist_in_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), report_to=[], use_cpu=True, bf16=True
    )
    assert arguments.bf16
    config = transformers.GPT2Config(n_layer=1, n_head=1, n_embd=8, vocab_size=16, n_positions=8)
    transformers.GPT2LMHeadModel(config).half().save_pretrained(tmp_path / "model")
    model = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "model", dtype=torch.float32)
    assert {p.dtype for p in model.parameters()} == {torch.float32}


@pytest.mark.parametrize("knob", VALUES)
def test_plain_code_runs_and_sets_the_knob(knob: str) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    ((_, code),) = spell("torch", {knob: (0.5, VALUES[knob])})
    exec(code, {"torch": torch, "model": model, "optimizer": optimizer})
    group = optimizer.param_groups[0]
    seen = {"eps": group["eps"], "weight_decay": group["weight_decay"], "beta2": group["betas"][1]}
    assert seen.get(knob, 1.0) == VALUES[knob]


def test_data_files_import_nothing_heavy() -> None:
    for module in frameworks().values():
        assert "import" not in inspect.getsource(module).split('"""', 2)[2].split()
