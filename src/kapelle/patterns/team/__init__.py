"""Reach a goal with a team: plan, work in parallel, verify, review, and repeat until done."""

from dataclasses import dataclass

from pydantic import ConfigDict, Field

from kapelle.domain.options import command
from kapelle.domain.specs import CheckKind, CheckSpec, Text, field, prompt_argument
from kapelle.domain.text import format_count
from kapelle.patterns.context import Context, Who
from kapelle.patterns.registry import pattern
from kapelle.patterns.results import Failed, UnusableAnswer, bullet_list, fenced
from kapelle.patterns.spec import ModelName, OptionalAgentName, PatternSpec, Prompt, Role, RunChecks
from kapelle.patterns.subgoals import pursue_subgoals
from kapelle.patterns.team.progress import TeamIteration, TeamResult, summarize_iterations
from kapelle.patterns.team.roles import BROWSER_EVIDENCE, PROMPTS, Intake, Plan, Review
from kapelle.patterns.team.workers import Workers

_PLAYWRIGHT = "npx playwright test"
_CONFIRM = "Is that right? Otherwise write what must be true, separated by semicolons."
# A planner whose plans were unreadable this often in a row will hardly give a readable one.
_MAX_UNREADABLE_PLANS = 2
_GOAL_AS_CRITERION = "The goal is reached as it is stated."


class TeamSpec(PatternSpec):
    """A goal for a team of agents: one plans, several work in parallel, one reviews."""

    model_config = ConfigDict(
        json_schema_extra=command(
            "Reach a goal with a team of agents: plan, work in parallel, verify and review.",
            "With -f the team asks its questions in the terminal; with -f --json the run is "
            "printed when it has ended. Without a goal, a terminal asks for it.",
            foreground=True,
            examples=(
                'kapelle team "build a web shop" --verify "make test" -f',
                "kapelle team --goal-file goal.md --max-workers 3",
            ),
        )
    )

    goal: Prompt = Field(
        description="goal to reach",
        json_schema_extra=prompt_argument(
            "goal", "What to build", ask="What is the goal? ", asked={"ask": True, "confirm": True}
        ),
    )
    success_criteria: list[Text] = field(
        [],
        "criteria of success; by default the planner proposes them",
        "--criteria",
        metavar="TEXT",
        file=("--criteria-file", "Read further criteria from a file, one per line."),
        max_length=100,
    )
    verify: RunChecks = field(
        [],
        "commands that must pass before the reviewer is asked",
        kind="check",
        timeout=("--verify-timeout", "Time limit of each of these commands."),
    )
    playwright: bool = field(
        False,
        f"test in a browser: verify with `{_PLAYWRIGHT}`, have workers write such tests, and "
        "have the reviewer demand them",
    )
    planner: OptionalAgentName = field(None, "agent that plans; by default the run's agent")
    worker: OptionalAgentName = field(None, "agent of the workers")
    reviewer: OptionalAgentName = field(None, "agent that reviews")
    planner_model: ModelName = field(None, "model of the planner")
    worker_model: ModelName = field(None, "model of the workers")
    reviewer_model: ModelName = field(None, "model of the reviewer")
    max_iterations: int = field(4, "maximum number of iterations", ge=1, le=1000)
    max_workers: int = field(4, "number of subgoals worked on at the same time", ge=1, le=100)
    max_subgoals: int = field(
        12, "maximum number of subgoals of a plan; the next plan takes up the rest", ge=1, le=100
    )
    max_task_retries: int = field(1, "number of retries of a failed subgoal", ge=0, le=100)
    ask: bool = field(
        False,
        "let planner and reviewer ask a person what only a person can decide",
        flags={"--non-interactive": (False, "Never ask; this is the default.")},
    )
    max_questions: int = field(
        4, "maximum number of questions that each may ask at a time", ge=0, le=20
    )
    confirm: bool = field(False, "have a person confirm the criteria that the planner proposes")

    @property
    def never_blocks(self) -> bool:
        return not (self.ask or self.confirm)

    @property
    def needs_git(self) -> bool:
        return any(check.kind is CheckKind.DIFF_NOT_EMPTY for check in self.verify)

    @property
    def final_checks(self) -> list[CheckSpec]:
        """Return the checks that must pass before the reviewer is asked."""
        if not self.playwright:
            return self.verify
        if any(_PLAYWRIGHT in (check.command or "") for check in self.verify):
            return self.verify
        return [*self.verify, CheckSpec(command=_PLAYWRIGHT)]

    @property
    def roles(self) -> list[Role]:
        return [
            self.role(self.planner, self.planner_model),
            self.role(self.worker, self.worker_model),
            self.role(self.reviewer, self.reviewer_model),
        ]


