"""A file of features in parallel tracks: implement, verify on the merge result, fix, merge."""

from dataclasses import dataclass
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from kapelle.domain.failures import FailureClass
from kapelle.domain.options import command
from kapelle.domain.specs import Name, Text, Turns, field
from kapelle.domain.text import format_count
from kapelle.patterns.context import Context
from kapelle.patterns.features import (
    Feature,
    FeatureStatus,
    VerificationReport,
    read_features,
    with_status,
)
from kapelle.patterns.registry import pattern
from kapelle.patterns.results import Failed, TaskResult
from kapelle.patterns.spec import ModelName, OptionalAgentName, PatternSpec, Role, RunChecks

_SHOWN = 8_000


class TracksSpec(PatternSpec):
    """A file of features, worked off by several tracks at once."""

    needs_git: ClassVar[bool] = True

    model_config = ConfigDict(
        json_schema_extra=command(
            "Work off a file of features in parallel tracks; only what was verified is merged.",
            "Each open feature is implemented, brought together with what is merged already, "
            "checked and verified there, mended if it fails, and merged in order. Its status in "
            "the file is kept on the run's branch.",
            file=("--file", "-F", "Read all of this from YAML or TOML; - is stdin."),
        )
    )

    features: Text = field(
        "features.json", "the file: JSON, a list or an object with `features`", metavar="FILE"
    )
    tracks: dict[Name, Text] = field(
        {"all": ""}, "lines of work and the categories of each, separated by commas; one without "
        "any takes the rest", "--track", metavar="NAME=CATEGORIES", min_length=1, max_length=5,
    )  # fmt: skip
    checks: RunChecks = field([], "what must pass after every merge", "--check", kind="check")
    verify: bool = field(
        True,
        "have an agent verify every step of a feature",
        flags={"--no-verify": (False, "The checks alone decide.")},
    )
    max_attempts: int = field(3, "how often a feature is verified before it fails", ge=1, le=100)
    worker: OptionalAgentName = field(None, "the agent that implements; by default the run's agent")
    worker_model: ModelName = field(None, "its model")
    worker_turns: Turns | None = field(None, "its limit of turns")
    verifier: OptionalAgentName = field(None, "the agent that verifies; by default the run's agent")
    verifier_model: ModelName = field(None, "its model")
    verifier_turns: Turns | None = field(None, "its limit of turns")
    verifier_tools: list[Name] = field(
        [], "the only tools of the verifying agent", "--verifier-tool", metavar="NAME", kind="list"
    )
    instructions: Text = field("ORCHESTRATOR.md", "what all follow, if it exists", metavar="FILE")
    progress_file: Text = field(
        ".orchestrator/progress.txt", "gets a line about each ended feature", metavar="FILE"
    )

    @property
    def subject(self) -> str:
        return f"The features of {self.features}"

    @property
    def roles(self) -> list[Role]:
        worker = (self.worker, self.worker_model)
        verifier = (self.verifier, self.verifier_model)
        turns = self.verifier_turns
        tools = tuple(self.verifier_tools)
        made = [self.role(*worker, max_turns=self.worker_turns, field="worker_turns"),
                self.role(*verifier, max_turns=turns, field="verifier_turns"),
                self.role(*verifier, tools=tools, field="verifier_tools")]  # fmt: skip
        return made if self.verify else made[:1]

    def track_of(self, category: str) -> str:
        """The track that takes a category."""
        taken = {name: [*map(str.strip, of.split(","))] for name, of in self.tracks.items()}
        named = [name for name in taken if category in taken[name]]
        return [*named, *(name for name in self.tracks if not self.tracks[name]), *self.tracks][0]


class TracksResult(BaseModel):
    features: list[Feature]
    paused: dict[str, str] = {}
    reason: str


