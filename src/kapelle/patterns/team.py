"""A goal: planned, worked on by several at once, verified and reviewed, again until done."""

from dataclasses import dataclass

from pydantic import ConfigDict, Field

from kapelle.domain.options import command
from kapelle.domain.specs import CheckKind, CheckSpec, Text, field, prompt_argument
from kapelle.domain.text import format_count
from kapelle.patterns import roles
from kapelle.patterns.context import Context, Who
from kapelle.patterns.registry import pattern
from kapelle.patterns.results import Failed, UnusableAnswer, fenced
from kapelle.patterns.roles import TeamIteration, TeamResult
from kapelle.patterns.spec import ModelName, OptionalAgentName, PatternSpec, Prompt, Role, RunChecks
from kapelle.patterns.subgoals import Plan, Workers, pursue

_PLAYWRIGHT = "npx playwright test"
_CONFIRM = "Is that right? Otherwise write what must be true, separated by semicolons."
# An agent that answered so often in a row without a plan will hardly give one.
_MOST_UNREADABLE = 2
_AS_STATED = "The goal is reached as it is stated."


class TeamSpec(PatternSpec):
    """A goal: planned, worked on by several at once, verified and reviewed, again until done."""

    model_config = ConfigDict(
        json_schema_extra=command(
            "Have a team reach a goal: plan, work in parallel, verify, review, again until done.",
            "With -f it asks its questions in the terminal, and with -f --json the run is printed "
            "when it has ended. Without a goal a terminal is asked for it.",
            foreground=True,
        )
    )

    goal: Prompt = Field(
        description="what is to be reached",
        json_schema_extra=prompt_argument(
            "goal", "What to build", ask="What is the goal? ", asked={"ask": True, "confirm": True}
        ),
    )
    success_criteria: list[Text] = field(
        [], "what must be true then; where nothing is given, the planner proposes it", "--criteria",
        metavar="TEXT",
        file=("--criteria-file", "Read further criteria from a file, one in each line."),
        max_length=100,
    )  # fmt: skip
    verify: RunChecks = field(
        [], "commands that must pass before a reviewer is asked", kind="check",
        timeout=("--verify-timeout", "Stop such a command after this long."),
    )  # fmt: skip
    playwright: bool = field(
        False,
        f"test what is seen in a browser: verifies with `{_PLAYWRIGHT}`, has workers "
        "write such tests, and the reviewer ask for them",
    )
    planner: OptionalAgentName = field(None, "the agent that plans; by default the run's agent")
    worker: OptionalAgentName = field(None, "the agent of the workers")
    reviewer: OptionalAgentName = field(None, "the agent that reviews")
    planner_model: ModelName = field(None, "the planner's model")
    worker_model: ModelName = field(None, "the workers' model")
    reviewer_model: ModelName = field(None, "the reviewer's model")
    max_iterations: int = field(4, "how often it may plan, work and review", ge=1, le=1000)
    max_workers: int = field(4, "how many subgoals are worked on at the same time", ge=1, le=100)
    max_subgoals: int = field(
        12, "the most subgoals of one plan; the next plan takes up the rest", ge=1, le=100
    )
    max_task_retries: int = field(1, "how often a worker that failed is asked again", ge=0, le=100)
    ask: bool = field(
        False,
        "let planner and reviewer ask a person what only a person can decide",
        flags={"--non-interactive": (False, "It never asks; this is the default.")},
    )
    max_questions: int = field(4, "how many questions each of them may ask at a time", ge=0, le=20)
    confirm: bool = field(False, "have a person confirm the criteria that the planner proposes")

    @property
    def never_blocks(self) -> bool:
        return not (self.ask or self.confirm)

    @property
    def needs_git(self) -> bool:
        return any(check.kind is CheckKind.DIFF_NOT_EMPTY for check in self.verify)

    @property
    def final_checks(self) -> list[CheckSpec]:
        """All that must pass before a reviewer is asked."""
        known = any(_PLAYWRIGHT in (check.command or "") for check in self.verify)
        if self.playwright and not known:
            more = [CheckSpec(command=_PLAYWRIGHT)]
        else:
            more = []
        return [*self.verify, *more]

    @property
    def roles(self) -> list[Role]:
        return [
            self.role(self.planner, self.planner_model),
            self.role(self.worker, self.worker_model),
            self.role(self.reviewer, self.reviewer_model),
        ]


@pattern("team", spec=TeamSpec, prompts=roles.PROMPTS)
async def team(ctx: Context, spec: TeamSpec) -> TeamResult:
    """Reach a goal: plan it, have several work at once, verify, review, and go on until done."""
    result = ctx.keep(TeamResult(reason="", success_criteria=spec.success_criteria))
    result.commit = await ctx.commit("Before the team")
    members = _Team(ctx, spec, result, {})
    await members.agree()
    unreadable = 0
    for number in range(1, spec.max_iterations + 1):
        iteration = TeamIteration(number=number)
        result.iterations.append(iteration)
        try:
            await members.plan()
        except Failed as failure:
            iteration.problem = failure.reason
            await ctx.progress(iteration=number, phase="failed", lack=failure.reason)
            unreadable = unreadable + 1 if isinstance(failure, UnusableAnswer) else 0
            if unreadable == _MOST_UNREADABLE:
                result.stopped_by = "failure"
                text = f"{unreadable} plans in a row could not be read, so it gave up"
                raise Failed(f"{text}. {failure.reason}") from None
            continue
        unreadable = 0
        await members.work()
        await members.verify()
        if iteration.verified:
            await members.review()
        await ctx.progress(iteration=number, **iteration.facts)
        if iteration.is_done:
            result.reason = f"the goal is reached after iteration {number}"
            result.goal_complete = True
            result.stopped_by = "goal"
            return result
        if iteration.review and number < spec.max_iterations:
            members.answers |= await members.asked(iteration.review.questions, "")
    result.stopped_by = "max_iterations"
    rounds = format_count(spec.max_iterations, "iteration")
    raise Failed(f"the goal was not reached in {rounds}: {result.iterations[-1].lack}")


