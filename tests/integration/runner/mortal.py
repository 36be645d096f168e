"""A small daemon that crash tests kill: runs the jobs it is told to, and says what it saw."""

import asyncio
import json
import sys
from pathlib import Path

from kapelle.runner.runner import Runner

from .harness import shell


async def main() -> None:
    home, script, grace, *process_dirs = sys.argv[1:]
    runner = Runner(Path(home))
    await runner.start()
    print("ready", flush=True)

    async def one(process_dir: str) -> None:
        ended = await runner.execute(shell(Path(process_dir), script, grace_s=float(grace)))
        print(json.dumps([process_dir, ended.exit.kind, ended.exit.code]), flush=True)

    await asyncio.gather(*(one(process_dir) for process_dir in process_dirs))
    await runner.close()


asyncio.run(main())
