"""Implement a file of features in parallel tracks; each is verified on the merge result."""

from dataclasses import dataclass
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from kapelle.domain.failures import FailureClass
from kapelle.domain.options import command
from kapelle.domain.specs import Name, Text, Turns, field
from kapelle.domain.text import format_count
from kapelle.patterns.context import Context
from kapelle.patterns.registry import pattern
from kapelle.patterns.results import Combined, Failed, TaskResult, join_names
from kapelle.patterns.spec import ModelName, OptionalAgentName, PatternSpec, Role, RunChecks
from kapelle.patterns.tracks.features import (
    Feature,
    FeatureStatus,
    VerificationReport,
    read_features,
    with_status,
)

# Characters of the output of a failed check that the agent gets to read.
_OUTPUT = 8_000
# Failures of the environment in a row, after which a track pauses.
_MAX_STRIKES = 2


class TracksSpec(PatternSpec):
    """A file of features, which several tracks implement in parallel."""

    needs_git: ClassVar[bool] = True

    model_config = ConfigDict(
        json_schema_extra=command(
            "Implement a file of features in parallel tracks; only verified work is merged.",
            "Each open feature is implemented, combined with the work merged so far, checked and "
            "verified there, mended if it fails, and merged in order. The file on the run's "
            "branch shows the status of each feature.",
            examples=("kapelle tracks --features features.json --track ui=frontend --track all=",),
            file=("--file", "-F", "Read the specification from YAML or TOML; - is stdin."),
        )
    )

    features: Text = field(
        "features.json",
        "file of the features: JSON, a list or an object with `features`",
        metavar="FILE",
    )
    tracks: dict[Name, Text] = field(
        {"all": ""},
        "tracks with the categories of each, separated by commas; a track without categories "
        "takes the rest",
        "--track",
        metavar="NAME=CATEGORIES",
        min_length=1,
        max_length=5,
    )
    checks: RunChecks = field(
        [], "checks that must pass after every merge", "--check", kind="check"
    )
    verify: bool = field(
        True,
        "have an agent verify every step of a feature",
        flags={"--no-verify": (False, "Let the checks alone decide.")},
    )
    max_attempts: int = field(
        3, "maximum number of verifications of a feature before it fails", ge=1, le=100
    )
    worker: OptionalAgentName = field(None, "agent that implements; by default the run's agent")
    worker_model: ModelName = field(None, "model of the implementing agent")
    worker_turns: Turns | None = field(None, "maximum number of turns of the implementing agent")
    verifier: OptionalAgentName = field(None, "agent that verifies; by default the run's agent")
    verifier_model: ModelName = field(None, "model of the verifying agent")
    verifier_turns: Turns | None = field(None, "maximum number of turns of the verifying agent")
    verifier_tools: list[Name] = field(
        [], "the only tools of the verifying agent", "--verifier-tool", metavar="NAME", kind="list"
    )
    instructions: Text = field(
        "ORCHESTRATOR.md", "file with instructions for all agents, if it exists", metavar="FILE"
    )
    progress_file: Text = field(
        ".orchestrator/progress.txt",
        "file that gets a line about each feature that has ended",
        metavar="FILE",
    )

    @property
    def subject(self) -> str:
        return f"The features of {self.features}"

    @property
    def roles(self) -> list[Role]:
        worker = self.role(
            self.worker, self.worker_model, max_turns=self.worker_turns, field="worker_turns"
        )
        if not self.verify:
            return [worker]
        verifier = (self.verifier, self.verifier_model)
        tools = tuple(self.verifier_tools)
        return [
            worker,
            self.role(*verifier, max_turns=self.verifier_turns, field="verifier_turns"),
            self.role(*verifier, tools=tools, field="verifier_tools"),
        ]

    def track_of(self, category: str) -> str:
        """Return the track of a category: one that names it, one for the rest, or the first."""
        for name, categories in self.tracks.items():
            if category in [one.strip() for one in categories.split(",")]:
                return name
        for name, categories in self.tracks.items():
            if not categories:
                return name
        return next(iter(self.tracks))


class TracksResult(BaseModel):
    features: list[Feature]
    paused: dict[str, str] = {}
    reason: str


