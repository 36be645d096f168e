"""An unattended run: a plan with milestones, then cycles of review and implementation."""

from typing import Any, ClassVar, get_args

from pydantic import ConfigDict, Field

from kapelle.domain.answers import format_answer_instructions
from kapelle.domain.options import command
from kapelle.domain.specs import CheckSpec, field, prompt_argument
from kapelle.domain.text import format_count
from kapelle.patterns import workflow_phases as phases
from kapelle.patterns import workflow_plan as plans
from kapelle.patterns.context import Context
from kapelle.patterns.registry import pattern
from kapelle.patterns.results import Failed
from kapelle.patterns.spec import CandidateSpec, PatternSpec, Prompt, Role, RunChecks
from kapelle.patterns.workflow_phases import Phases, WorkflowBlocked
from kapelle.patterns.workflow_plan import Phase, PhaseLimit, WorkflowResult

_STALE = 2


class WorkflowSpec(PatternSpec):
    """A task that is planned, implemented and reviewed in cycles while nobody watches."""

    needs_git: ClassVar[bool] = True
    delivers_unfinished: ClassVar[bool] = True
    never_blocks: ClassVar[bool] = True

    model_config = ConfigDict(
        json_schema_extra=command(
            "Have a task planned, implemented and reviewed in cycles until its milestones hold.",
            "A milestone is ticked by its own check, else by the reviewer, never by who did it.",
            foreground=True,
        )
    )

    task: Prompt = Field(
        description="what is to be reached",
        json_schema_extra=prompt_argument("task", "What to reach"),
    )
    implementers: list[CandidateSpec] = field(
        [], "who plans and implements, the first that can; by default the run's agent",
        "--implementer", metavar="AGENT[:MODEL]", kind="list", max_length=20,
    )  # fmt: skip
    reviewers: list[CandidateSpec] = field(
        [], "who reviews, the first that can; by default the run's agent", "--reviewer",
        metavar="AGENT[:MODEL]", kind="list", max_length=20,
    )  # fmt: skip
    cycles: int = field(10, "how often it is reviewed and implemented at most", ge=1, le=50)
    checks: RunChecks = field([], "what must pass for any milestone to be done", "--check")
    limits: list[PhaseLimit] = field(
        [], "what a phase may use, such as implement:turns=40,usd=2,minutes=30; by default "
        "without a limit", "--limit", metavar="PHASE:LIMITS", max_length=20,
    )  # fmt: skip
    retry_delay_s: float = field(
        10, "the pause before a phase that broke down is tried again", "--retry-delay",
        kind="duration", ge=0, le=86_400, allow_inf_nan=False,
    )  # fmt: skip
    wait: bool = field(
        True, "wait for a person where it is blocked",
        flags={"--unattended": (False, "Where it is blocked it fails, and says what to do.")},
    )  # fmt: skip

    @property
    def roles(self) -> list[Role]:
        found = []
        for phase in get_args(Phase):
            limit = next(
                (one for one in self.limits if one.phase == phase), PhaseLimit(phase=phase)
            )
            given: Any = {"max_turns": limit.turns, "budget_usd": limit.usd, "field": "limits"}
            found += [self.role(who.agent, who.model, **given) for who in self.of(phase)]
        return found

    def of(self, phase: Phase) -> list[CandidateSpec]:
        """Who may do a phase, in order."""
        if phase == "review":
            named = self.reviewers
        else:
            named = self.implementers
        return named or [CandidateSpec(agent=self.agent, model=self.model)]


@pattern("workflow", spec=WorkflowSpec, prompts=phases.PROMPTS)
async def workflow(ctx: Context, spec: WorkflowSpec) -> WorkflowResult:
    """Plan a task, then review and implement it in cycles until every milestone holds."""
    cycles = _Cycles(ctx, spec, ctx.keep(WorkflowResult()))
    while True:
        try:
            if await cycles.advance():
                return cycles.now
        except WorkflowBlocked as blocked:
            await cycles.wait_for_person(blocked)


