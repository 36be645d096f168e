"""What a person may expect of a run, told as simply as possible: the state machine's model."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kapelle.engine.runs.executor import _DIED_TOO_OFTEN
from tests.chaos.pieces import Place, make_place
from tests.e2e.support.ensembles import on_branch, play, tasks_of
from tests.e2e.support.instance import Instance

FINAL = {"completed", "failed", "cancelled"}
ANSWER = "blue"

_PART = play({"run": "echo $KAPELLE_ATTEMPT_ID >> $LEDGER; echo x >> n.txt; sleep 0.2"})
_CHECK = "echo x >> $LEDGER.checks"

PATTERN = '''
from kapelle.patterns import Context, PatternSpec, pattern


class RoundsSpec(PatternSpec):
    rounds: int
    part: str
    check: str


@pattern("rounds", spec=RoundsSpec)
async def rounds(ctx: Context, spec: RoundsSpec) -> dict:
    """Some rounds, and a question after the first."""
    said = []
    for number in range(spec.rounds):
        await ctx.task(spec.part, title=f"round {number}")
        await ctx.check(spec.check)
        await ctx.sleep(0.1)
        if number == 0:
            said = await ctx.gather(ctx.ask("Which colour?"), ctx.ask("How many?"))
    return {"said": said, "rounds": spec.rounds}
'''


@dataclass
class Modelled:
    """One run, and what was done to it."""

    run_id: str
    pattern: str
    rounds: int
    place: Place
    paused: bool = False
    cancelled: bool = False
    keeps_tasks: bool = False
    requeued: int = 0
    ended: Any = None
    still: Any = field(default=None)

    @property
    def may_be(self) -> set[str]:
        """The statuses that do not contradict what was done."""
        if self.ended is not None:
            return {self.ended["status"]}
        if self.cancelled:
            return {"running", "cancelled"}
        if self.paused:
            # What was at its last step when the pause came ends all the same.
            return {"running", "paused", "completed"}
        return {"queued", "running", "waiting", "completed"}

    def look(self, kapelle: Instance) -> Any:
        """The run as it is, after everything that must be true of it was asked."""
        run = kapelle.get(f"/runs/{self.run_id}")
        # So many deaths in a row may be its own doing: it rests until a person resumes it.
        self.paused |= run["status"] == "paused" and run["reason"] == _DIED_TOO_OFTEN
        assert run["status"] in self.may_be, f"{run['status']}, but {self}"
        tasks = tasks_of(kapelle, self.run_id)
        for task in tasks:
            assert len(task["attempts"]) <= 1 + self.requeued, task
        if run["status"] == "paused":
            self._require_stillness(tasks)
        else:
            self.still = None
        if run["status"] in FINAL:
            self._require_finality(run, tasks)
        return run

    def _require_stillness(self, tasks: list[Any]) -> None:
        """A run that is paused has nothing at work, and starts nothing."""
        assert not [task for task in tasks if task["status"] == "running"], tasks
        now = [(task["id"], task["status"], len(task["attempts"])) for task in tasks]
        assert self.still in (None, now)
        self.still = now

    def _require_finality(self, run: Any, tasks: list[Any]) -> None:
        """What has ended never changes again, and leaves nothing but what it was told to."""
        kept = {key: run[key] for key in ("status", "reason", "result", "ended_at", "progress")}
        assert self.ended in (None, kept)
        self.ended = kept
        going = [task for task in tasks if task["status"] not in FINAL]
        assert not going or self.keeps_tasks, going

    def require_expected(self, kapelle: Instance) -> None:
        """Compare an ended run with what the model says that it comes to."""
        run = self.look(kapelle)
        if self.cancelled:
            assert run["status"] == "cancelled"
            assert len((run["result"] or {}).get("iterations", [])) <= self.rounds
            return
        assert run["status"] == "completed", run["reason"]
        result = run["result"]
        if self.pattern == "loop":
            assert [item["verdict"] for item in result["iterations"]] == [
                *["progress"] * (self.rounds - 1),
                "pass",
            ]
        else:
            assert result == {"said": [ANSWER, ANSWER], "rounds": self.rounds}
        assert on_branch(self.place.repository, run, "n.txt") == "x\n" * self.rounds
        assert len(_lines(self.place.ledger.with_name("ledger.checks"))) == self.rounds
        played = _lines(self.place.ledger)
        assert len(played) == len(set(played))
        assert self.rounds <= len(played) <= self.rounds + self.requeued


def begin(kapelle: Instance, directory: Path, pattern: str, rounds: int) -> Modelled:
    """Start a run in a repository of its own."""
    place = make_place(directory)
    (place.repository / ".kapelle/patterns/rounds.py").write_text(PATTERN, encoding="utf-8")
    spec: dict[str, Any] = {
        "directory": str(place.repository),
        "agent": "rehearsal",
        "env": {"LEDGER": str(place.ledger)},
    }
    if pattern == "loop":
        spec |= {"prompt": _PART, "until": [f"{_CHECK}; test $(wc -l < n.txt) -ge {rounds}"]}
    else:
        spec |= {"rounds": rounds, "part": _PART, "check": _CHECK}
    run_id = kapelle.post("/runs", {"pattern": pattern, "spec": spec})["id"]
    return Modelled(run_id, pattern, rounds, place)


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="ascii").split() if path.exists() else []