PROMPTS = {
    "implement": """\
Implement this feature completely and commit it.

{feature}

1. Run linters, type checks and unit tests, but no browser: others verify the feature afterwards.
2. Install no packages.
3. Leave {file} as it is.""",
    "verify": """\
Verify this feature.

{feature}

1. Change nothing.
2. Run the program, its tests, and requests to it.
3. Report every step. A step has passed only if you saw it pass.""",
    "fix": """\
You implemented this feature. Mend it and commit.

{feature}

{what_is_wrong}""",
}
_INSTRUCTIONS = (
    "\n\nFollow {file} where it does not contradict the above. {progress_file} tells what was "
    "done before."
)


@pattern("tracks", spec=TracksSpec, prompts=PROMPTS)
async def tracks(ctx: Context, spec: TracksSpec) -> TracksResult:
    """Implement a file of features in parallel tracks; only verified work is merged."""
    all_features = read_features(spec.features, await ctx.read_file(spec.features))
    features = [feature for feature in all_features if feature.status in {"open", "verifying"}]
    for feature in features:
        feature.status = "open"
        feature.track = spec.track_of(feature.category)
    result = ctx.keep(TracksResult(features=features, reason=""))
    if spec.checks:
        outcome = await ctx.check(*spec.checks)
        if not outcome.passed:
            names = join_names(outcome.failed)
            reason = f"{names} already fails before any change: fix that on the base first"
            raise Failed(reason, result)
    instructions = ""
    if await ctx.read_file(spec.instructions) is not None:
        instructions = _INSTRUCTIONS.format(
            file=spec.instructions, progress_file=spec.progress_file
        )
    await ctx.gather(*(Track(ctx, spec, result, name, instructions).work() for name in spec.tracks))
    failures = [feature for feature in features if feature.status != "passed"]
    total = len(features)
    if failures:
        reasons = "; ".join(f"{one.name}: {one.reason or 'not begun'}" for one in failures[:5])
        raise Failed(f"{total - len(failures)} of {total} features passed; {reasons}", result)
    if features:
        result.reason = f"{format_count(total, 'feature')} passed"
    else:
        result.reason = "no feature is open"
    return result


