"""The command line's most frequent question, on a well-used instance."""

import statistics
import sys
from pathlib import Path

from bench.daemon import BenchDaemon
from bench.filling import fill
from bench.processes import BARE_PYTHON, run_and_wait
from bench.report import Row, Run

_TASKS = 10_000
_TARGET_S = 0.12


def measure(run: Run) -> list[Row]:
    daemon = BenchDaemon(run.directory / "home", {"noop": ["true"]}, 4)
    fill(daemon.home, _TASKS)
    kapelle = str(Path(sys.executable).with_name("kapelle"))
    ours, plain, bare = [], [], []
    try:
        daemon.start()
        for _ in range(run.samples(10) + 1):
            ours.append(run_and_wait([kapelle, "list"], daemon.env))
            plain.append(run_and_wait([sys.executable, "-c", "pass"]))
            bare.append(run_and_wait([sys.executable, *BARE_PYTHON, "pass"]))
    finally:
        daemon.destroy()
    # The first run of each may have written byte code.
    middle = [statistics.median(values[1:]) for values in (ours, plain, bare)]
    beside = f"python -c pass: {middle[1]:.3f}, with -I -S: {middle[2]:.3f} s"
    return [Row(f"list of {_TASKS:,}, CPU", middle[0], "s", _TARGET_S, beside=beside)]
