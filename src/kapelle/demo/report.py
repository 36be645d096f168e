"""What came of the demo, and whether it is what should have come of it."""

from dataclasses import dataclass, field
from typing import Any

from kapelle.cli.outcome import Task
from kapelle.demo.ensemble import ENSEMBLE, Part
from kapelle.demo.runs import Played
from kapelle.demo.sample import Tally
from kapelle.demo.views import Tasks
from kapelle.demo.watching import Kill


@dataclass
class Report:
    before: Tally
    after: Tally | None = None
    tasks: Tasks = field(default_factory=dict)
    kill: Kill | None = None
    merged: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    tune: str = ""
    team: Played = field(default_factory=Played)
    loop: Played = field(default_factory=Played)
    survivors: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def problems(self) -> list[str]:
        """Everything that is not as it should be, in sentences; none if all went well."""
        found = [problem for part in ENSEMBLE for problem in self._problems_of(part)]
        if self.before.passes:
            found.append("The sample's tests passed before anybody had worked on it.")
        if self.kill is None:
            found.append(
                "The daemon was never killed, because the tasks in the middle never began."
            )
        else:
            found += [
                self._interrupted(key) for key in self.kill.attempts if self._interrupted(key)
            ]
        found += self._problems_of_runs()
        if self.after is None or not self.after.passes:
            found.append(f"On the merged main, {self.after or 'the tests were not run'}.")
        found += [f"Process {name} was left over and had to be killed." for name in self.survivors]
        return found

    def _problems_of(self, part: Part) -> list[str]:
        task = self.tasks[part.key]
        if task["status"] != part.ends:
            why = f" ({task['reason']})" if task["reason"] else ""
            return [f"{part.key} is {task['status']}{why}, and should be {part.ends}."]
        if len(task["attempts"]) != part.attempts:
            return [f"{part.key} took {len(task['attempts'])} attempts instead of {part.attempts}."]
        if task["attempts"][-1]["claimed"] != "success":
            return [f"{part.key} did not claim success."]
        if (part.key in self.merged) != (part.ends == "completed"):
            return [f"{part.key} was {'' if part.key in self.merged else 'not '}merged."]
        return []

    def _problems_of_runs(self) -> list[str]:
        found = []
        for name, played in (("team", self.team), ("loop", self.loop)):
            if played.run.get("status") != "completed" or played.merged is None:
                status, reason = played.run.get("status"), played.run.get("reason")
                found.append(f"The {name} is {status} ({reason}), and should be merged.")
        if not found and len(self.team.run["result"]["iterations"]) != 2:
            found.append("The team should have needed two iterations.")
        if not found and self.loop.run["result"]["best"]["number"] != 3:
            found.append("The loop's third iteration should have been the best.")
        if self.team.killed is None:
            found.append("The daemon was never killed in the middle of the team's work.")
        return found

    def _interrupted(self, key: str) -> str:
        """What the kill did to an attempt that ran meanwhile; nothing, if all went well."""
        assert self.kill is not None
        attempt = self._attempt(self.tasks[key], self.kill.attempts[key])
        if attempt and attempt["exit"] and attempt["exit"]["kind"] == "exited":
            return ""
        return f"The attempt of {key} did not survive the kill of the daemon."

    @staticmethod
    def _attempt(task: Task, attempt_id: str) -> Any:
        return next((attempt for attempt in task["attempts"] if attempt["id"] == attempt_id), None)
