"""A log that exists already: what the console of a Hugging Face Trainer left, read afterwards.

The same from a shell: `optdoctor analyze train.log`.

    python examples/04_read_a_log.py
"""

import math
import tempfile
from pathlib import Path

import optdoctor
from optdoctor.report import text


def console_log(steps: int = 60, breaks_at: int = 41) -> str:
    """What the Trainer prints while a run breaks: it shows 0 where the loss is NaN."""
    lines = ["***** Running training *****", f"  Total optimization steps = {steps}"]
    for step in range(1, steps + 1):
        well = step < breaks_at
        loss = f"{2 + 3 * math.exp(-step / 20) + 0.05 * math.sin(7 * step):.4g}" if well else "0"
        norm = f"{1 + 0.1 * math.sin(3 * step):.4g}" if well else "nan"
        row = {
            "loss": loss,
            "grad_norm": norm,
            "learning_rate": "0.0005",
            "epoch": f"{step / 60:.4g}",
        }
        lines.append(str(row))
    return "\n".join(lines)


def main() -> None:
    """Reads the log, examines it, prints what was found."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.log"
        path.write_text(console_log())
        trace = optdoctor.read(path)
    diagnosis = optdoctor.diagnose(trace)

    print(f"verdict: {diagnosis.verdict}")
    for finding in diagnosis.findings:
        print(f"found:   {finding.rule}, steps {finding.steps[0]}-{finding.steps[1]}")
        for evidence in finding.evidence:
            print(f"         {evidence.what}: {evidence.observed:g} {evidence.unit}")
    print()
    print(text.render(diagnosis, trace))


if __name__ == "__main__":
    main()
