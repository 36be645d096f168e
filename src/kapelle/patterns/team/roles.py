"""The roles of a team: their prompts, and the answers of planner and reviewer."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field

from kapelle.patterns.subgoals import OpenQuestions, Subgoal, sort_by_dependency


class Intake(BaseModel):
    success_criteria: list[str] = Field(
        description="what must be true when the goal is reached, each checkable", max_length=20
    )
    questions: OpenQuestions = []


class Plan(BaseModel):
    subgoals: Annotated[list[Subgoal], AfterValidator(sort_by_dependency)] = Field(
        min_length=1, max_length=100
    )


class Review(BaseModel):
    quality: bool = Field(description="is the work of good quality?")
    consistency: bool = Field(description="do its parts fit together and to what was there?")
    goal_aligned: bool = Field(description="does it serve the goal and nothing else?")
    goal_complete: bool = Field(description="is the goal reached, every criterion met?")
    feedback: str = Field("", description="what is to be done next, if anything")
    questions: OpenQuestions = []

    @property
    def objections(self) -> list[str]:
        names = ("quality", "consistency", "goal_aligned", "goal_complete")
        return [name.replace("_", " ") for name in names if not getattr(self, name)]

    @property
    def approves(self) -> bool:
        return not self.objections


# Additions to the prompts, for a specification that wants them.
ANSWER_ONLY = "Only your answer is wanted: change no files."
BROWSER_TESTS = (
    "If your part shows in a browser, write or extend Playwright tests for it, preferably in the "
    "existing files, and run them with `npx playwright test` before you finish."
)
BROWSER_EVIDENCE = (
    "Without evidence of passing Playwright tests for what shows in a browser, the goal is not "
    "complete: say so in the feedback."
)
PROMPTS = {
    "intake": """\
You prepare the work of a team of coding agents in this directory.

1. Read the goal. Look at the files if that helps.
2. Change nothing.
3. Answer with the criteria by which one can check that the goal is reached.""",
    "plan": """\
You plan the work of a team of coding agents in this directory.

1. Look at the files yourself. Change nothing.
2. Divide the goal into subgoals: at most {max_subgoals}, and as few as sensible.
3. One worker does each subgoal in its own copy of the files. The copies are merged afterwards.
4. Make subgoals that touch the same lines depend on each other. Make all others independent, so \
that they are worked on at the same time.
5. Every subgoal changes files, unless only an answer in words is wanted (text_only).""",
    "work": """\
1. Others work on other parts: change only what your part needs.
2. Leave everything in working order.""",
    "resolve": """\
Your work and the work of others changed the same lines. Both are now in your files, with \
conflict markers (<<<<<<<, =======, >>>>>>>). The first side is yours.

1. Resolve every conflict so that both purposes are served.
2. Remove the markers.
3. Change nothing else.""",
    "review": """\
You review the work of a team of coding agents in this directory.

1. Judge by the files, not by what the workers report.
2. Change nothing.
3. Answer no where you doubt.""",
}
