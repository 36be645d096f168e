"""Do a task unattended: a plan with milestones, then cycles of review and implementation."""

from typing import Any, ClassVar, get_args

from pydantic import ConfigDict, Field

from kapelle.domain.answers import format_answer_instructions
from kapelle.domain.options import command
from kapelle.domain.specs import CheckSpec, field, prompt_argument
from kapelle.domain.text import format_count
from kapelle.patterns.context import Context
from kapelle.patterns.registry import pattern
from kapelle.patterns.results import Failed, bullet_list
from kapelle.patterns.spec import CandidateSpec, PatternSpec, Prompt, Role, RunChecks
from kapelle.patterns.workflow.phases import PROMPTS, TAIL, Phases, WorkflowBlocked
from kapelle.patterns.workflow.plan import (
    Block,
    MilestoneReview,
    Phase,
    PhaseLimit,
    WorkflowResult,
    read_assessment,
    read_plan,
    read_review,
)

# Cycles in a row without a new milestone, after which a person is asked.
_MAX_STALE_CYCLES = 2


class WorkflowSpec(PatternSpec):
    """A task that is planned, implemented and reviewed in cycles without supervision."""

    needs_git: ClassVar[bool] = True
    delivers_unfinished: ClassVar[bool] = True
    never_blocks: ClassVar[bool] = True

    model_config = ConfigDict(
        json_schema_extra=command(
            "Plan, implement and review in cycles until all milestones hold.",
            "A milestone is ticked by its own check, else by the reviewer, never by its "
            "implementer.",
            foreground=True,
            examples=(
                'kapelle workflow "add OAuth login" --check "make test" --cycles 5',
                "kapelle workflow --task-file task.md --unattended",
            ),
        )
    )

    task: Prompt = Field(
        description="task to complete",
        json_schema_extra=prompt_argument("task", "What to reach"),
    )
    implementers: list[CandidateSpec] = field(
        [],
        "agents that plan and implement, in order of preference; by default the run's agent",
        "--implementer",
        metavar="AGENT[:MODEL]",
        kind="list",
        max_length=20,
    )
    reviewers: list[CandidateSpec] = field(
        [],
        "agents that review, in order of preference; by default the run's agent",
        "--reviewer",
        metavar="AGENT[:MODEL]",
        kind="list",
        max_length=20,
    )
    cycles: int = field(10, "maximum number of cycles of review and implementation", ge=1, le=50)
    checks: RunChecks = field([], "checks that must pass for every milestone", "--check")
    limits: list[PhaseLimit] = field(
        [],
        "limits of a phase, such as implement:turns=40,usd=2,minutes=30; by default no limit",
        "--limit",
        metavar="PHASE:LIMITS",
        max_length=20,
    )
    retry_delay_s: float = field(
        10,
        "pause before a phase that broke down is tried again",
        "--retry-delay",
        kind="duration",
        ge=0,
        le=86_400,
        allow_inf_nan=False,
    )
    wait: bool = field(
        True,
        "wait for a person if the workflow is blocked",
        flags={"--unattended": (False, "Fail if the workflow is blocked, and report the remedy.")},
    )

    @property
    def roles(self) -> list[Role]:
        roles = []
        for phase in get_args(Phase):
            limit = self.limit_of(phase) or PhaseLimit(phase=phase)
            for who in self.of(phase):
                roles.append(
                    self.role(
                        who.agent,
                        who.model,
                        max_turns=limit.turns,
                        budget_usd=limit.usd,
                        field="limits",
                    )
                )
        return roles

    def limit_of(self, phase: Phase) -> PhaseLimit | None:
        """Return the limit of a phase; the first one counts."""
        for limit in self.limits:
            if limit.phase == phase:
                return limit
        return None

    def of(self, phase: Phase) -> list[CandidateSpec]:
        """Return the candidates for a phase, in order."""
        candidates = self.reviewers if phase == "review" else self.implementers
        return candidates or [CandidateSpec(agent=self.agent, model=self.model)]


@pattern("workflow", spec=WorkflowSpec, prompts=PROMPTS)
async def workflow(ctx: Context, spec: WorkflowSpec) -> WorkflowResult:
    """Plan a task, then review and implement it in cycles until every milestone holds."""
    cycles = _Cycles(ctx, spec, ctx.keep(WorkflowResult()))
    while True:
        try:
            if await cycles.advance():
                return cycles.state
        except WorkflowBlocked as blocked:
            await cycles.wait_for_person(blocked)


