"""Stands where an agent's program would, and does what a recording of it says."""

import json
import os
import sys
from pathlib import Path

RECORDING = "KAPELLE_TEST_RECORDING"


def main() -> int:
    recording = json.loads(Path(os.environ[RECORDING]).read_text("utf-8"))
    sys.stdin.read()
    if recording["scenario"] == "work":
        Path("hello.txt").write_text("hello\n", encoding="utf-8")
    for line in recording["err"]:
        print(line, file=sys.stderr)
    for line in recording["out"]:
        print(line, flush=True)
    return int(recording["exit"]["code"])


if __name__ == "__main__":
    sys.exit(main())
