"""A small daemon that crash tests kill: runs the jobs it is told to, and says what it saw."""

import asyncio
import json
import sys
from pathlib import Path

from kapelle.runner.runner import Runner

from .harness import shell


async def main() -> None:
    home, script, grace, *run_dirs = sys.argv[1:]
    runner = Runner(Path(home))
    await runner.start()
    print("ready", flush=True)

    async def one(run_dir: str) -> None:
        ended = await runner.run(shell(Path(run_dir), script, grace_s=float(grace)))
        print(json.dumps([run_dir, ended.exit.kind, ended.exit.code]), flush=True)

    await asyncio.gather(*(one(run_dir) for run_dir in run_dirs))
    await runner.close()


asyncio.run(main())
