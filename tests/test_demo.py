"""`optdoctor demo`, as a user starts it, with each framework and each fault."""

import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

LIMIT_S = 120
FAST = [("huggingface", "underflow"), ("lightning", "underflow"), ("torch", "underflow")]
SLOW = [("huggingface", "rounding"), ("torch", "rounding")]

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Shown:
    code: int
    out: str
    err: str
    seconds: float
    left: tuple[str, ...]
    pages: tuple[str, ...]
    """Those that it names and that are there, by folder."""


@cache
def shown(framework: str, fault: str) -> Shown:
    """One demo's process."""
    with TemporaryDirectory() as folder, TemporaryDirectory() as kept:
        begin = time.monotonic()
        arguments = ["demo", "--framework", framework, "--fault", fault]
        result = subprocess.run(
            [sys.executable, "-m", "optdoctor", *arguments],
            cwd=folder,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "TMPDIR": kept},
            capture_output=True,
            encoding="utf-8",
            timeout=2 * LIMIT_S,
        )
        left = tuple(path.name for path in Path(folder).iterdir())
        seconds = time.monotonic() - begin
        named = re.findall(r"^ +page +(\S+)$", result.stdout, re.M)
        pages = tuple(path.parent.name for path in map(Path, named) if path.is_file())
    return Shown(result.returncode, result.stdout, result.stderr, seconds, left, pages)


each = pytest.mark.parametrize(("framework", "fault"), [*FAST, *SLOW])
each_fast = pytest.mark.parametrize(("framework", "fault"), FAST)
each_slow = pytest.mark.parametrize(("framework", "fault"), SLOW)


def ending(out: str, title: str) -> tuple[float, float, str]:
    said = re.search(rf"{title}: loss (\S+) -> (\S+), (\w+)$", out, re.M)
    assert said, out
    return float(said[1]), float(said[2]), said[3]


@each
def test_it_succeeds_and_leaves_nothing_where_it_is_called(framework: str, fault: str) -> None:
    demo = shown(framework, fault)
    assert demo.code == 0, demo.err
    assert demo.left == ()
    assert "Traceback" not in demo.err
    assert demo.pages == ("sick", "treated")
    assert re.search(r"^page +\S*optdoctor-demo-\S+/sick/report.html$", demo.err, re.M)
    assert "doctor.diagnosis" not in demo.err
    assert demo.seconds < LIMIT_S


@each
def test_no_line_is_wider_than_a_terminal(framework: str, fault: str) -> None:
    demo = shown(framework, fault)
    assert max(map(len, demo.out.splitlines())) <= 80
    ours = [s for s in demo.err.splitlines() if s.startswith(("optdoctor", " " * 9))]
    assert max(map(len, ours)) <= 80


@each
def test_the_treated_run_recovers(framework: str, fault: str) -> None:
    demo = shown(framework, fault)
    first, last, verdict = ending(demo.out, "treated")
    assert verdict == "healthy"
    assert last < first
    assert re.search(r"^ +recovered +yes$", demo.out, re.M)


@each_fast
def test_the_fast_fault_is_named_with_its_layers(framework: str, fault: str) -> None:
    demo = shown(framework, fault)
    _, last, verdict = ending(demo.out, "float16")
    assert verdict == "sick"
    assert last != last, "the float16 run ends with NaN"
    cause = "second-moment-underflow" if framework == "huggingface" else "epsilon-below-precision"
    assert re.search(rf"^ +cause +{cause}$", demo.out, re.M), demo.out
    assert re.search(r"^ +where +\S+", demo.out, re.M)
    assert re.search(r"^ +worst +\S*\.\S+, ", demo.out, re.M)


@pytest.mark.parametrize("framework", ["huggingface", "lightning"])
def test_the_log_alone_shows_the_symptom_and_no_cause(framework: str) -> None:
    out = shown(framework, "underflow").out
    said = re.search(
        r"From this log alone optdoctor finds ([\w, -]+), and no cause", " ".join(out.split())
    )
    assert said, out
    assert "nan-pulse" in said[1].split(", ")
    assert re.search(r"loss 0 +grad_norm nan|train_loss nan", out)


def test_the_cause_is_told_while_the_run_is_alive() -> None:
    said = shown("huggingface", "underflow").err.splitlines()
    told = [line for line in said if line.startswith("optdoctor  step")]
    assert told[0].startswith("optdoctor  step 3 ")
    assert "second-moment-underflow" in told[0]


@each_slow
def test_the_slow_fault_is_told_long_before_the_loss_shows_it(framework: str, fault: str) -> None:
    demo = shown(framework, fault)
    told = re.search(r"^optdoctor  step (\d+)  \w+ update-lost-to-rounding", demo.err, re.M)
    assert told, demo.err
    assert re.search(r"^ +cause +update-lost-to-rounding$", demo.out, re.M)
    shows = re.search(r"treated run from step (\d+)", " ".join(demo.out.split()))
    assert shows, demo.out
    lead = int(shows[1]) - int(told[1])
    print(f"{framework}: told {lead} steps before the loss shows it")
    assert lead >= {"torch": 180, "huggingface": 100}[framework]
