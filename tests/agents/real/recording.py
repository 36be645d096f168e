"""Keeps what a real agent printed, for the tests that run without it."""

import json
import os
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from kapelle.agents.registry import get
from kapelle.engine.processes.output import SideLog
from kapelle.settings import AgentSettings, Settings
from tests.agents.programs import PROGRAMS, cache
from tests.agents.real.scene import Scene

STREAMS = Path(__file__).parents[2] / "data" / "streams"
_LONGEST_LINE = 6_000


def keep(scene: Scene, task: Any, scenario: str) -> None:
    """Write one recording: the streams of the last attempt, and what Kapelle made of them."""
    attempt = task["attempts"][-1]
    process_dir = scene.kapelle.home.attempts / attempt["id"]
    started_from = task["attempts"][-2]["session_id"] if attempt["mode"] == "resume" else None
    session = attempt["session_id"] or started_from
    query = "SELECT side_log, ended_for FROM attempts WHERE id = ?"
    with closing(sqlite3.connect(scene.kapelle.home.database)) as database:
        stored = database.execute(query, (attempt["id"],)).fetchone()
    row = {
        "side_log": json.loads(stored[0] or "null"),
        "ended_for": json.loads(stored[1] or "null"),
    }
    side_log = SideLog.of_row(row)
    body = {
        "agent": scene.agent,
        "type": scene.setup.settings["type"],
        "program": scene.setup.recipe.program,
        "version": PROGRAMS[scene.setup.recipe.program or ""].version,
        "scenario": scenario,
        "out": _lines(scene, (process_dir / "out.log").read_text("utf-8", "replace")),
        "err": _lines(scene, (process_dir / "err.log").read_text("utf-8", "replace")),
        "side": _telling(
            scene, _lines(scene, "\n".join(side_log.lines(session) if side_log else ""))
        ),
        "exit": attempt["exit"],
        "ended_by_kapelle": row["ended_for"] is not None,
        "expected": {
            "claimed": attempt["claimed"],
            "failure": attempt["failure"],
            "session": attempt["session_id"],
            "usage": attempt["usage"],
            "result": task["result"] if attempt["failure"] is None else None,
        },
    }
    path = STREAMS / scene.agent / f"{scenario}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(body, indent=1).replace(str(scene.setup.root), "/bed")
    path.write_text(text + "\n", encoding="utf-8")


def _lines(scene: Scene, text: str) -> list[str]:
    """The lines without any trace of this machine, and without those that nobody reads."""
    for path, name in (
        (scene.setup.root, "/bed"),
        (cache(), "/cache"),
        (Path.home(), "/home/user"),
    ):
        text = text.replace(str(path), name).replace(str(path).replace("/", "-"), "-bed")
    text = text.replace(os.uname().nodename, "host")
    text = re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:1", text)
    agent = get(scene.agent, Settings(agents={scene.agent: _settings(scene)}))
    kept = []
    for line in text.splitlines():
        if len(line) > _LONGEST_LINE and not agent.parse(line):
            line = line[:200]
        kept.append(line)
    return kept


def _telling(scene: Scene, lines: list[str]) -> list[str]:
    """Only those lines that the adapter makes something of."""
    agent = get(scene.agent, Settings(agents={scene.agent: _settings(scene)}))
    return [line for line in lines if agent.parse(line)]


def _settings(scene: Scene) -> AgentSettings:
    return AgentSettings.model_validate(dict(scene.setup.settings))