PROMPTS = {
    "implement": """Implement this feature completely and commit it.\n\n{feature}\n
Run linters, type checks and unit tests but no browser: others verify it afterwards. Install no
packages, and leave {file} as it is.""",
    "verify": """Verify this feature. Change nothing: run the program, its tests, requests to it;
report. A step has passed only if you saw that it has.\n\n{feature}""",
    "fix": "You implemented this feature. Mend it and commit.\n\n{feature}\n\n{what_is_wrong}",
}
_PROTOCOL = "\n\nFollow {0} where it does not contradict the above. {1} tells what was done before."
_CONFLICT = "Others' work is merged into yours. Resolve the conflict markers, so that both hold: {}"


@pattern("tracks", spec=TracksSpec, prompts=PROMPTS)
async def tracks(ctx: Context, spec: TracksSpec) -> TracksResult:
    """Work off a file of features in parallel tracks; only what was verified is merged."""
    found = read_features(spec.features, await ctx.read_file(spec.features))
    features = [feature for feature in found if feature.status in {"open", "verifying"}]
    for feature in features:
        feature.status = "open"
        feature.track = spec.track_of(feature.category)
    result = ctx.keep(TracksResult(features=features, reason=""))
    if spec.checks and not (before := await ctx.check(*spec.checks)).passed:
        names = ", ".join(check.name for check in before.failed)
        raise Failed(f"{names} already fails before any change: fix that on the base first", result)
    told = _PROTOCOL.format(spec.instructions, spec.progress_file)
    if await ctx.read_file(spec.instructions) is not None:
        told = told
    else:
        told = ""
    await ctx.gather(*(Track(ctx, spec, result, name, told).work() for name in spec.tracks))
    rest = [feature for feature in features if feature.status != "passed"]
    if rest:
        why = "; ".join(f"{one.name}: {one.reason or 'not begun'}" for one in rest[:5])
        of = len(features)
        raise Failed(f"{of - len(rest)} of {of} features passed; {why}", result)
    passed = f"{format_count(len(features), 'feature')} passed"
    if features:
        result.reason = passed
    else:
        result.reason = "no feature is open"
    return result


