"""The examples of docs/library.md: each does what it says."""

import os
import sys
from pathlib import Path

import pytest
from tests.e2e.support.page_examples import examples_of, require_says
from tests.e2e.support.repositories import make_repository

EXAMPLES = examples_of("library.md")

# What a model would answer, in the words of the program that is asked.
STUB = """\
#!{python} -IS
import json, sys
from pathlib import Path
prompt = sys.argv[-1] if {kind!r} == "mytool" else sys.stdin.read()
if prompt.startswith("You plan"):
    said = json.dumps({{"subgoals": [{{"id": "a", "title": "a", "task": "WORK"}}]}})
elif prompt.startswith("You review"):
    yes = dict.fromkeys(["quality", "consistency", "goal_aligned", "goal_complete"], True)
    said = json.dumps(yes)
else:
    Path("done.txt").write_text("done")
    said = "Done."
if {kind!r} == "claude":
    print(json.dumps({{"type": "result", "subtype": "success", "is_error": False, "result": said}}))
elif {kind!r} == "codex":
    print(json.dumps({{"type": "thread.started", "thread_id": "t"}}))
    item = {{"id": "i", "type": "agent_message", "text": said}}
    print(json.dumps({{"type": "item.completed", "item": item}}))
    usage = {{"input_tokens": 1, "cached_input_tokens": 0, "output_tokens": 1}}
    print(json.dumps({{"type": "turn.completed", "usage": usage}}))
else:
    print(said)
"""
SAYS = [
    ["completed 1 the goal is reached", "kapelle/run_"],
    ["merged as"],
    ["True Done. None"],
    ["the goal is reached after iteration 1"],
    ["completed 3 0.01"],
    ["needs_input ('Which framework?', 'Which port?')", "completed"],
    ["1 plan", "1 work", "1 review", "1 done", "completed"],
    ["['notes.txt']", "kapelle/work_"],
    ["True", "['Plan', 'strings', 'winds', 'Review']"],
]


def test_every_example_is_tried() -> None:
    assert len(EXAMPLES) == len(SAYS)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_every_example_runs(tmp_path: Path, number: int) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for kind in ("claude", "codex", "mytool"):
        stub = programs / kind
        stub.write_text(STUB.format(python=sys.executable, kind=kind), encoding="utf-8")
        stub.chmod(0o755)
    repository = make_repository(
        tmp_path / "repository", {"Makefile": "test:\n\ttest -f done.txt\n"}
    )
    env = {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "KAPELLE_HOME": str(tmp_path / "home"),
    }
    path = tmp_path / "example.py"
    require_says(EXAMPLES[number], path, SAYS[number], cwd=repository, env=env)
