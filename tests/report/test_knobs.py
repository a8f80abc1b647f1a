import inspect

from optdoctor.channels import Axis, channel
from optdoctor.knowledge.knobs import frameworks, look_inside, spell
from optdoctor.rules import RULES

FLOAT32 = dict.fromkeys(("param_dtype", "state_dtype", "math_dtype"), ("float16", "float32"))


def test_every_knob_is_a_run_channel_or_a_rate() -> None:
    for module in frameworks().values():
        for knob in module.KNOBS:
            assert knob in ("lr", "tensor_lr:") or channel(knob).axis is Axis.RUN


def test_every_change_of_every_rule_is_spelled_in_every_framework() -> None:
    from optdoctor.engine import diagnose

    for rule in RULES:
        for finding in diagnose(rule.sick(), [rule]).findings:
            for treatment in finding.treatments:
                if treatment.changes:
                    labels = {label for label, _ in spell(None, treatment.changes)}
                    assert labels == {module.LABEL for module in frameworks().values()}


def test_dtypes_that_change_together_give_one_line() -> None:
    ((label, code),) = spell("huggingface", FLOAT32)
    assert label == "HF"
    assert code.splitlines()[0].endswith("dtype=torch.float32)")
    assert code.splitlines()[-1] == "TrainingArguments(bf16=True)"
    assert len(spell(None, FLOAT32)) == len(frameworks())


def test_a_knob_or_value_without_a_spelling_is_left_out() -> None:
    assert spell("torch", {"num_classes": (2, 3), "param_dtype": ("float32", "int8")}) == []


def test_a_known_framework_speaks_alone() -> None:
    assert [label for label, _ in spell("lightning", {"eps": (1e-8, 1e-4)})] == ["Lightning"]
    assert look_inside("huggingface")[0][1].startswith("Trainer(")


def test_data_files_import_nothing_heavy() -> None:
    for module in frameworks().values():
        assert "import" not in inspect.getsource(module).split('"""', 2)[2].split()