@dataclass
class Track:
    """One line of work: its features one after another."""

    ctx: Context
    spec: TracksSpec
    result: TracksResult
    name: str
    protocol: str
    strikes: int = 0

    async def work(self) -> None:
        for feature in [one for one in self.result.features if one.track == self.name]:
            try:
                feature.reason = await self._make(feature)
                if feature.reason:
                    status: FeatureStatus = "failed"
                else:
                    status = "passed"
            except Failed as paused:
                self.result.paused[self.name] = feature.reason = paused.reason
                status = "open"
            async with self.ctx.lock("merge"):
                await self._tell(feature, status)
            if status == "open":
                return

    async def _make(self, feature: Feature) -> str | None:
        """Implement, verify, mend and merge it; why that did not come about."""
        asked = self._prompt("implement", feature, file=self.spec.features)
        task = await self._ask(feature, "implementing", asked)
        conflicts = list[str]()
        while task.ok:
            await self._name(feature, task)
            async with self.ctx.lock("merge"):
                await self._tell(feature, "verifying")
                conflicts = conflicts and await self.ctx.conflicted(task, conflicts)
                feature.verifications += bool(conflicts)
                if conflicts:
                    combined = None
                else:
                    combined = await self.ctx.combine(task)
                if combined:
                    conflicts = combined.conflicts
                else:
                    conflicts = conflicts
                if conflicts:
                    problem = _CONFLICT.format(", ".join(conflicts))
                else:
                    problem = None
                if combined and not problem and not (problem := await self._verify(feature, task)):
                    whole = task.model_copy(update={"commit": combined.commit})
                    merged = await self.ctx.merge(whole)
                    feature.commit = merged.commit
                    return merged.problem
            if feature.verifications >= self.spec.max_attempts:
                return problem
            asked = self._prompt("fix", feature, what_is_wrong=problem or "")
            fixed = await self._ask(feature, "mending", asked, task.id)
            await self.ctx.put_away(task)
            task = fixed
        return task.reason or task.status

    async def _verify(self, feature: Feature, task: TaskResult) -> str | None:
        """What is wrong with it where it is together with all that is merged already."""
        ctx = self.ctx
        spec = self.spec
        feature.verifications += 1
        if await ctx.read_file(spec.features, task) != await ctx.read_file(spec.features):
            return f"{spec.features} is not yours to change: put it back."
        if spec.checks and not (checked := await ctx.check(*spec.checks, task=task.id)).passed:
            return "\n\n".join(f"`{c.name}` fails:\n{c.output[-_SHOWN:]}" for c in checked.failed)
        while spec.verify:
            try:
                found = await ctx.query(
                    self._prompt("verify", feature), VerificationReport,
                    title=f"Verify {feature.name}", role="verify",
                    agent=spec.verifier, model=spec.verifier_model,
                    tools=spec.verifier_tools, max_turns=spec.verifier_turns, browser=True,
                    continue_from=task.id,
                )  # fmt: skip
            except Failed as failure:
                self._strike(failure.reason)
                continue
            self.strikes = 0
            feature.report = found.steps
            return found.lacks(feature.criteria) or None
        return None

    async def _ask(
        self, feature: Feature, phase: str, prompt: str, before: str | None = None
    ) -> TaskResult:
        """Have it worked on; who fails because of the environment is asked again."""
        spec = self.spec
        feature.phase = phase
        while True:
            await self._progress(feature)
            task = await self.ctx.task(
                prompt, title=feature.name, role="fix" if before else "implement",
                workspace="own", agent=spec.worker,
                model=spec.worker_model, max_turns=spec.worker_turns, checks=["diff_not_empty"],
                continue_from=before,
            )  # fmt: skip
            feature.tasks.append(task.id)
            if task.failure is not FailureClass.ENVIRONMENT:
                self.strikes = 0
                return task
            self._strike(task.reason)

    def _prompt(self, role: str, feature: Feature, **parts: str) -> str:
        told = self.ctx.prompt(role, PROMPTS[role], feature=feature.told, **parts)
        return told + self.protocol

    def _strike(self, reason: str | None) -> None:
        self.strikes += 1
        if self.strikes == 2:
            raise Failed(f"track {self.name} paused, its environment failed twice: {reason}")

    async def _name(self, feature: Feature, task: TaskResult) -> None:
        """Have the feature's branch hold the work; one of somebody else's keeps its name."""
        names = [feature.wanted_branch, *(f"{feature.wanted_branch}-{n}" for n in range(2, 10))]
        for name in [feature.branch] if feature.branch else names:
            if await self.ctx.name_branch(name, task, feature.commit):
                feature.branch = name
                feature.commit = task.commit
                return

    async def _tell(self, feature: Feature, status: FeatureStatus) -> None:
        """Write a status into the file, and at the end a line of progress, on the run's branch."""
        ctx = self.ctx
        spec = self.spec
        feature.status = status
        feature.phase = status
        text = await ctx.read_file(spec.features) or "[]"
        await ctx.write_file(spec.features, with_status(text, feature, status))
        if status != "verifying":
            line = f"{await ctx.now():%Y-%m-%d %H:%M} {feature.name}: {status}"
            said = f"{await ctx.read_file(spec.progress_file) or ''}{line}"
            if feature.reason:
                why = f" ({feature.reason.splitlines()[0][:200]})"
            else:
                why = ""
            await ctx.write_file(spec.progress_file, f"{said}{why}\n")
        await ctx.commit(f"{feature.name}: {status}")
        await self._progress(feature)

    async def _progress(self, feature: Feature) -> None:
        features = [one.model_dump() for one in self.result.features]
        await self.ctx.progress(features=features, doing=f"{feature.name}: {feature.phase}")