@dataclass
class Track:
    """One track, which implements its features one after another.

    instructions follow every prompt. strikes counts failures of the environment in a row.
    """

    ctx: Context
    spec: TracksSpec
    result: TracksResult
    name: str
    instructions: str
    strikes: int = 0

    async def work(self) -> None:
        """Implement the features of this track, until one fails because of the environment."""
        for feature in [one for one in self.result.features if one.track == self.name]:
            status: FeatureStatus = "passed"
            try:
                feature.reason = await self._implement(feature)
                if feature.reason:
                    status = "failed"
            except Failed as pause:
                feature.reason = pause.reason
                self.result.paused[self.name] = pause.reason
                status = "open"
            async with self.ctx.lock("merge"):
                await self._write_status(feature, status)
            if status == "open":
                return

    async def _implement(self, feature: Feature) -> str | None:
        """Implement, verify, mend and merge a feature; return why that failed, if it did."""
        prompt = self._prompt("implement", feature, file=self.spec.features)
        task = await self._run_task(feature, "implementing", prompt)
        conflicts: list[str] = []
        while task.ok:
            await self._name_branch(feature, task)
            async with self.ctx.lock("merge"):
                await self._write_status(feature, "verifying")
                combined = None
                if conflicts:
                    conflicts = await self.ctx.conflicted(task, conflicts)
                if conflicts:
                    # A failed resolution counts as a failed verification.
                    feature.verifications += 1
                else:
                    combined = await self.ctx.combine(task)
                    conflicts = combined.conflicts
                problem = _describe_conflicts(conflicts)
                if combined and not problem:
                    problem = await self._verify(feature, task)
                    if not problem:
                        return await self._merge(feature, task, combined)
            if feature.verifications >= self.spec.max_attempts:
                return problem
            prompt = self._prompt("fix", feature, what_is_wrong=problem or "")
            fix = await self._run_task(feature, "mending", prompt, task.id)
            await self.ctx.put_away(task)
            task = fix
        return task.reason or task.status

    async def _merge(self, feature: Feature, task: TaskResult, combined: Combined) -> str | None:
        """Merge the verified commit; return the problem, if there is one."""
        merge = await self.ctx.merge(task.model_copy(update={"commit": combined.commit}))
        feature.commit = merge.commit
        return merge.problem

    async def _verify(self, feature: Feature, task: TaskResult) -> str | None:
        """Verify a feature together with the work merged so far; return what is wrong, if any."""
        ctx = self.ctx
        spec = self.spec
        feature.verifications += 1
        if await ctx.read_file(spec.features, task) != await ctx.read_file(spec.features):
            return f"{spec.features} is not yours to change: put it back."
        if spec.checks:
            outcome = await ctx.check(*spec.checks, task=task.id)
            if not outcome.passed:
                texts = [f"`{one.name}` fails:\n{one.output[-_OUTPUT:]}" for one in outcome.failed]
                return "\n\n".join(texts)
        while spec.verify:
            try:
                report = await self._ask_verifier(feature, task)
            except Failed as failure:
                self._strike(failure.reason)
                continue
            self.strikes = 0
            feature.report = report.steps
            return report.lacks(feature.criteria) or None
        return None

    async def _ask_verifier(self, feature: Feature, task: TaskResult) -> VerificationReport:
        spec = self.spec
        return await self.ctx.query(
            self._prompt("verify", feature),
            VerificationReport,
            title=f"Verify {feature.name}",
            role="verify",
            agent=spec.verifier,
            model=spec.verifier_model,
            tools=spec.verifier_tools,
            max_turns=spec.verifier_turns,
            browser=True,
            continue_from=task.id,
        )

    async def _run_task(
        self, feature: Feature, phase: str, prompt: str, earlier: str | None = None
    ) -> TaskResult:
        """Have an agent work on a feature; a failure of the environment is retried."""
        spec = self.spec
        feature.phase = phase
        while True:
            await self._report(feature)
            task = await self.ctx.task(
                prompt,
                title=feature.name,
                role="fix" if earlier else "implement",
                workspace="own",
                agent=spec.worker,
                model=spec.worker_model,
                max_turns=spec.worker_turns,
                checks=["diff_not_empty"],
                continue_from=earlier,
            )
            feature.tasks.append(task.id)
            if task.failure is not FailureClass.ENVIRONMENT:
                self.strikes = 0
                return task
            self._strike(task.reason)

    def _prompt(self, role: str, feature: Feature, **parts: str) -> str:
        prompt = self.ctx.prompt(role, PROMPTS[role], feature=feature.text, **parts)
        return prompt + self.instructions

    def _strike(self, reason: str | None) -> None:
        """Count a failure of the environment; raise Failed to pause the track at the second."""
        self.strikes += 1
        if self.strikes == _MAX_STRIKES:
            raise Failed(f"track {self.name} paused, its environment failed twice: {reason}")

    async def _name_branch(self, feature: Feature, task: TaskResult) -> None:
        """Move the feature's branch to the work; somebody else's branch keeps its name."""
        if feature.branch:
            names = [feature.branch]
        else:
            names = [feature.branch_name]
            names += [f"{feature.branch_name}-{number}" for number in range(2, 10)]
        for name in names:
            if await self.ctx.name_branch(name, task, feature.commit):
                feature.branch = name
                feature.commit = task.commit
                return

    async def _write_status(self, feature: Feature, status: FeatureStatus) -> None:
        """Commit a status to the file of features; at the end also a line of progress."""
        ctx = self.ctx
        spec = self.spec
        feature.status = status
        feature.phase = status
        text = await ctx.read_file(spec.features) or "[]"
        await ctx.write_file(spec.features, with_status(text, feature, status))
        if status != "verifying":
            line = f"{await ctx.now():%Y-%m-%d %H:%M} {feature.name}: {status}"
            if feature.reason:
                line += f" ({feature.reason.splitlines()[0][:200]})"
            progress = await ctx.read_file(spec.progress_file) or ""
            await ctx.write_file(spec.progress_file, f"{progress}{line}\n")
        await ctx.commit(f"{feature.name}: {status}")
        await self._report(feature)

    async def _report(self, feature: Feature) -> None:
        features = [one.model_dump() for one in self.result.features]
        await self.ctx.progress(features=features, doing=f"{feature.name}: {feature.phase}")


def _describe_conflicts(files: list[str]) -> str | None:
    if not files:
        return None
    names = ", ".join(files)
    return (
        "Others' work is merged into yours. Resolve the conflict markers, so that both hold: "
        f"{names}"
    )
