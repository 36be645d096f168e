"""Run the scripted model by hand: `python -m tests.agents.model [PORT [SCRIPTS.json]]`."""

import contextlib
import json
import sys
import threading
from pathlib import Path

from tests.agents.model.server import serve


def main(port: str = "0", scripts: str = "") -> None:
    loaded = json.loads(Path(scripts).read_text(encoding="utf-8")) if scripts else None
    with serve(loaded, int(port)) as model, contextlib.suppress(KeyboardInterrupt):
        print(f"http://127.0.0.1:{model.server_port}/s/LANE", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