class _Cycles(Phases):
    """The order of the phases.

    _best is the highest number of milestones done so far, _stale the number of cycles in a row
    without a new one.
    """

    _best = 0
    _stale = 0

    async def advance(self) -> bool:
        """Do the current phase; tell whether the workflow is done."""
        state = self.state
        await self.require_branch()
        if state.phase == "assess":
            await self.report()
            await self._assess()
            state.phase = "review"
            state.cycle = 1
            return False
        await self._read_notes()
        await self.report()
        # A person may have removed all open milestones.
        if state.phase == "implement" and state.open:
            await self._implement()
            state.phase = "review"
            state.cycle += 1
            return False
        await self._review()
        if not state.open and await self._holds():
            state.reason = f"all {len(state.milestones)} milestones hold, as reviewed"
            await self.report()
            return True
        state.phase = "implement"
        self._require_progress()
        return False

    async def _assess(self) -> None:
        """Have an agent write the plan and the contract."""
        prompt = self.prompt("assess")
        (milestones, contract), work = await self.ask("assess", prompt, read_assessment)
        self.state.contract = contract
        self.state.replan(milestones)
        await self.log(work, work.text)

    async def _read_notes(self) -> None:
        """Take over plan and contract from their notes, which people may change.

        A note that an agent wrote, or that somebody deleted, is restored.
        """
        state = self.state
        state.contract = await self.ctx.read_note(self.key("contract")) or state.contract
        plan = await self.ctx.read_note(self.key("plan"))
        own_plan = self.own_notes.get("plan")
        self.own_notes = {"plan": plan, "contract": state.contract}
        if plan is not None and plan != own_plan:
            try:
                milestones = read_plan(plan)
            except ValueError as error:
                # An agent repairs the form of what the person wrote.
                prompt = self.prompt("assess")
                milestones, _ = await self.ask("assess", prompt, read_plan, plan, str(error))
            state.replan(milestones)
        await self.write_notes()

    async def _review(self) -> None:
        """Have a reviewer tick and reopen milestones, and change the plan."""
        state = self.state
        failures: list[str] = []
        changes = "nothing yet"
        if state.cycle > 1:
            failures = await self.verify(self.spec.checks)
            changes = await self.ctx.changes(patch=True)
        prompt = self.prompt(
            "review", what_the_checks_say="\n".join(failures), what_was_changed=changes
        )
        prompt = f"{prompt}\n\n{format_answer_instructions(MilestoneReview)}"
        review, work = await self.ask("review", prompt, read_review)
        for number, milestone in enumerate(state.milestones, 1):
            # A milestone with a check that proves it is ticked by the check alone.
            may_tick = not failures and not milestone.evidence and not milestone.has_proving_check
            if number in review.reopen:
                milestone.evidence = None
            elif number in review.done and may_tick:
                evidence = f"seen by {work.agent} in the review of cycle {state.cycle}"
                milestone.evidence = evidence
        if review.plan:
            state.replan(read_plan(review.plan))
        state.issues = [*review.issues, *failures]
        entry = f"{review.summary}\n{bullet_list(state.issues)}"
        await self.log(work, entry.rstrip("\n"))

    async def _holds(self) -> bool:
        """Verify every milestone at the end; reopen those that fail their check."""
        state = self.state
        for milestone in state.milestones:
            if milestone.check:
                failures = await self.verify([CheckSpec(command=milestone.check)])
                if failures:
                    milestone.evidence = None
                    state.issues += failures
        failures = await self.verify(self.spec.checks)
        if failures:
            state.milestones[-1].evidence = None
            state.issues += failures
        return not state.open

    def _require_progress(self) -> None:
        """Raise Failed after the last cycle, and WorkflowBlocked after stale cycles."""
        state = self.state
        if state.cycle > 1:
            self._stale = 0 if state.done > self._best else self._stale + 1
        self._best = max(self._best, state.done)
        remaining = f"the next is: {state.open[0].title}"
        if state.cycle > self.spec.cycles:
            # The review after the last cycle begins no further one.
            state.cycle = self.spec.cycles
            cycles = format_count(self.spec.cycles, "cycle")
            reason = f"{state.done} of {len(state.milestones)} milestones hold after {cycles}"
            raise Failed(f"{reason}; {remaining}", limit="cycles")
        if self._stale >= _MAX_STALE_CYCLES:
            reason = f"{_MAX_STALE_CYCLES} cycles in a row brought no new milestone; {remaining}"
            raise WorkflowBlocked(
                "progress", reason, "Read the worklog, and change the plan in its note."
            )

    async def _implement(self) -> None:
        """Have an implementer do the first open milestone."""
        state = self.state
        milestone = state.open[0]
        own_checks = []
        if milestone.check:
            own_checks = [CheckSpec(command=milestone.check)]
        # The implementer may have written the plan: a check that passes before the work is blind.
        milestone.blind = bool(own_checks) and not await self.verify(own_checks)
        work = await self.call("implement", self.prompt("implement", the_milestone=milestone.text))
        state.commit = await self.ctx.commit(f"Cycle {state.cycle}: {milestone.title}")
        failures = await self.verify([*own_checks, *self.spec.checks])
        if milestone.has_proving_check and not failures:
            milestone.evidence = f"`{milestone.check}` passed on {(state.commit or '')[:10]}"
        entry = [f"Milestone: {milestone.title}", work.text[-TAIL:]]
        if not work.ok:
            entry.append(f"It ended with: {work.reason}")
        entry += failures
        if milestone.evidence:
            entry.append(milestone.evidence)
        await self.log(work, "\n\n".join(filter(None, entry)))

    async def wait_for_person(self, blocked: WorkflowBlocked) -> None:
        """Report why the workflow is blocked, and wait until a person lets it continue.

        Raise Failed if the person stops it, or if the specification wants nobody to be asked.
        """
        state = self.state
        facts: dict[str, Any] = {"code": blocked.code, "reason": str(blocked), "fix": blocked.fix}
        state.blocked = Block(phase=state.phase, cycle=state.cycle, **facts)
        await self.report()
        problem = f"blocked in {state.phase} of cycle {state.cycle}: {blocked}. {blocked.fix}"
        complaint = ""
        while self.spec.wait:
            request = "Answer resume, a phase with its cycle such as `implement 3`, or stop."
            reply = await self.ctx.ask(f"{complaint}{problem} {request}")
            if reply.strip().lower() == "stop":
                break
            branch = await self.ctx.astray()
            if branch:
                complaint = f"The worktree is on {branch}. "
            else:
                complaint = state.go_to(reply)
            if not complaint:
                state.blocked = None
                self._stale = 0
                return
        raise Failed(problem)
