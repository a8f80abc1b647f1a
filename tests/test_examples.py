"""Each example runs from a bare shell and shows what its docstring says."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import optdoctor

EXAMPLES = Path(__file__).parent.parent / "examples"
WORDS = {
    "01_trainer.py": ["HEALTHY", "verdict: healthy, 0 findings"],
    "02_lightning.py": ["HEALTHY", "0.50 after it", "verdict: healthy, "],
    "03_plain_loop.py": [
        "known before step 1: epsilon-below-precision",
        "optdoctor-run/float16: last loss nan, sick",
        "to change, because of epsilon-below-precision: Keep weights and optimizer state in",
        "HEALTHY",
        "optdoctor-run/treated: last loss 2.",
    ],
    "05_treatment.py": [
        "untreated: loss 5.3",
        "-> nan, sick",
        "-> 2.",
        ", healthy",
        "step 0: Float32State() is switched on from step 1, for half-precision-state",
    ],
    "04_read_a_log.py": [
        "verdict: sick",
        "found:   nan-pulse, steps 41-60",
        "printed as 0 in place of NaN",
        "1 CRITICAL  nan-pulse",
    ],
}
RECORDS = {
    "01_trainer.py": {"optdoctor-run/trainer": "healthy"},
    "02_lightning.py": {"optdoctor-run/lightning": "healthy"},
    "03_plain_loop.py": {"optdoctor-run/float16": "sick", "optdoctor-run/treated": "healthy"},
    "05_treatment.py": {"optdoctor-run/untreated": "sick", "optdoctor-run/treated": "healthy"},
}
each_example = pytest.mark.parametrize(
    "path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem
)


@pytest.mark.slow
@each_example
def test_an_example_runs_and_shows_what_it_says(path: Path, tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, str(path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONWARNINGS": "default"},
        capture_output=True,
        encoding="utf-8",
        timeout=240,
    )
    assert result.returncode == 0, result.stderr
    shown = result.stdout + result.stderr
    assert [words for words in WORDS[path.name] if words not in shown] == []
    assert "Traceback" not in shown
    for record, verdict in RECORDS.get(path.name, {}).items():
        assert optdoctor.diagnose(optdoctor.read(tmp_path / record)).verdict == verdict
    left = {item.name for item in tmp_path.iterdir()}
    assert left <= {"optdoctor-run"}, "an example leaves nothing that git would see"


@each_example
def test_an_example_is_short_and_says_what_it_shows(path: Path) -> None:
    source = path.read_text("utf-8")
    assert len(source.splitlines()) < 60
    doc = ast.get_docstring(ast.parse(source)) or ""
    assert f"python examples/{path.name}" in doc
    assert path.name in WORDS
