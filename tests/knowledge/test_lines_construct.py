"""The lines that add optdoctor or a treatment to a training are run, in the installed version."""

import importlib
from pathlib import Path
from typing import Any

import pytest

import optdoctor
from optdoctor.engine import examine
from optdoctor.knowledge.knobs import frameworks, look_inside, spell
from optdoctor.rules import RULES

torch = pytest.importorskip("torch")


def names_of(framework: str, folder: Path) -> dict[str, Any]:
    """What a script of that framework has at hand; `..` stands for what its trainer is given."""
    model = torch.nn.Linear(2, 1)
    names = {"model": model, "optimizer": torch.optim.AdamW(model.parameters())}
    if framework == "torch":
        return {**names, "optdoctor": optdoctor, "..": "model, optimizer, out=None, sinks=()"}
    package = {"huggingface": "transformers", "lightning": "lightning.pytorch"}[framework]
    library = pytest.importorskip(package)
    adapter = importlib.import_module(f"optdoctor.adapters.{framework}")
    names |= {"Trainer": library.Trainer, "OptDoctorCallback": adapter.OptDoctorCallback}
    if framework == "lightning":
        names["folder"] = folder
        return {**names, "..": 'default_root_dir=folder, accelerator="cpu", logger=False'}
    names["arguments"] = library.TrainingArguments(output_dir=str(folder), report_to=[])
    return {**names, "..": "model=model, args=arguments"}


def run(code: str, names: dict[str, Any]) -> Any:
    """Its value, or that of the name that it sets."""
    code = code.replace("..", names.pop(".."))
    exec(code if " = " in code.partition("(")[0] else f"doctor = {code}", names)
    return names["doctor"]


@pytest.mark.parametrize("framework", frameworks())
def test_the_line_that_adds_optdoctor_runs(
    framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a doctor writes its record where it is
    ((_, code),) = look_inside(framework)
    names = {"..": "", **names_of(framework, tmp_path)}
    made = run(code, names)
    if framework == "torch":
        made.close()
        return
    several = made.callbacks if framework == "lightning" else made.callback_handler.callbacks
    assert any(type(one).__name__ == "OptDoctorCallback" for one in several)


@pytest.mark.parametrize("framework", frameworks())
def test_the_line_that_switches_a_treatment_on_runs(framework: str, tmp_path: Path) -> None:
    ((_, code),) = spell(framework, {}, "adaptive-clipping")
    made = run(code, {"..": "", **names_of(framework, tmp_path)})
    if framework != "torch":
        assert "adaptive-clipping" in repr(vars(made))
        return
    assert [one.name for one in made.treatments] == ["adaptive-clipping"]
    made.close()


def test_every_treatment_that_a_rule_names_can_be_made_by_its_name_alone() -> None:
    treatments = importlib.import_module("optdoctor.treatments")
    named = {
        t.intervention: rule.name
        for rule in RULES
        for finding in examine(rule, rule.sick()).findings
        for t in finding.treatments
        if t.intervention
    }
    assert named
    assert set(named) <= set(treatments.interventions())
    for name in named:
        assert treatments.make(name).name == name
