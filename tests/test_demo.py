"""`optdoctor demo`, as a user starts it."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

LIMIT_S = 90

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shown(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[subprocess.CompletedProcess[str], float]:
    """The demo's process, and how many seconds it took."""
    folder = tmp_path_factory.mktemp("demo")
    begin = time.monotonic()
    result = subprocess.run(
        [sys.executable, "-m", "optdoctor", "demo"],
        cwd=folder,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        encoding="utf-8",
        timeout=2 * LIMIT_S,
    )
    assert list(Path(folder).iterdir()) == [], "it leaves files behind"
    return result, time.monotonic() - begin


def test_it_names_the_cause_and_a_layer(
    shown: tuple[subprocess.CompletedProcess[str], float],
) -> None:
    result, _ = shown
    assert result.returncode == 0, result.stderr
    assert re.search(r"^ +cause +second-moment-underflow$", result.stdout, re.M)
    assert re.search(r"^ +where +.* of blocks 0-1", result.stdout, re.M)
    assert re.search(r"^ +worst +transformer\.h\.\d\.\S+, ", result.stdout, re.M)


def test_no_line_is_wider_than_a_terminal(
    shown: tuple[subprocess.CompletedProcess[str], float],
) -> None:
    result, _ = shown
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_the_log_alone_shows_the_symptom_and_no_cause(
    shown: tuple[subprocess.CompletedProcess[str], float],
) -> None:
    result, _ = shown
    assert "From this log alone optdoctor finds nan-pulse, and no cause." in result.stdout
    assert re.search(r"loss 0 +grad_norm nan", result.stdout)


def test_the_second_run_recovers(shown: tuple[subprocess.CompletedProcess[str], float]) -> None:
    result, _ = shown
    assert re.search(r"float16: loss [\d.]+ -> NaN, sick$", result.stdout, re.M)
    ending = re.search(r"treated: loss ([\d.]+) -> ([\d.]+), healthy$", result.stdout, re.M)
    assert ending, result.stdout
    assert float(ending[2]) < 0.8 * float(ending[1])
    assert re.search(r"^ +recovered +yes$", result.stdout, re.M)


def test_the_cause_is_told_while_the_run_is_alive(
    shown: tuple[subprocess.CompletedProcess[str], float],
) -> None:
    result, _ = shown
    told = [line for line in result.stderr.splitlines() if line.startswith("optdoctor  step")]
    assert told[0].startswith("optdoctor  step 3 ")
    assert "second-moment-underflow" in told[0]
    assert "Traceback" not in result.stderr
    lines = [line for line in result.stderr.splitlines() if line.startswith(("optdoctor", " " * 9))]
    assert max(map(len, lines)) <= 80


def test_it_is_over_before_one_gets_bored(
    shown: tuple[subprocess.CompletedProcess[str], float],
) -> None:
    assert shown[1] < LIMIT_S
