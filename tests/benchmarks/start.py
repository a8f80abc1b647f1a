"""CPU time of `optdoctor analyze` on a small console log over that of `import numpy, rich, click`.

Prints the median ratio of 9 alternated pairs: `python tests/benchmarks/start.py`.
"""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

PAIRS = 9
LIMIT = 2.2
LINE = "{{'loss': {:.4f}, 'grad_norm': {:.4f}, 'learning_rate': 1e-05, 'epoch': {:.2f}}}\n"


def cpu_seconds(arguments: list[str]) -> float:
    """User and system time of one child process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main() -> None:
    """Measures and prints."""
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as folder:
        # As installed: numpy, rich and click come compiled, and the first run compiles optdoctor.
        os.environ["PYTHONPYCACHEPREFIX"] = folder
        log = Path(folder) / "train.log"
        log.write_text("".join(LINE.format(3 - i / 99, 1 + i / 99, i / 99) for i in range(99)))
        ours, base = ["-m", "optdoctor", "analyze", str(log)], ["-c", "import numpy, rich, click"]
        cpu_seconds(ours), cpu_seconds(base)
        pairs = [(cpu_seconds(ours), cpu_seconds(base)) for _ in range(PAIRS)]
    ratios = [a / b for a, b in pairs]
    print(f"optdoctor analyze   {statistics.median(a for a, _ in pairs):.3f} s CPU (median)")
    print(f"numpy, rich, click  {statistics.median(b for _, b in pairs):.3f} s CPU (median)")
    print(
        f"ratio               {statistics.median(ratios):.2f}"
        f" ({min(ratios):.2f}-{max(ratios):.2f}), at most {LIMIT}"
    )


if __name__ == "__main__":
    main()
