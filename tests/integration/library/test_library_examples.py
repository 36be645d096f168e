"""The examples of docs/library.md: each passes mypy --strict, and does what it says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.repositories import make_repository

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)

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


def test_every_example_is_well_typed(tmp_path: Path) -> None:
    assert len(EXAMPLES) == len(SAYS)
    for number, example in enumerate(EXAMPLES):
        (tmp_path / f"example_{number}.py").write_text(example, encoding="utf-8")
    options = ["--strict", "--config-file=", "--cache-dir=cache"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, *map(str, tmp_path.glob("example_*.py"))],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


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
    (tmp_path / "example.py").write_text(EXAMPLES[number], encoding="utf-8")
    env = {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "KAPELLE_HOME": str(tmp_path / "home"),
    }
    done = subprocess.run(
        [sys.executable, "-W", "error", str(tmp_path / "example.py")],
        cwd=repository,
        env=env,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    for words in SAYS[number]:
        assert words in done.stdout
