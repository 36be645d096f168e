"""`make bench`, or `python -m bench [--only NAME] [--quick]`: measure, print, and keep a record."""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import machine
from bench.measures import (
    burst,
    coordination,
    events,
    idle,
    listing,
    memory,
    months,
    output,
    page,
    reads,
    runs,
    search,
    start,
)
from bench.report import Measure, Row, Run, table

MEASURES: dict[str, Measure] = {
    "start": start.measure,
    "burst": burst.measure,
    "memory": memory.measure,
    "list": listing.measure,
    "ready": idle.ready,
    "idle": idle.idle,
    "reads": reads.measure,
    "events": events.measure,
    "subscribers": events.crowd,
    "notes": coordination.notes,
    "locks": coordination.locks,
    "mcp": coordination.mcp,
    "output": output.measure,
    "search": search.measure,
    "page": page.measure,
    "months": months.measure,
    "iterations": runs.iterations,
    "runs": runs.queued,
}
_RESULTS = Path(__file__).parent / "results"
_KILLS = "200 kill -9 of the daemon over 400 tasks: `make chaos` counts what is lost or repeated."


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench")
    parser.add_argument("--only", action="append", choices=list(MEASURES), help="repeatable")
    parser.add_argument("--quick", action="store_true", help="fewer samples, smaller sizes")
    options = parser.parse_args()
    facts = machine.facts(Path(tempfile.gettempdir()))
    print(machine.sentence(facts), flush=True)
    begun = time.monotonic()
    rows = _measured(options.only or MEASURES, options.quick)
    print("\n" + "\n".join(table(rows)))
    print(f"\n{_KILLS}")
    seconds = round(time.monotonic() - begun, 1)
    record = {"machine": facts, "quick": options.quick, "seconds": seconds}
    path = _keep({**record, "rows": [row.document() for row in rows]})
    print(f"{seconds:.0f} s; {path}")


def _measured(names: Iterable[str], quick: bool) -> list[Row]:
    rows: list[Row] = []
    for name in names:
        begun = time.monotonic()
        print(f"{name} …", end=" ", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="kapelle-bench-") as directory:
            rows += MEASURES[name](Run(Path(directory), quick))
        print(f"{time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    return rows


def _keep(record: dict[str, Any]) -> Path:
    _RESULTS.mkdir(exist_ok=True)
    path = _RESULTS / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json"
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return path


if __name__ == "__main__":
    main()
