"""Measures false alarms and misses of the curve rules, beside the baseline, by family and by view.

    python scripts/validate_curves.py --quick         # development families, a few of each
    python scripts/validate_curves.py                 # all; writes docs/validation-of-curves.md
    python scripts/validate_curves.py --held          # the exam

Limits are placed on the development families. Those held apart are never used for that, and each
look at them adds a line to docs/validation-of-curves-history.md, whatever it shows.
"""

import argparse
import datetime
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from curves import exam, tables  # noqa: E402 (the path comes first)
from curves.exam import Result, Task  # noqa: E402

PAGE = ROOT / "docs" / "validation-of-curves.md"
HISTORY = ROOT / "docs" / "validation-of-curves-history.md"
LENGTHS = (400, 1000, 3000)
SEEDS = 5
QUICK_VIEWS = ("raw", "every 10", "EMA 0.9", "epochs"), ("12 rows",)


def main() -> None:
    """Runs the exam and prints its page."""
    options = _options()
    start = time.monotonic()
    tasks = list(_tasks(options))
    with multiprocessing.get_context("fork").Pool(options.processes) as pool:
        parts = pool.imap_unordered(exam.sit, tasks, chunksize=1)
        results = [result for part in parts for result in part]
    results.sort(key=lambda r: (r.curve, r.truth, r.kind, r.view))
    page = tables.page(results)
    print(page)
    if options.alarms:
        options.alarms.write_text(tables.alarms(results))
    seconds, cpu_s = time.monotonic() - start, sum(os.times()[:4])
    print(
        f"{len(results)} logs of {len(tasks)} runs in {seconds:.0f} s, {cpu_s:.0f} s of CPU",
        file=sys.stderr,
    )
    if options.held:
        _note_the_look(results, options)
    if _is_whole(options):
        tables.put(PAGE, "held" if options.held else "development", page)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--held", action="store_true", help="the families held apart; is noted")
    parser.add_argument("--quick", action="store_true", help="fewer runs and views, no page")
    parser.add_argument("--limit", type=int, default=0, help="so many runs only, no page")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--alarms", type=Path, help="writes each false alarm and each miss there")
    parser.add_argument("--family", help="only this family, no page")
    parser.add_argument("--first-seed", type=int, default=0, help="other made-up runs, no page")
    return parser.parse_args()


def _tasks(options: argparse.Namespace) -> list[Task]:
    if options.quick:
        chosen = exam.tasks(options.held, LENGTHS[:2], 2, options.first_seed, *QUICK_VIEWS)
    else:
        chosen = exam.tasks(options.held, LENGTHS, SEEDS, options.first_seed)
    tasks = [task for task in chosen if options.family in (None, task.family)]
    if options.limit:
        return tasks[:: max(len(tasks) // options.limit, 1)][: options.limit]
    return tasks


def _is_whole(options: argparse.Namespace) -> bool:
    return not (options.quick or options.limit or options.family or options.first_seed)


def _note_the_look(results: list[Result], options: argparse.Namespace) -> None:
    """One line for this look at the families held apart."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    if not HISTORY.exists():
        HISTORY.write_text(tables.HISTORY_HEAD)
    what = "all" if _is_whole(options) else "a part"
    with HISTORY.open("a") as history:
        history.write(f"| {datetime.date.today()} | {commit} | {what}: {tables.look(results)}\n")


if __name__ == "__main__":
    main()
