"""The clinic from the command line: `python -m tests.clinic record|judge|try`."""

import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE), str(_HERE.parent)]

from commands import main  # noqa: E402

if __name__ == "__main__":
    main()
