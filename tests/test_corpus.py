"""Real logs, where OPTDOCTOR_CORPUS names a folder of them; `pytest -s` prints a table.

Labels are for measuring. Only single logs without doubt are asserted.
"""

import json
import os
from collections import Counter
from pathlib import Path

import pytest

from optdoctor.engine import diagnose
from optdoctor.findings import Diagnosis, Severity, Status
from optdoctor.reader import Unreadable
from optdoctor.readers import read

CORPUS = Path(os.environ.get("OPTDOCTOR_CORPUS", ""))
INDEX = CORPUS / "index.jsonl"

pytestmark = pytest.mark.skipif(
    "OPTDOCTOR_CORPUS" not in os.environ or not INDEX.is_file(),
    reason="OPTDOCTOR_CORPUS names no folder with an index.jsonl",
)


def entries() -> list[dict[str, str]]:
    return [json.loads(line) for line in INDEX.read_text(encoding="utf-8").splitlines() if line]


def diagnosis_of(name: str) -> Diagnosis:
    file = next(entry["file"] for entry in entries() if entry["id"] == name)
    return diagnose(read(CORPUS / file))


def test_every_log_is_diagnosed_or_unreadable() -> None:
    table: Counter[tuple[str, str]] = Counter()
    for entry in entries():
        try:
            diagnosis = diagnose(read(CORPUS / entry["file"]))
            assert diagnosis.with_status(Status.CRASHED) == {}, entry["id"]
            verdict = str(diagnosis.verdict)
        except Unreadable:
            verdict = "unreadable"
        table[entry["diagnosis"], verdict] += 1
    verdicts = sorted({verdict for _, verdict in table})
    print("\n" + " " * 24 + "".join(f"{verdict:>12}" for verdict in verdicts))
    for label in sorted({label for label, _ in table}):
        print(f"{label:24}" + "".join(f"{table[label, verdict]:12}" for verdict in verdicts))


@pytest.mark.parametrize("name", ["hf-state-01", "hf-console-04", "lightning-csv-02"])
def test_a_healthy_log_raises_no_alarm(name: str) -> None:
    diagnosis = diagnosis_of(name)
    assert diagnosis.verdict in ("healthy", "unknown")
    assert all(finding.severity is Severity.NOTE for finding in diagnosis.findings)


@pytest.mark.parametrize(
    ("name", "rule"), [("hf-state-03", "bimodal-gap"), ("keras-csv-01", "early-plateau")]
)
def test_a_log_with_a_clear_shape_is_found(name: str, rule: str) -> None:
    diagnosis = diagnosis_of(name)
    assert diagnosis.verdict == "sick"
    assert {f.rule for f in diagnosis.findings if f.severity is not Severity.NOTE} == {rule}


def test_a_log_that_turned_nan_is_found() -> None:
    assert "nan-pulse" in {finding.rule for finding in diagnosis_of("hf-console-01").findings}
