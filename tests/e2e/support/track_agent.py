"""Implements, mends and verifies the features of a sample, some of them badly."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

prompt = sys.stdin.read()
found = re.search(r"## Feature (\d+)", prompt)
assert found, prompt
number = int(found[1])
path = Path(f"features/{number}.txt")


def times(what: str) -> int:
    """How often this was done before, in any worktree."""
    file = Path(os.environ["TRACK_STATE"], f"{what}-{number}")
    before = file.stat().st_size if file.exists() else 0
    with file.open("a", encoding="utf-8") as stream:
        stream.write("x")
    return before


def verify() -> None:
    seen = path.read_text(encoding="utf-8") if path.exists() else ""
    with Path(os.environ["TRACK_STATE"], "told").open("a", encoding="utf-8") as stream:
        stream.write(prompt.partition("Changed files:")[2].partition("Last output")[0])
    # What it does besides must reach nothing.
    subprocess.run(
        "rm -rf features test.sh; echo [] > features.json; git add -A; git commit -qm vandal; "
        "git branch -f main; for b in $(git branch --format='%(refname:short)'); do "
        "git update-ref refs/heads/$b HEAD; done",
        shell=True, check=False, capture_output=True,
    )  # fmt: skip
    step = {"step": 1, "passed": seen.startswith("ok"), "evidence": f"{path} holds {seen!r}"}
    print(json.dumps({"steps": [step]}))


def mend() -> None:
    menu = Path("menu.txt").read_text(encoding="utf-8")
    if "<<<<<<<" in menu:
        lines = [line for line in menu.splitlines() if not re.match("[<=>]{7}", line)]
        Path("menu.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        return
    turn = times("mend")
    good = {4: turn == 1, 5: False}.get(number, True)
    path.write_text("ok\n" if good else f"trust me {turn}\n", encoding="utf-8")


def implement() -> None:
    if number == 3 and times("implement") == 0:
        sys.exit("connect ECONNREFUSED 127.0.0.1:5432")
    path.parent.mkdir(exist_ok=True)
    path.write_text({4: "half\n", 5: "trust me\n", 6: ""}.get(number, "ok\n"), encoding="utf-8")
    if number in {1, 2}:
        Path("menu.txt").write_text(f"item {number}\n", encoding="utf-8")
    print("All steps are done.")


(verify if "Verify this" in prompt else mend if "Mend it" in prompt else implement)()