class _Cycles(Phases):
    """Phase after phase, and what follows from each."""

    # the most that were ticked; cycles without a new one
    _best = 0
    _stale = 0

    async def advance(self) -> bool:
        """Do the phase that it is at; whether all is done."""
        now = self.now
        await self.require_branch()
        if now.phase == "assess":
            await self.show()
            prompt = self.told("assess")
            (plan, now.contract), work = await self.ask("assess", prompt, plans.read_assessment)
            now.replan(plan)
            await self.log(work, work.text)
            now.phase = "review"
            now.cycle = 1
            return False
        await self._take_in_notes()
        await self.show()
        if now.phase == "implement" and now.open:  # a person may have taken the rest out
            await self._implement()
            now.phase = "review"
            now.cycle = now.cycle + 1
            return False
        await self._review()
        if not now.open and await self._holds():
            now.reason = f"all {len(now.milestones)} milestones hold, as reviewed"
            await self.show()
            return True
        now.phase = "implement"
        self._require_progress()
        return False

    async def _take_in_notes(self) -> None:
        """Have plan and contract be what their notes say, which people may change; what an agent
        wrote there, or somebody deleted, is put back."""
        now = self.now
        now.contract = await self.ctx.read_note(self.key("contract")) or now.contract
        plan = await self.ctx.read_note(self.key("plan"))
        known = self.written
        self.written = {"plan": plan, "contract": now.contract}
        if plan is not None and plan != known.get("plan"):
            try:
                now.replan(plans.read_plan(plan))
            except ValueError as error:
                asked = self.ask("assess", self.told("assess"), plans.read_plan, plan, str(error))
                now.replan((await asked)[0])
        await self.write()

    async def _review(self) -> None:
        now = self.now
        began = self.now.cycle > 1
        if began:
            failed = await self.verify(self.spec.checks)
        else:
            failed = []
        if began:
            changes = await self.ctx.changes(patch=True)
        else:
            changes = "nothing yet"
        prompt = self.told(
            "review", what_the_checks_say="\n".join(failed), what_was_changed=changes
        )
        prompt = f"{prompt}\n\n{format_answer_instructions(plans.MilestoneReview)}"
        review, work = await self.ask("review", prompt, plans.read_review)
        for number, one in enumerate(now.milestones, 1):
            if number in review.reopen:
                one.evidence = None
            elif number in review.done and not (failed or one.evidence or one.sees):
                # What has a check of its own is shown by that.
                one.evidence = f"seen by {work.agent} in the review of cycle {now.cycle}"
        if review.plan:
            now.replan(plans.read_plan(review.plan))
        now.issues = [*review.issues, *failed]
        await self.log(work, "\n".join([review.summary, *(f"- {issue}" for issue in now.issues)]))

    async def _holds(self) -> bool:
        """Whether all that can be checked holds at the end; what does not is open again."""
        for one in self.now.milestones:
            if one.check and (failed := await self.verify([CheckSpec(command=one.check)])):
                one.evidence = None
                self.now.issues += failed
        if failed := await self.verify(self.spec.checks):
            self.now.milestones[-1].evidence = None
            self.now.issues += failed
        return not self.now.open

    def _require_progress(self) -> None:
        now = self.now
        of = len(self.now.milestones)
        if now.cycle > 1:
            if now.done > self._best:
                self._stale = 0
            else:
                self._stale = self._stale + 1
        self._best = max(self._best, now.done)
        left = f"the next is: {now.open[0].title}"
        if now.cycle > self.spec.cycles:
            # The review behind the last cycle begins no further one.
            now.cycle = self.spec.cycles
            cycles = format_count(self.spec.cycles, "cycle")
            reason = f"{now.done} of {of} milestones hold after {cycles}; {left}"
            raise Failed(reason, limit="cycles")
        if self._stale >= _STALE:
            why = f"{_STALE} cycles in a row brought no new milestone; {left}"
            raise WorkflowBlocked(
                "progress", why, "Read the worklog, and change the plan in its note."
            )

    async def _implement(self) -> None:
        now = self.now
        milestone = self.now.open[0]
        if milestone.check:
            own = [CheckSpec(command=milestone.check)]
        else:
            own = []
        # Who wrote the plan may do the work: a check that passes before it ticks nothing.
        milestone.blind = bool(own) and not await self.verify(own)
        work = await self.call("implement", self.told("implement", the_milestone=milestone.text))
        now.commit = await self.ctx.commit(f"Cycle {now.cycle}: {milestone.title}")
        failed = await self.verify([*own, *self.spec.checks])
        if milestone.sees and not failed:
            milestone.evidence = f"`{milestone.check}` passed on {(now.commit or '')[:10]}"
        if work.ok:
            ended = []
        else:
            ended = [f"It ended with: {work.reason}"]
        said = [f"Milestone: {milestone.title}", work.text[-phases.SHOWN :], *ended, *failed]
        await self.log(work, "\n\n".join(filter(None, [*said, milestone.evidence])))

    async def wait_for_person(self, blocked: WorkflowBlocked) -> None:
        """Tell why it is blocked; go on where a person says, if that can be."""
        now = self.now
        facts = {"code": blocked.code, "reason": str(blocked), "fix": blocked.fix}
        now.blocked = plans.Block.model_validate({"phase": now.phase, "cycle": now.cycle, **facts})
        await self.show()
        told = f"blocked in {now.phase} of cycle {now.cycle}: {blocked}. {blocked.fix}"
        wrong = ""
        while self.spec.wait:
            answer = "Answer resume, a phase with its cycle such as `implement 3`, or stop."
            said = await self.ctx.ask(f"{wrong}{told} {answer}")
            if said.strip().lower() == "stop":
                break
            other = await self.ctx.astray()
            if other:
                wrong = f"The worktree is on {other}. "
            else:
                wrong = now.go_to(said)
            if not wrong:
                now.blocked = None
                self._stale = 0
                return
        raise Failed(told)
