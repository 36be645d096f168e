"""One small run of every pattern, played by agents whose work follows from their parts alone.

Every agent adds its attempt to the file that LEDGER names, and every check a line to another one.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e.support.ensembles import DIAMOND, YES, answer, play, rule
from tests.e2e.support.instance import Instance
from tests.e2e.support.repositories import make_repository

ANSWER = "blue"
_MARK = {"run": "echo $KAPELLE_ATTEMPT_ID >> $LEDGER"}
_COUNTED = "echo $KAPELLE_RUN_ID >> $LEDGER.checks; "
# The n-th time that it is played, the n-th number is what it leaves.
_SERIES = (
    "n=$(cat $LEDGER.turn 2>/dev/null || echo 0); echo $((n+1)) > $LEDGER.turn; "
    "set -- 7 3 9 5; shift $n; echo $1 > v"
)
# The worker that is to meet a conflict is done only when the other's work is merged.
# In the user's repository, whose objects the workspace borrows.
_AFTER_LEFT = (
    'until git --git-dir="$(readlink -f "$(cat .git/objects/info/alternates)")/.." '
    "cat-file -e kapelle/$KAPELLE_RUN_ID:b.txt 2>/dev/null; do sleep 0.05; done"
)
_NO = {**YES, "goal_complete": False, "feedback": "WORK-E is missing"}
_MORE = {"subgoals": [{"id": "e", "title": "the rest", "task": "WORK-E"}]}

_OWN = '''
from kapelle.patterns import Context, PatternSpec, TaskResult, pattern


class OwnSpec(PatternSpec):
    parts: list[str]
    inner: str
    until: str
    eval: str


@pattern("own", spec=OwnSpec)
async def own(ctx: Context, spec: OwnSpec) -> dict:
    """Everything that a context offers, some of it at the same time."""

    async def work(number: int) -> TaskResult:
        task = await ctx.task(spec.parts[number], workspace="own", title=f"part {number}")
        await ctx.progress(**{f"part {number}": task.status})
        return task

    async def talk() -> str:
        await ctx.sleep(0.3)
        colour = await ctx.ask("Which colour?", default="red")
        await ctx.sleep(0.1)
        return colour

    again = {"prompt": spec.inner, "until": [spec.until]}
    one, two, inner, colour = await ctx.gather(
        work(0), work(1), ctx.run("loop", again), talk()
    )
    merged = [(await ctx.merge(task)).ok for task in (one, two)]
    shared = await ctx.run("loop", again, workspace="run")
    scored = await ctx.score(spec.eval)
    checked = await ctx.check(spec.until, "diff_not_empty")
    await ctx.commit("All of it")
    began = await ctx.now()
    return {
        "colour": colour, "merged": merged, "inner": inner.status, "shared": shared.result,
        "score": scored.value, "passed": checked.passed, "changes": await ctx.changes(),
        "in order": (await ctx.now()) >= began,
    }
'''


@dataclass(frozen=True)
class Piece:
    """A pattern with a specification; the directory, the agent and the ledger are added."""

    pattern: str
    spec: dict[str, Any] = field(default_factory=dict)


def _part(*steps: dict[str, Any]) -> str:
    return play(_MARK, *steps)


PIECES: dict[str, Piece] = {
    "pipeline": Piece(
        "pipeline",
        {
            "steps": [
                {"name": "design", "prompt": _part({"write": "d", "content": "d\n"})},
                {
                    "name": "implement",
                    "prompt": _part({"run": "cat d > i; sleep 0.2"}),
                    "checks": ["diff_not_empty", _COUNTED + "test -f i"],
                },
                {"name": "test", "prompt": _part({"run": "cat d i > t"}, {"result": "all good"})},
            ]
        },
    ),
    "pipeline-each": Piece(
        "pipeline",
        {
            "steps": [
                {"name": "one", "prompt": _part({"write": "one", "content": "1\n"})},
                {"name": "two", "prompt": _part({"run": "cat one > two; sleep 0.2"})},
                {"name": "three", "prompt": _part({"run": "cat one two > three"})},
            ],
            "workspaces": "each",
        },
    ),
    "loop-retry": Piece(
        "loop",
        {
            "prompt": _part({"run": "echo x >> n.txt"}),
            "until": [_COUNTED + "touch litter; sleep 0.1; test $(wc -l < n.txt) -ge 3"],
            "cooldown_s": 0.1,
        },
    ),
    "loop-optimise": Piece(
        "loop",
        {
            "prompt": _part({"run": _SERIES}),
            "eval": _COUNTED + "cat v 2>/dev/null || echo 10",
            "direction": "minimize",
            "max_iterations": 4,
        },
    ),
    "team": Piece(
        "team",
        {
            "goal": "Build all parts",
            "success_criteria": ["all parts are there"],
            "verify": [_COUNTED + "test $(wc -l < all.txt) = 3"],
        },
    ),
    "best-of": Piece(
        "best-of",
        {
            "prompt": "Make it small",
            "candidates": ["large", "small", "medium"],
            "checks": [_COUNTED + "test -f size"],
            "eval": _COUNTED + "cat size",
            "direction": "minimize",
        },
    ),
    "workflow": Piece("workflow", {"task": "Both", "checks": [_COUNTED + "test -f README.md"]}),
    "debate": Piece("debate", {"prompt": "Which?", "minutes": "rehearsal", "action": "DO IT"}),
    "own": Piece(
        "own",
        {
            "parts": [
                _part({"write": "one", "content": "1\n"}),
                _part({"sleep": 0.3}, {"write": "two", "content": "2\n"}),
            ],
            "inner": _part({"run": "echo x >> n.txt"}),
            "until": _COUNTED + "test $(wc -l < n.txt) -ge 2",
            "eval": _COUNTED + "wc -l < n.txt",
        },
    ),
}

_NIGHT = f"""## Plan
- [ ] first is there, check: `{_COUNTED}test -f first`
- [ ] second is told
## Contract
Be brief."""
_YES = {"verdict": "agree", "position": "The first."}
_WORKFLOW = [
    rule(r"You are side[\s\S]*Round 1", _MARK, answer(_YES)),
    rule("You are side", _MARK, answer({**_YES, "verdict": "partial"})),
    rule("You took no part", _MARK, answer({"summary": "The first."})),
    rule("You took part[\\s\\S]*DO IT", _MARK, {"write": "which", "content": "first\n"}),
    rule(r"You prepare work[\s\S]*could not be used", _MARK, {"result": _NIGHT}),
    rule("You prepare work", _MARK, {"result": "Nothing comes to my mind."}),
    rule(r"You review work[\s\S]*It is told", _MARK, answer({"done": [2], "summary": "Seen."})),
    rule("You review work", _MARK, {"run": "touch mine"}, answer({"summary": "Go on."})),
    rule(r"milestone\nfirst", _MARK, {"run": "touch first"}, {"result": "It is made."}),
    rule(r"milestone\nsecond", _MARK, {"run": "echo 2 >> first"}, {"result": "It is told."}),
]
_TEAM = [
    rule("Resolve every conflict", _MARK, {"run": "printf 'b\\nc\\n' > same"}),
    rule("You plan[\\s\\S]*WORK-E", _MARK, answer(_MORE)),
    rule("You plan the work", _MARK, answer(DIAMOND)),
    rule("You review[\\s\\S]*e\\.txt", _MARK, answer(YES)),
    rule("You review", _MARK, answer(_NO)),
    rule("^WORK-A", _MARK, {"write": "a.txt", "content": "a\n"}, {"result": "did a"}),
    rule("^WORK-B", _MARK, {"run": "cat a.txt > b.txt; echo b > same"}),
    rule("^WORK-C", _MARK, {"run": f"cat a.txt > c.txt; echo c > same; {_AFTER_LEFT}"}),
    rule("^WORK-D", _MARK, {"run": "cat a.txt b.txt c.txt > all.txt"}),
    rule("^WORK-E", _MARK, {"write": "e.txt", "content": "e\n"}),
]


def hand_out_parts(kapelle: Instance) -> None:
    """Give the agents of an instance the parts that are not in a prompt."""
    sizes = {"large": "9", "small": "2", "medium": "5"}
    books = {"rehearsal": "\n".join([*_WORKFLOW, *_TEAM])} | {
        name: rule(".", _MARK, {"write": "size", "content": f"{size}\n"})
        for name, size in sizes.items()
    }
    kapelle.home.root.mkdir(parents=True, exist_ok=True)
    lines = []
    for name, text in books.items():
        path = kapelle.home.root / f"{name}.toml"
        path.write_text(text, encoding="utf-8")
        lines.append(f'[agents.{name}]\ntype = "rehearsal"\nplaybook = {json.dumps(str(path))}\n')
    kapelle.home.config.write_text("\n".join(lines), encoding="utf-8")


@dataclass(frozen=True)
class Place:
    """Where a piece is played: a repository, and a ledger outside of it."""

    repository: Path
    ledger: Path


def make_place(directory: Path) -> Place:
    files = {
        "README.md": "# Sample\n",
        ".gitignore": "__pycache__/\n",
        ".kapelle/patterns/own.py": _OWN,
    }
    repository = make_repository(directory / "repository", files)
    ledger = directory / "ledger"
    ledger.touch()
    return Place(repository, ledger)


def request_body(piece: Piece, place: Place) -> dict[str, Any]:
    """The request that starts a piece."""
    around = {
        "directory": str(place.repository),
        "agent": "rehearsal",
        "env": {"LEDGER": str(place.ledger)},
    }
    return {"pattern": piece.pattern, "spec": {**around, **piece.spec}}
