"""What the user may set, and what is said when it is wrong."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from optdoctor.rule import Limits, Rule
from optdoctor.settings import Settings, SettingsError, from_table, load
from optdoctor.synthetic import make_trace


@dataclass(frozen=True, slots=True)
class Shares(Limits):
    share: float = 0.5
    count: int = 3


def rule(name: str) -> Rule:
    return Rule(
        name=name,
        needs=("loss",),
        check=lambda trace, limits: [],
        limits=Shares(),
        sick=make_trace,
        healthy=make_trace,
        doc="",
    )


RULES = [rule(name) for name in ("alpha", "beta", "gamma")]


def names(**table: Any) -> list[str]:
    return [r.name for r in from_table(table).chosen(RULES)]


def test_without_settings_every_rule_runs_with_its_own_limits() -> None:
    assert Settings().chosen(RULES) == tuple(RULES)
    assert Settings().fail_on == "critical"


def test_select_and_ignore_choose_rules() -> None:
    assert names(select=["gamma", "alpha"]) == ["alpha", "gamma"]
    assert names(ignore=["beta"]) == ["alpha", "gamma"]
    assert names(select=["alpha", "beta"], ignore=["beta"]) == ["alpha"]
    assert names(select=[]) == ["alpha", "beta", "gamma"]


def test_limits_change_one_limit_of_one_rule() -> None:
    chosen = from_table({"limits": {"beta": {"share": 0.9}}}).chosen(RULES)
    assert [r.limits for r in chosen] == [Shares(), Shares(share=0.9), Shares()]
    assert RULES[1].limits == Shares()


@pytest.mark.parametrize("value", ["note", "warn", "critical", "never"])
def test_fail_on_takes_a_severity_or_never(value: str) -> None:
    assert from_table({"fail-on": value}).fail_on == value
    assert from_table({"fail_on": value}).fail_on == value


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"selct": ["alpha"]}, ["'selct'", "select", "ignore", "limits", "fail_on"]),
        ({"select": "alpha"}, ["select", "list", "'alpha'"]),
        ({"select": [1]}, ["select", "list"]),
        ({"ignore": {"alpha": True}}, ["ignore", "list"]),
        ({"fail_on": "fatal"}, ["fail_on", "note", "warn", "critical", "never", "'fatal'"]),
        ({"fail_on": 1}, ["fail_on"]),
        ({"fail_on": ["warn"]}, ["fail_on"]),
        ({"limits": ["alpha"]}, ["limits", "tables"]),
        ({"limits": {"alpha": 3}}, ["limits", "tables"]),
    ],
)
def test_a_wrong_key_or_kind_is_an_error_that_names_what_is_known(
    table: dict[str, Any], said: list[str]
) -> None:
    with pytest.raises(SettingsError) as error:
        from_table(table)
    assert [word for word in said if word not in str(error.value)] == []


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"select": ["alhpa"]}, ["'alhpa'", "did you mean alpha?"]),
        ({"ignore": ["alhpa"]}, ["'alhpa'", "did you mean alpha?"]),
        ({"limits": {"alhpa": {"share": 1}}}, ["'alhpa'", "did you mean alpha?"]),
        ({"ignore": ["x"]}, ["'x'", "`optdoctor rules` lists them"]),
        ({"limits": {"alpha": {"shar": 1}}}, ["alpha", "'shar'", "count, rows, share"]),
        ({"limits": {"alpha": {"share": "half"}}}, ["alpha.share", "number", "'half'"]),
        ({"limits": {"alpha": {"share": True}}}, ["alpha.share", "number"]),
        ({"limits": {"alpha": {"share": float("nan")}}}, ["alpha.share", "finite", "nan"]),
        ({"limits": {"alpha": {"share": [1]}}}, ["alpha.share", "number"]),
    ],
)
def test_an_unknown_rule_or_limit_is_an_error_that_names_those_known(
    table: dict[str, Any], said: list[str]
) -> None:
    with pytest.raises(SettingsError) as error:
        from_table(table).chosen(RULES)
    assert [word for word in said if word not in str(error.value)] == []


def write(folder: Path, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")


def test_the_nearest_pyproject_counts(tmp_path: Path) -> None:
    write(tmp_path, "[tool.optdoctor]\nfail-on = 'note'\nignore = ['alpha']\n")
    write(tmp_path / "a", "[tool.optdoctor]\nfail-on = 'warn'\n")
    (tmp_path / "a" / "b").mkdir()
    assert load(tmp_path / "a" / "b") == Settings(fail_on="warn")
    assert load(tmp_path) == Settings(fail_on="note", ignore=("alpha",))


def test_the_nearest_pyproject_counts_also_without_a_table_of_ours(tmp_path: Path) -> None:
    write(tmp_path, "[tool.optdoctor]\nfail-on = 'note'\n")
    write(tmp_path / "a", "[project]\nname = 'mine'\n")
    assert load(tmp_path / "a") == Settings()


def test_the_working_folder_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "[tool.optdoctor]\nfail-on = 'note'\n")
    monkeypatch.chdir(tmp_path)
    assert load().fail_on == "note"


@pytest.mark.parametrize(
    "text",
    [
        "[tool.optdoctor",
        "[tool.optdoctor]\nselct = []\n",
        "[tool]\noptdoctor = 3\n",
        "tool = 3\n",
        "tool = ['optdoctor']\n",
    ],
)
def test_a_broken_file_is_an_error_that_names_it(tmp_path: Path, text: str) -> None:
    write(tmp_path, text)
    with pytest.raises(SettingsError, match=r"pyproject\.toml") as error:
        load(tmp_path)
    assert error.value.path == str(tmp_path.resolve() / "pyproject.toml")
    assert error.value.reason
    assert error.value.remedy


def test_a_wrong_limit_of_a_rule_that_is_left_out_is_not_passed_over() -> None:
    with pytest.raises(SettingsError, match="shar"):
        from_table({"select": ["beta"], "limits": {"alpha": {"shar": 1}}}).chosen(RULES)


def test_a_working_folder_that_is_gone_is_an_error_of_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone() -> Path:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(Path, "cwd", gone)
    with pytest.raises(SettingsError, match="working folder"):
        load()


def test_a_file_that_is_no_text_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError, match=r"pyproject\.toml"):
        load(tmp_path)
