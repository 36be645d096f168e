"""The plan of an orchestration: its parts, and the conductor's changes of it."""

from typing import Literal

from pydantic import BaseModel, Field

from kapelle.patterns.subgoals import OpenQuestions, Subgoal, sort_by_dependency


class Part(Subgoal):
    kind: Literal["task", "loop", "orchestrate"] = Field(
        "task", description="loop tries until its checks pass, orchestrate has a conductor below"
    )
    checks: list[str] = Field([], description="commands that must pass", max_length=20)


class Verdict(BaseModel):
    reached: bool = Field(description="is the goal reached, as a whole?")
    reason: str = Field(description="what you saw, and what is missing")


class PlannedPart(Part):
    """A part of the plan with its outcome; work lists its tasks and runs, the latest last."""

    status: Literal["open", "merged", "failed", "conflict", "blocked"] = "open"
    reason: str | None = None
    said: str = ""
    log: str = ""
    work: list[str] = Field(default=[])

    @property
    def description(self) -> str:
        """Return the part with its outcome for the conductor's prompt."""
        kind: str = self.kind
        if self.depends_on:
            kind += f" after {', '.join(self.depends_on)}"
        line = f"- {self.id} ({kind}), {self.status}: {self.title}"
        if self.work:
            line += f" [{self.work[-1]}]"
        lines = [line]
        if self.status == "merged":
            if self.said:
                lines.append(f"  said: {self.said}")
            return "\n".join(lines)
        if self.reason:
            lines.append(f"  {self.reason}")
        if self.log:
            lines.append(f"  the end of its log:\n{self.log}")
        return "\n".join(lines)


class Turn(BaseModel):
    parts: list[Part] = Field([], description="new parts, and those to do again, by their ids")
    drop: list[str] = Field([], description="ids of parts that are not needed any more")
    done: bool = Field(False, description="whether the goal is reached")
    impossible: str = Field("", description="why the goal cannot be reached, if it cannot")
    questions: OpenQuestions = []

    def change(self, plan: list[PlannedPart], limit: int) -> list[PlannedPart]:
        """Return the plan with this turn's changes; raise ValueError if they are not possible."""
        parts = {part.id: part for part in plan if part.id not in self.drop}
        for part in self.parts:
            earlier = parts.get(part.id)
            if earlier is None:
                parts[part.id] = PlannedPart(**part.model_dump())
                continue
            if earlier.status == "merged":
                raise ValueError(f"{part.id} is merged already: what is to change is a new part")
            history = earlier.model_dump(include={"work", "log", "reason"})
            parts[part.id] = PlannedPart(**part.model_dump(), **history)
        if len(parts) > limit:
            raise ValueError(f"a plan has at most {limit} parts, and this would have {len(parts)}")
        changed_plan = list(parts.values())
        sort_by_dependency(changed_plan)
        for part in changed_plan:
            if part.status == "blocked":
                part.status = "open"
        return changed_plan


PROMPTS = {
    "conduct": """\
You conduct coding agents towards a goal. You do not do the work yourself: your changes of files \
are discarded.

1. Read the state below. You get it anew in each turn.
2. Answer with changes of the plan. All open parts are then done at the same time, each by an \
agent in its own worktree, and each as soon as the parts that it depends on are merged. After \
that you are called again.
3. To retry a failed part, give it a task that asks for another approach. The agent also gets the \
end of the failed log.
4. Make a part a loop with checks where only repeated attempts against a command will do.
5. Use task_logs and task_diff, if you have tools of Kapelle, to see more of the work. Hand out \
work by your answer alone.
6. Say done when the goal is reached. Others verify that, not you.""",
    "judge": """\
You judge whether a goal is reached by the work in this directory, which others did.

1. Look at the files.
2. Try what can be tried.
3. Do not rely on claims.""",
}