@pattern("team", spec=TeamSpec, prompts=PROMPTS)
async def team(ctx: Context, spec: TeamSpec) -> TeamResult:
    """Reach a goal with a team of agents: plan, work in parallel, verify, review, repeat."""
    result = ctx.keep(TeamResult(reason="", success_criteria=spec.success_criteria))
    result.commit = await ctx.commit("Before the team")
    members = _Team(ctx, spec, result, {})
    await members.agree_on_criteria()
    unreadable_plans = 0
    for number in range(1, spec.max_iterations + 1):
        iteration = TeamIteration(number=number)
        result.iterations.append(iteration)
        try:
            await members.plan()
        except Failed as failure:
            iteration.problem = failure.reason
            await ctx.progress(iteration=number, phase="failed", lack=failure.reason)
            if not isinstance(failure, UnusableAnswer):
                unreadable_plans = 0
                continue
            unreadable_plans += 1
            if unreadable_plans == _MAX_UNREADABLE_PLANS:
                result.stopped_by = "failure"
                text = f"{unreadable_plans} plans in a row could not be read, so it gave up"
                raise Failed(f"{text}. {failure.reason}") from None
            continue
        unreadable_plans = 0
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
            members.answers |= await members.ask(iteration.review.questions, "")
    result.stopped_by = "max_iterations"
    iterations = format_count(spec.max_iterations, "iteration")
    raise Failed(f"the goal was not reached in {iterations}: {result.iterations[-1].lack}")


