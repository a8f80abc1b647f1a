"""What the clinic answers where it cannot do what it is asked, and its page's sum."""

import sys
from types import SimpleNamespace

import commands
import pytest
import validation


def asked(monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    """What the command says before it ends."""
    monkeypatch.setattr(sys, "argv", ["tests.clinic", *words])
    with pytest.raises(SystemExit) as ended:
        commands.main()
    return str(ended.value)


def test_without_the_packages_of_dev_one_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "NEEDED", ("no_such_package",))
    said = asked(monkeypatch, "try", "--fault", "rate-too-high")
    assert said.startswith("the clinic needs the extra dev (no_such_package): ")
    assert "--editable '.[dev]'" in said


def test_a_misspelt_fault_gets_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    said = asked(monkeypatch, "try", "--fault", "rate-to-high")
    assert said.startswith("no fault is named 'rate-to-high'; did you mean rate-too-high or ")


def test_the_runs_of_the_page_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def runs(times: int, drawn: bool = False, decoy: bool | None = None, harmed: bool = False):
        fault = None if decoy is None else SimpleNamespace(decoy=decoy)
        job = SimpleNamespace(drawn=drawn, fault="" if fault is None else "one")
        return [SimpleNamespace(job=job, fault=fault, harmed=harmed)] * times

    monkeypatch.setattr(validation, "sane", lambda drawn: drawn[:5])
    said = validation._sum(
        [
            *runs(8, drawn=True),
            *runs(16),
            *runs(32, decoy=False, harmed=True),
            *runs(64, decoy=False),
            *runs(128, decoy=True),
        ]
    )
    assert said.startswith("248 runs of configurations held apart: 8 without a fault")
    assert "of which 5 count as healthy and 3 do not" in said
    assert "224 with one of" in said
    assert "32 that a fault harmed, 128 whose decoy did no harm, and 64 that" in said
    assert "16 healthy twins" in said
