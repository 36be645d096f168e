"""A goal: planned, worked on by several at once, verified and reviewed, again until done."""

from dataclasses import dataclass

from pydantic import ConfigDict, Field

from kapelle.domain.options import argument, command
from kapelle.domain.specs import CheckKind, CheckSpec, Text, field
from kapelle.domain.text import counted
from kapelle.patterns import team_roles as roles
from kapelle.patterns.context import Context, Who
from kapelle.patterns.registry import pattern
from kapelle.patterns.results import Failed, TaskResult
from kapelle.patterns.spec import AgentName, ModelName, PatternSpec, Prompt, Role, RunChecks
from kapelle.patterns.team_roles import Iteration, Outcome, Subgoal, TeamResult

_PLAYWRIGHT = "npx playwright test"
_CONFIRM = "Is that right? Otherwise write what must be true, separated by semicolons."
_AS_STATED = "The goal is reached as it is stated."
_ANSWER_ALONE = "Your answer is all that is wanted: change no files."


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
        json_schema_extra=argument(
            "GOAL",
            help="What to build; - reads it from stdin.",
            file=("--goal-file", "Read the goal from a file, or - for stdin."),
            ask="What is the goal? ",
            asked={"ask": True, "confirm": True},
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
    planner: AgentName = field(None, "the agent that plans; by default the run's agent")
    worker: AgentName = field(None, "the agent of the workers")
    reviewer: AgentName = field(None, "the agent that reviews")
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
        more = [CheckSpec(command=_PLAYWRIGHT)] if self.playwright and not known else []
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
    for number in range(1, spec.max_iterations + 1):
        iteration = Iteration(number=number)
        result.iterations.append(iteration)
        try:
            await members.plan()
        except Failed as failure:
            iteration.problem = failure.reason
            await ctx.progress(iteration=number, phase="failed", lack=failure.reason)
            continue
        await members.work()
        await members.verify()
        if iteration.verified:
            await members.review()
        await ctx.progress(iteration=number, **iteration.facts)
        if iteration.is_done:
            result.reason = f"the goal is reached after iteration {number}"
            result.goal_complete, result.stopped_by = True, "goal"
            return result
        if iteration.review and number < spec.max_iterations:
            members.answers |= await members.asked(iteration.review.questions, "")
    result.stopped_by = "max_iterations"
    rounds = counted(spec.max_iterations, "iteration")
    raise Failed(f"the goal was not reached in {rounds}: {result.iterations[-1].lack}")


@dataclass
class _Team:
    """What its members do in one iteration after another; the result is kept up to date by each."""

    ctx: Context
    spec: TeamSpec
    result: TeamResult
    answers: dict[str, str]  # of people, by their questions

    @property
    def now(self) -> Iteration:
        return self.result.iterations[-1]

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
        spec, result = self.spec, self.result
        if result.success_criteria and not spec.ask:
            return
        await self.ctx.progress(phase="intake")
        prompt = self.told("intake", questions=self._questions, criteria=spec.success_criteria)
        try:
            found = await self.ctx.query(prompt, roles.Intake, title="Intake", **self.planner)
        except Failed as failure:
            # The goal itself says enough to begin with.
            await self.ctx.progress(phase="intake", lack=failure.reason)
            found = roles.Intake(success_criteria=[])
        if result.success_criteria:
            self.answers = await self.asked(found.questions)
            return
        result.success_criteria = found.success_criteria or [_AS_STATED]
        listed = "".join(f"\n- {text}" for text in result.success_criteria)
        proposal = f"It is reached when{listed}\n{_CONFIRM}" if spec.confirm else ""
        self.answers = await self.asked(found.questions, proposal=proposal)
        said = self.answers.pop(proposal, "")
        own = [part.strip() for part in said.replace("\n", ";").split(";") if part.strip()]
        if own and said.strip().lower() not in {"y", "yes", "ok"}:
            result.success_criteria = own

    async def asked(
        self, questions: list[str], default: str | None = None, proposal: str = ""
    ) -> dict[str, str]:
        """What a person says to a proposal and to questions, if any may be asked."""
        ctx, spec = self.ctx, self.spec
        open_: dict[str, str | None] = {proposal: "yes"} if proposal else {}
        open_ |= dict.fromkeys(questions[: spec.max_questions] if spec.ask else [], default)
        answers = await ctx.gather(*(ctx.ask(text, known) for text, known in open_.items()))
        return {text: said for text, said in zip(open_, answers, strict=True) if said.strip()}

    async def plan(self) -> None:
        """The subgoals of the iteration; raises Failed if there is no usable plan."""
        now, most = self.now, self.spec.max_subgoals
        await self.ctx.progress(iteration=now.number, phase="plan", lack=None)
        asked = prompt = self.told(
            "plan",
            max_subgoals=str(most),
            it_is_reached_when=self.result.success_criteria,
            what_was_asked_and_answered=[f"{q} {a}" for q, a in self.answers.items()],
            what_was_done_so_far=roles.so_far(self.result.iterations[:-1]),
        )
        for title in ("Plan", "Plan (again)"):
            plan = await self.ctx.query(asked, roles.Plan, title=title, **self.planner)
            ordered, problem = plan.in_order()
            if problem is None:
                break
            asked = f"{prompt}\n\n## Your plan before this one could not be used\n{problem}"
        else:
            raise Failed(f"the plan is unusable: {problem}")
        now.subgoals = ordered[:most]
        reason = f"left out, for a plan has at most {counted(most, 'subgoal')}"
        now.outcomes = [Outcome.of(one, "blocked", reason) for one in ordered[most:]]
        kept = {subgoal.id for subgoal in now.subgoals}
        for subgoal in now.subgoals:
            subgoal.depends_on = [other for other in subgoal.depends_on if other in kept]

    async def work(self) -> None:
        """Do the subgoals at the same time, each merged when it is done."""
        now, ctx, result = self.now, self.ctx, self.result
        subgoals = [subgoal.model_dump(include={"id", "title"}) for subgoal in now.subgoals]
        await ctx.progress(iteration=now.number, phase="work", subgoals=subgoals)
        await roles.pursue(ctx, now.subgoals, self.spec.max_workers, self._may_begin, self._do)
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
        now, spec = self.now, self.spec
        await self.ctx.progress(iteration=now.number, phase="review")
        changes = await self.ctx.changes()
        prompt = self.told(
            "review",
            questions=self._questions,
            evidence=roles.EVIDENCE if spec.playwright else "",
            it_is_reached_when=self.result.success_criteria,
            what_was_verified=[f"`{check.name}` passed" for check in now.checks],
            what_the_workers_say=[outcome.told for outcome in now.outcomes],
            what_was_changed=roles.fenced(changes) if changes else "",
        )
        reviewer = Who(agent=spec.reviewer, model=spec.reviewer_model)
        try:
            now.review = await self.ctx.query(prompt, roles.Review, title="Review", **reviewer)
        except Failed as failure:
            now.problem = failure.reason

    def _before(self, subgoal: Subgoal) -> list[Outcome]:
        return [outcome for outcome in self.now.outcomes if outcome.id in subgoal.depends_on]

    def _may_begin(self, subgoal: Subgoal) -> bool:
        """Whether all that a subgoal depends on is merged; otherwise it is blocked."""
        before = self._before(subgoal)
        undone = [outcome.title for outcome in before if outcome.status != "merged"]
        if not undone and len(before) == len(set(subgoal.depends_on)):
            return True
        reason = f"it depends on what was not done: {', '.join(undone)}"
        self.now.add(Outcome.of(subgoal, "blocked", reason))
        return False

    async def _do(self, subgoal: Subgoal) -> None:
        outcome = Outcome.of(subgoal, "failed")
        parts = self.ctx.prompt(
            "work",
            roles.PROMPTS["work"],
            what_this_is_part_of=self.spec.goal,
            what_is_wanted=_ANSWER_ALONE if subgoal.text_only else "",
            in_a_browser=roles.IN_A_BROWSER if self.spec.playwright else "",
            what_was_done_before_and_is_in_your_files=[
                f"{other.title}: {other.excerpt(500) or 'done'}" for other in self._before(subgoal)
            ],
        )
        asked = prompt = f"{subgoal.task}\n\n{parts}"
        for _ in range(1 + self.spec.max_task_retries):
            task = await self._ask(asked, subgoal)
            outcome.tasks.append(task.id)
            outcome.said, outcome.reason = task.text, task.reason
            if task.ok:
                await self._merge(subgoal, task, outcome)
                break
            asked = roles.again(prompt, task, in_place=not self.ctx.is_git)
        self.now.add(outcome)

    async def _ask(
        self, prompt: str, subgoal: Subgoal, earlier: TaskResult | None = None
    ) -> TaskResult:
        # Whoever says it is done and has changed nothing is not done.
        return await self.ctx.task(
            prompt,
            title=f"{subgoal.title} (conflict)" if earlier else subgoal.title,
            agent=self.spec.worker,
            model=self.spec.worker_model,
            workspace="own",
            checks=["diff_not_empty"] if self.ctx.is_git and not subgoal.text_only else [],
            continue_from=earlier.id if earlier else None,
        )

    async def _merge(self, subgoal: Subgoal, task: TaskResult, outcome: Outcome) -> None:
        if self.ctx.is_git and (task.changed or not subgoal.text_only):
            async with self.ctx.lock("merge"):
                merged = await self.ctx.merge(task)
                if merged.conflict:
                    outcome.status = "conflict"
                    resolved = await self._resolve(subgoal, task, outcome)
                    if resolved is None:
                        return
                    merged = await self.ctx.merge(resolved)
            if not merged.ok:
                outcome.status = "conflict" if merged.conflict else "failed"
                outcome.reason = merged.problem
                return
            self.result.commit = merged.commit
        outcome.status, outcome.reason = "merged", None

    async def _resolve(
        self, subgoal: Subgoal, task: TaskResult, outcome: Outcome
    ) -> TaskResult | None:
        """Have both sides brought together; None, with the reason, if that did not come about."""
        conflicts = await self.ctx.take_in(task)
        files = {"files_from_the_top_of_the_repository": conflicts}
        told = roles.PROMPTS["resolve"]
        asked = self.ctx.prompt("resolve", told, **files, what_your_work_was=subgoal.task)
        resolved = await self._ask(asked, subgoal, task)
        outcome.tasks.append(resolved.id)
        left = await self.ctx.conflicted(resolved, conflicts) if resolved.ok else []
        await self.ctx.put_away(task)
        if resolved.ok and not left:
            return resolved
        why = f"conflict markers are left in {', '.join(left)}" if left else resolved.reason
        outcome.reason = f"its conflict with others' work was not resolved: {why}"
        return None
