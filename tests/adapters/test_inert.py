"""What the callbacks of all frameworks share."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from optdoctor.settings import SettingsError

each = pytest.mark.parametrize("framework", ["huggingface", "lightning"])


def make(framework: str, **arguments: Any) -> Any:
    return import_module(f"optdoctor.adapters.{framework}").OptDoctorCallback(**arguments)


@each
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"sinks": ("consol",)}, "no sink is named 'consol'"),
        ({"sinks": "consol"}, "no sink is named 'consol'"),
        ({"treat": ("magic",)}, "no treatment is named 'magic'"),
        ({"overhead": 0}, "overhead"),
        ({"overhead": 2.0}, "overhead"),
        ({"interval": 0}, "interval"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused_at_once(
    framework: str, arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        make(framework, **arguments)


@each
def test_settings_that_are_wrong_are_refused_at_once(
    framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.optdoctor]\nselekt = []\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match="selekt"):
        make(framework)
