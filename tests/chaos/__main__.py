"""`make chaos`: the whole storm over tasks, then one over runs, and their reports."""

import argparse
import dataclasses
import json
import sys
import tempfile
from pathlib import Path

from tests.chaos.run_storm import RunReport, RunStorm, RunStormSize
from tests.chaos.storm import Report, Storm, StormSize
from tests.chaos.undisturbed import play_undisturbed


def main() -> None:
    parser = argparse.ArgumentParser(prog="make chaos")
    parser.add_argument("--tasks", type=int, default=400, help="0 leaves out the first storm")
    parser.add_argument("--at-once", type=int, default=12)
    parser.add_argument("--daemon-kills", type=int, default=200)
    parser.add_argument("--shim-kills", type=int, default=40)
    parser.add_argument(
        "--copies", type=int, default=6, help="of each run at first; 0 leaves them out"
    )
    parser.add_argument("--run-kills", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    problems: dict[str, list[str]] = {}
    if options.tasks:
        size = StormSize(
            options.tasks, options.at_once, options.daemon_kills, options.shim_kills, options.seed
        )
        problems |= _over_tasks(size).problems
    if options.copies:
        size_of_runs = RunStormSize(options.copies, options.run_kills, options.seed)
        problems |= _over_runs(size_of_runs).problems
    if problems:
        sys.exit("Something was lost, repeated or changed.")


def _over_tasks(size: StormSize) -> Report:
    print(f"A storm of {size} …", flush=True)
    with tempfile.TemporaryDirectory(prefix="kapelle-chaos-") as directory:
        report = Storm(Path(directory), size).run()
    print(json.dumps(dataclasses.asdict(report), indent=2))
    if not report.problems:
        print(
            f"{size.tasks} tasks, {report.daemon_kills} kills of the daemon and "
            f"{report.shim_kills} of shims in {report.seconds} s: {report.lost} lost, each by a "
            "killed shim; 0 run twice, all other outputs and exit codes identical, "
            "0 processes left.",
            flush=True,
        )
    return report


def _over_runs(size: RunStormSize) -> RunReport:
    print(f"A storm of {size} …", flush=True)
    with tempfile.TemporaryDirectory(prefix="kapelle-chaos-") as directory:
        expected = play_undisturbed(Path(directory, "undisturbed"))
        report = RunStorm(Path(directory), size).run(expected)
    print(json.dumps(dataclasses.asdict(report), indent=2))
    if not report.problems:
        print(
            f"{report.runs} runs of every pattern, {report.kills} kills of the daemon and "
            f"{report.wishes} pauses and resumptions in {report.seconds} s: all ended as they do "
            "undisturbed, step by step and file by file."
        )
    return report


if __name__ == "__main__":
    main()
