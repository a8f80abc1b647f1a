"""Counts how often each symptom rule is right on labelled real logs, and writes it down.

    OPTDOCTOR_CORPUS=FOLDER python scripts/measure_rates.py [--check]

The folder holds logs and `index.jsonl`: {id, file, diagnosis, confidence} a line. Labels of low
confidence are left out. The counts go to `optdoctor/knowledge/rates.json`, from which `optdoctor
explain` prints them; `--check` only compares them and ends with 1 where they differ.
"""

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from optdoctor.engine import diagnose
from optdoctor.findings import Severity
from optdoctor.knowledge.fingerprint import fingerprint
from optdoctor.readers import read
from optdoctor.rule import SYMPTOMS

ROOT = Path(__file__).resolve().parent.parent
RATES = ROOT / "optdoctor" / "knowledge" / "rates.json"
ON = "on logs that other people published"
EXPECTED: Mapping[str, tuple[str, ...]] = {
    "NaN (permanent)": ("nan-pulse",),
    "NaN pulse": ("nan-pulse",),
    "early plateau": ("early-plateau",),
    "overfitting": ("bimodal-gap",),
    "divergence": ("divergence",),
    "slow drift up": ("upward-drift",),
    "spike-and-recover": ("loss-spike",),
    "staircase": ("staircase-oscillation",),
    "loss-scale collapse": ("loss-scale-collapse",),
    "gradient anomaly": ("gradient-outlier", "nonfinite-gradient"),
}
"""{label: the rules of which one names it}."""


def verdicts(folder: Path) -> list[tuple[str, str, dict[str, Severity]]]:
    """(id, label, {rule found: its severity}) of each log whose label is not of low confidence."""
    found = []
    for line in (folder / "index.jsonl").read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        if entry["confidence"] != "low":
            diagnosis = diagnose(read(folder / entry["file"]))
            rules = {finding.rule: finding.severity for finding in reversed(diagnosis.findings)}
            found.append((entry["id"], entry["diagnosis"], rules))
    return found


def counted(found: list[tuple[str, str, dict[str, Severity]]]) -> dict[str, Any]:
    """The collection's entry in `rates.json`."""
    sick, named, alarms, healthy = Counter[str](), Counter[str](), Counter[str](), 0
    for _, label, rules in found:
        if label == "healthy":
            healthy += 1
            alarms.update(name for name, gravity in rules.items() if gravity != Severity.NOTE)
        for name in EXPECTED.get(label, ()):
            others = {other for other in EXPECTED[label] if other != name and other in rules}
            if name in rules or not others:  # one of two names is enough
                sick[name] += 1
                named[name] += name in rules
    entries = {}
    for name in sorted(SYMPTOMS):
        entries[name] = {"of": fingerprint(name), "alarms": [alarms[name], healthy]}
        if sick[name]:
            entries[name]["named"] = [named[name], sick[name]]
    return {"on": ON, "rules": entries}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    folder = Path(os.environ.get("OPTDOCTOR_CORPUS", ""))
    if not (folder / "index.jsonl").is_file():
        print("OPTDOCTOR_CORPUS names no folder with an index.jsonl", file=sys.stderr)
        return 2
    found = verdicts(folder)
    for name, label, rules in found:
        wanted = EXPECTED.get(label, ())
        said = ", ".join(f"{rule} ({gravity})" for rule, gravity in rules.items()) or "-"
        mark = "named" if set(wanted) & rules.keys() else "MISSED" if wanted else ""
        alarm = not wanted and any(gravity != Severity.NOTE for gravity in rules.values())
        print(f"{label:20} {name:26} {'ALARM' if alarm else mark:8} {said}")
    new = counted(found)
    collections = json.loads(RATES.read_text("utf-8"))["collections"] if RATES.is_file() else []
    if arguments.check:
        return 0 if new in collections else 1
    kept = [collection for collection in collections if collection["on"] != ON]
    text = json.dumps({"collections": [new, *kept]}, indent=1)
    RATES.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
