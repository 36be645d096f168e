"""Run a list of independent tasks with limited concurrency, and report all outcomes."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from kapelle.domain.errors import KapelleError, LimitReached, format_problems
from kapelle.domain.options import argument, command
from kapelle.domain.specs import CheckSpec, Directory, Name, Turns, field
from kapelle.domain.text import format_count, take_first_line
from kapelle.patterns.context import Context
from kapelle.patterns.registry import find_shipped, pattern
from kapelle.patterns.results import Failed, RunResult, TaskResult, join_names
from kapelle.patterns.spec import PartSpec, PatternSpec, Role, RunChecks, argument_of

# The fields of an item that its run takes over.
_OF_RUN = ("agent", "model", "directory", "priority")
_MAX_REASONS = 5


class ItemSpec(PartSpec):
    """One item of a batch; as a plain string, its prompt."""

    title: Name | None = field(None, "title; by default the first line of the prompt")
    directory: Directory | None = field(None, "working directory, possibly of another repository")
    checks: list[CheckSpec] = field([], "checks in addition to those of the batch", max_length=100)
    pattern: Name | None = field(
        None, "pattern that does the item by a run, debate for example, instead of by a task"
    )
    options: dict[str, Any] = field({}, "further fields of the pattern's specification")
    max_turns: Turns | None = field(None, "maximum number of turns per attempt")

    @property
    def label(self) -> str:
        return self.title or take_first_line(self.prompt)


class BatchSpec(PatternSpec):
    """A list of independent items, done with limited concurrency."""

    model_config = ConfigDict(
        json_schema_extra=command(
            "Run a list of independent tasks with limited concurrency.",
            "The items are the prompts, then those of --item, or those of a file; "
            "`kapelle batches` stores lists. A failed item stops no other item.",
            file=("--file", "-F", "Read the items from YAML or TOML; - is stdin."),
            examples=(
                'kapelle batch "add tests for a.py" "add tests for b.py" --at-once 2',
                "kapelle batch -F items.yaml",
            ),
        )
    )

    items: list[ItemSpec] = Field(
        default=[],
        max_length=1_000,
        description="items; each is a prompt or an object",
        json_schema_extra=argument(
            "PROMPT",
            help="Prompt of an item; - reads one from stdin.",
            more=("--item", "A further item; repeatable."),
        ),
    )
    saved: Name | None = field(
        None, "saved list of items, read when the run starts", "--list", metavar="NAME"
    )
    at_once: int = field(4, "number of items done at the same time", ge=1, le=100)
    pattern: Name | None = field(
        None,
        "pattern for the items that name none; by default each item is a task",
        metavar="PATTERN",
    )
    options: dict[str, Any] = field({}, "further fields of that pattern's specification")
    checks: RunChecks = field([], "checks that every item must pass", "--check", kind="check")
    max_turns: Turns | None = field(
        None, "maximum number of turns per attempt, for items that are tasks and set none"
    )
    merge: bool = field(
        True, "merge passed items into the run's branch; otherwise each keeps its own branch"
    )

    @property
    def subject(self) -> str:
        return f"{format_count(len(self.items), 'item')}: {self.items[0].label}"

    @property
    def roles(self) -> list[Role]:
        return [
            self.role(item.agent, item.model, max_turns=self.turns_of(item), field="max_turns")
            for item in self.items
        ]

    def pattern_of(self, item: ItemSpec) -> str | None:
        """Return the name of the pattern that does an item; None if a task does it."""
        return item.pattern or self.pattern

    def turns_of(self, item: ItemSpec) -> int | None:
        """Return the limit of an item that is a task; a run of a pattern has its own limits."""
        if self.pattern_of(item):
            return None
        return item.max_turns or self.max_turns

    @property
    def places(self) -> list[tuple[str, bool]]:
        return [(item.directory, False) for item in self.items if item.directory]

    @property
    def inner_runs(self) -> list[tuple[str, dict[str, Any]]]:
        runs: dict[tuple[Any, ...], tuple[str, dict[str, Any]]] = {}
        for item in self.items:
            name = self.pattern_of(item)
            if name:
                # Items that differ in their prompts alone need the same agents.
                kind = (name, item.agent, item.model, item.directory, repr(item.options))
                runs.setdefault(kind, (name, self.run_spec(item)))
        return list(runs.values())

    @model_validator(mode="after")
    def _patterns_fit(self) -> "BatchSpec":
        """Refuse items whose runs would be refused, before any item begins."""
        if not self.items:
            raise ValueError(
                "there is no item: name prompts, a saved list (--list NAME) or a file (-F FILE)"
            )
        for number, item in enumerate(self.items, 1):
            name = self.pattern_of(item)
            if name == "batch":
                raise ValueError(f"item {number}: a batch holds no batches")
            shipped = find_shipped(name) if name else None
            if shipped is None:
                continue  # a repository's own pattern is checked when the run starts
            try:
                shipped.spec.model_validate({"directory": self.directory, **self.run_spec(item)})
            except ValidationError as error:
                raise ValueError(f"item {number} ({name}): {format_problems(error)}") from None
        return self

    def run_spec(self, item: ItemSpec) -> dict[str, Any]:
        """Return the specification of the run that does an item.

        The item's prompt becomes the argument of the pattern's command.
        """
        argument_name = "prompt"
        prompt: str | list[str] = item.prompt
        shipped = find_shipped(self.pattern_of(item) or "")
        if shipped is not None:
            argument_name = argument_of(shipped.spec) or argument_name
            about = shipped.spec.model_fields.get(argument_name)
            if about is not None and "list" in str(about.annotation):
                prompt = [item.prompt]
        values: dict[str, Any] = {argument_name: prompt}
        for name in _OF_RUN:
            value = getattr(item, name)
            if value is not None:
                values[name] = value
        return {**values, "title": item.label, **self.options, **item.options}


class ItemOutcome(BaseModel):
    """The outcome of an item."""

    number: int
    title: str
    id: str | None = None
    status: str = "not begun"
    verified: bool | None = None
    merged: bool = False
    cost_usd: float | None = None
    reason: str | None = None


class BatchResult(BaseModel):
    """The outcomes of all items; verified tells whether all of them are verified."""

    items: list[ItemOutcome]
    reason: str
    verified: bool = False


@pattern("batch", spec=BatchSpec)
async def batch(ctx: Context, spec: BatchSpec) -> BatchResult:
    """Run a list of independent items with limited concurrency, and report each outcome."""
    items = []
    for number, item in enumerate(spec.items, 1):
        items.append(ItemOutcome(number=number, title=item.label))
    result = ctx.keep(BatchResult(items=items, reason=""))
    ended: list[ItemOutcome] = []

    async def work_on(item: ItemSpec, outcome: ItemOutcome) -> None:
        async with ctx.lock("items", spec.at_once):
            try:
                await _perform(ctx, spec, item, outcome)
            except LimitReached:
                raise
            except (Failed, KapelleError) as error:
                outcome.status = "failed"
                outcome.reason = str(error)
        # Counted when it has ended: a completed item may still fail to merge.
        ended.append(outcome)
        done = sum(item.status == "completed" for item in ended)
        await ctx.progress(items=len(items), ended=len(ended), done=done, failed=len(ended) - done)

    await ctx.gather(*map(work_on, spec.items, items))
    failures = [item for item in items if item.status != "completed"]
    if failures:
        raise Failed(_describe_failures(failures, len(items)), result)
    if spec.checks and any(item.merged for item in items):
        outcome = await ctx.check(*spec.checks)
        if not outcome.passed:
            names = join_names(outcome.failed)
            raise Failed(f"each item is done, but all together {names} fails", result)
    unverified = sum(not item.verified for item in items)
    result.verified = unverified == 0
    result.reason = "the item is done"
    if len(items) > 1:
        result.reason = f"all {len(items)} items are done"
    if 0 < unverified < len(items):
        result.reason += f", {unverified} not verified"
    return result


def _describe_failures(failures: list[ItemOutcome], total: int) -> str:
    reasons = [f"{one.number} ({one.title}): {one.reason}" for one in failures[:_MAX_REASONS]]
    if len(failures) > _MAX_REASONS:
        reasons.append(f"and {len(failures) - _MAX_REASONS} more")
    return f"{len(failures)} of {total} items failed: {'; '.join(reasons)}"


async def _perform(ctx: Context, spec: BatchSpec, item: ItemSpec, outcome: ItemOutcome) -> None:
    """Do an item by a run or a task, merge its work and record the outcome."""
    work: TaskResult | RunResult
    name = spec.pattern_of(item)
    if name:
        work = await ctx.run(name, spec.run_spec(item))
    else:
        work = await ctx.task(
            item.prompt,
            title=item.label,
            role="item",
            **item.task_fields(),
            directory=item.directory,
            checks=[*spec.checks, *item.checks],
            max_turns=spec.turns_of(item),
            workspace="own",
        )
    outcome.verified = work.verified
    outcome.id = work.id
    outcome.cost_usd = work.cost_usd
    outcome.reason = work.reason
    outcome.status = work.status.value
    if work.ok and work.changed and spec.merge and ctx.is_git:
        async with ctx.lock("merge"):
            merge = await ctx.merge(work)
        outcome.merged = merge.ok
        if not merge.ok and not merge.elsewhere:
            outcome.status = "failed"
            outcome.reason = f"it is done, but could not be merged: {merge.problem}"
