"""`make chaos`: the whole storm, and its report."""

import argparse
import dataclasses
import json
import sys
import tempfile
from pathlib import Path

from tests.chaos.storm import Storm, Weather


def main() -> None:
    parser = argparse.ArgumentParser(prog="make chaos")
    parser.add_argument("--tasks", type=int, default=400)
    parser.add_argument("--at-once", type=int, default=12)
    parser.add_argument("--daemon-kills", type=int, default=200)
    parser.add_argument("--shim-kills", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    weather = Weather(**vars(parser.parse_args()))
    print(f"A storm of {weather} …", flush=True)
    with tempfile.TemporaryDirectory(prefix="kapelle-chaos-") as directory:
        report = Storm(Path(directory), weather).run()
    print(json.dumps(dataclasses.asdict(report), indent=2))
    if report.problems:
        sys.exit("Something was lost, repeated or changed.")
    print(
        f"{weather.tasks} tasks, {report.daemon_kills} kills of the daemon and "
        f"{report.shim_kills} of shims in {report.seconds} s: {report.lost} lost, each by a killed "
        "shim; 0 run twice, all other outputs and exit codes identical, 0 processes left."
    )


if __name__ == "__main__":
    main()