@dataclass
class _Team(Workers):
    """The members of a team; each phase updates the result.

    answers holds the answers of people by their questions.
    """

    answers: dict[str, str]

    @property
    def planner(self) -> Who:
        return Who(agent=self.spec.planner, model=self.spec.planner_model)

    @property
    def reviewer(self) -> Who:
        return Who(agent=self.spec.reviewer, model=self.spec.reviewer_model)

    def prompt(self, role: str, **parts: str | list[str]) -> str:
        return self.ctx.prompt(role, PROMPTS[role], the_goal=self.spec.goal, **parts)

    @property
    def _question_rule(self) -> str:
        if not self.spec.ask:
            return "Nobody can be asked: leave the questions empty and decide what is sensible."
        return (
            f"List at most {self.spec.max_questions} questions that only the person who gave the "
            "goal can answer and without which the work could go wrong; none is best."
        )

    async def agree_on_criteria(self) -> None:
        """Have the planner propose criteria and ask its questions, unless the person did all."""
        spec = self.spec
        result = self.result
        if result.success_criteria and not spec.ask:
            return
        intake = await self._intake()
        if result.success_criteria:
            self.answers = await self.ask(intake.questions)
            return
        result.success_criteria = intake.success_criteria or [_GOAL_AS_CRITERION]
        proposal = ""
        if spec.confirm:
            criteria = bullet_list(result.success_criteria)
            proposal = f"It is reached when\n{criteria}\n{_CONFIRM}"
        self.answers = await self.ask(intake.questions, proposal=proposal)
        reply = self.answers.pop(proposal, "")
        own = [part.strip() for part in reply.replace("\n", ";").split(";") if part.strip()]
        if own and reply.strip().lower() not in {"y", "yes", "ok"}:
            result.success_criteria = own

    async def _intake(self) -> Intake:
        criteria = self.spec.success_criteria
        await self.ctx.progress(phase="intake")
        prompt = self.prompt("intake", questions=self._question_rule, criteria=criteria)
        try:
            return await self.ctx.query(
                prompt, Intake, title="Intake", role="intake", **self.planner
            )
        except Failed as failure:
            # The goal itself is enough to begin with.
            await self.ctx.progress(phase="intake", lack=failure.reason)
            return Intake(success_criteria=[])

    async def ask(
        self, questions: list[str], default: str | None = None, proposal: str = ""
    ) -> dict[str, str]:
        """Ask a person to confirm a proposal and to answer questions, as far as allowed.

        Return the answers that are not empty, by question.
        """
        ctx = self.ctx
        defaults = dict[str, str | None]()
        if proposal:
            defaults[proposal] = "yes"
        if self.spec.ask:
            for question in questions[: self.spec.max_questions]:
                defaults[question] = default
        replies = await ctx.gather(*(ctx.ask(text, value) for text, value in defaults.items()))
        pairs = zip(defaults, replies, strict=True)
        return {question: reply for question, reply in pairs if reply.strip()}

    async def plan(self) -> None:
        """Have the planner divide the goal into subgoals; raise Failed without a usable plan."""
        iteration = self.iteration
        await self.ctx.progress(iteration=iteration.number, phase="plan", lack=None)
        prompt = self.prompt(
            "plan",
            max_subgoals=str(self.spec.max_subgoals),
            it_is_reached_when=self.result.success_criteria,
            what_was_asked_and_answered=[f"{q} {a}" for q, a in self.answers.items()],
            what_was_done_so_far=summarize_iterations(self.result.iterations[:-1]),
        )
        plan = await self.ctx.query(
            prompt, Plan, title="Plan", role="plan", cycle=iteration.number, **self.planner
        )
        iteration.take_up(plan.subgoals, self.spec.max_subgoals)

    async def work(self) -> None:
        """Have workers do the subgoals concurrently; merge each when it is done."""
        iteration = self.iteration
        subgoals = [one.model_dump(include={"id", "title"}) for one in iteration.subgoals]
        await self.ctx.progress(iteration=iteration.number, phase="work", subgoals=subgoals)
        await pursue_subgoals(
            self.ctx, iteration.subgoals, self.spec.max_workers, self.may_begin, self.work_on
        )
        iteration.commit = await self.ctx.commit(f"Iteration {iteration.number}")
        self.result.commit = iteration.commit
        self.result.final_output = iteration.answer or self.result.final_output

    async def verify(self) -> None:
        """Execute the checks; discard the files that they leave behind."""
        if not self.spec.final_checks:
            return
        iteration = self.iteration
        await self.ctx.progress(iteration=iteration.number, phase="verify")
        iteration.checks = (await self.ctx.check(*self.spec.final_checks)).checks
        if iteration.commit is not None:
            await self.ctx.revert(iteration.commit)

    async def review(self) -> None:
        """Have the reviewer judge the work."""
        iteration = self.iteration
        await self.ctx.progress(iteration=iteration.number, phase="review")
        changes = await self.ctx.changes()
        prompt = self.prompt(
            "review",
            questions=self._question_rule,
            evidence=BROWSER_EVIDENCE if self.spec.playwright else "",
            it_is_reached_when=self.result.success_criteria,
            what_was_verified=[f"`{check.name}` passed" for check in iteration.checks],
            what_the_workers_say=[outcome.description for outcome in iteration.outcomes],
            what_was_changed=fenced(changes) if changes else "",
        )
        number = iteration.number
        try:
            iteration.review = await self.ctx.query(
                prompt, Review, title="Review", role="review", cycle=number, **self.reviewer
            )
        except Failed as failure:
            iteration.problem = failure.reason