@dataclass
class _Team(Workers):
    """What its members do in one iteration after another; the result is kept up to date by each."""

    answers: dict[str, str]  # of people, by their questions

    @property
    def planner(self) -> Who:
        return Who(agent=self.spec.planner, model=self.spec.planner_model)

    def told(self, role: str, **parts: str | list[str]) -> str:
        return self.ctx.prompt(role, roles.PROMPTS[role], the_goal=self.spec.goal, **parts)

    @property
    def _questions(self) -> str:
        if not self.spec.ask:
            return "Nobody can be asked: leave the questions empty and decide what is sensible."
        return (
            f"List at most {self.spec.max_questions} questions that only the person who gave the "
            "goal can answer and without which the work could go wrong; none is best."
        )

    async def agree(self) -> None:
        """Agree on what success means, and ask what only a person can know."""
        spec = self.spec
        result = self.result
        if result.success_criteria and not spec.ask:
            return
        await self.ctx.progress(phase="intake")
        prompt = self.told("intake", questions=self._questions, criteria=spec.success_criteria)
        try:
            found = await self.ctx.query(
                prompt, roles.Intake, title="Intake", role="intake", **self.planner
            )
        except Failed as failure:
            # The goal itself says enough to begin with.
            await self.ctx.progress(phase="intake", lack=failure.reason)
            found = roles.Intake(success_criteria=[])
        if result.success_criteria:
            self.answers = await self.asked(found.questions)
            return
        result.success_criteria = found.success_criteria or [_AS_STATED]
        listed = "".join(f"\n- {text}" for text in result.success_criteria)
        if spec.confirm:
            proposal = f"It is reached when{listed}\n{_CONFIRM}"
        else:
            proposal = ""
        self.answers = await self.asked(found.questions, proposal=proposal)
        said = self.answers.pop(proposal, "")
        own = [part.strip() for part in said.replace("\n", ";").split(";") if part.strip()]
        if own and said.strip().lower() not in {"y", "yes", "ok"}:
            result.success_criteria = own

    async def asked(
        self, questions: list[str], default: str | None = None, proposal: str = ""
    ) -> dict[str, str]:
        """What a person says to a proposal and to questions, if any may be asked."""
        ctx = self.ctx
        spec = self.spec
        if proposal:
            open_: dict[str, str | None] = {proposal: "yes"}
        else:
            open_ = {}
        open_ |= dict.fromkeys(questions[: spec.max_questions] if spec.ask else [], default)
        answers = await ctx.gather(*(ctx.ask(text, known) for text, known in open_.items()))
        return {text: said for text, said in zip(open_, answers, strict=True) if said.strip()}

    async def plan(self) -> None:
        """The subgoals of the iteration; raises Failed if there is no usable plan."""
        now = self.now
        most = self.spec.max_subgoals
        await self.ctx.progress(iteration=now.number, phase="plan", lack=None)
        prompt = self.told(
            "plan",
            max_subgoals=str(most),
            it_is_reached_when=self.result.success_criteria,
            what_was_asked_and_answered=[f"{q} {a}" for q, a in self.answers.items()],
            what_was_done_so_far=roles.so_far(self.result.iterations[:-1]),
        )
        plan = await self.ctx.query(
            prompt, Plan, title="Plan", role="plan", cycle=now.number, **self.planner
        )
        now.take_up(plan.subgoals, most)

    async def work(self) -> None:
        """Do the subgoals at the same time, each merged when it is done."""
        now = self.now
        ctx = self.ctx
        result = self.result
        subgoals = [subgoal.model_dump(include={"id", "title"}) for subgoal in now.subgoals]
        await ctx.progress(iteration=now.number, phase="work", subgoals=subgoals)
        await pursue(ctx, now.subgoals, self.spec.max_workers, self.may_begin, self.do)
        now.commit = result.commit = await ctx.commit(f"Iteration {now.number}")
        result.final_output = now.said or result.final_output

    async def verify(self) -> None:
        if not self.spec.final_checks:
            return
        await self.ctx.progress(iteration=self.now.number, phase="verify")
        self.now.checks = (await self.ctx.check(*self.spec.final_checks)).checks
        if self.now.commit is not None:
            # What a check leaves behind does not join the work.
            await self.ctx.revert(self.now.commit)

    async def review(self) -> None:
        now = self.now
        spec = self.spec
        await self.ctx.progress(iteration=now.number, phase="review")
        changes = await self.ctx.changes()
        prompt = self.told(
            "review",
            questions=self._questions,
            evidence=roles.EVIDENCE if spec.playwright else "",
            it_is_reached_when=self.result.success_criteria,
            what_was_verified=[f"`{check.name}` passed" for check in now.checks],
            what_the_workers_say=[outcome.told for outcome in now.outcomes],
            what_was_changed=fenced(changes) if changes else "",
        )
        reviewer = Who(agent=spec.reviewer, model=spec.reviewer_model)
        try:
            now.review = await self.ctx.query(
                prompt, roles.Review, title="Review", role="review", cycle=now.number, **reviewer
            )
        except Failed as failure:
            now.problem = failure.reason
