"""A list of independent pieces of work, so many at once, and one report at the end."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from kapelle.domain.errors import KapelleError, LimitReached, format_problems
from kapelle.domain.options import argument, command
from kapelle.domain.specs import CheckSpec, Directory, Name, Turns, field
from kapelle.domain.text import format_count, take_first_line
from kapelle.patterns.context import Context
from kapelle.patterns.registry import pattern, shipped
from kapelle.patterns.results import Failed, RunResult, TaskResult
from kapelle.patterns.spec import OF_TASK, PartSpec, PatternSpec, Role, RunChecks, argument_of

# What an item says of its run.
_OF_RUN = ("agent", "model", "directory", "priority")


class ItemSpec(PartSpec):
    """One piece of work of a batch; as a plain string, its prompt."""

    title: Name | None = field(None, "what it is called; by default the first line of its prompt")
    directory: Directory | None = field(None, "where it is done, another repository too")
    checks: list[CheckSpec] = field([], "what must pass besides the batch's checks", max_length=100)
    pattern: Name | None = field(
        None, "done by a run of this pattern, debate for example, instead of by a task"
    )
    options: dict[str, Any] = field({}, "what that pattern is asked for besides")
    max_turns: Turns | None = field(None, "maximum number of turns of an attempt at it")

    @property
    def label(self) -> str:
        return self.title or take_first_line(self.prompt)


class BatchSpec(PatternSpec):
    """A list of independent pieces of work, so many of them at once."""

    model_config = ConfigDict(
        json_schema_extra=command(
            "Have agents work off a list of independent items, so many at once.",
            "The items are the prompts, then those of --item, or those of a file; "
            "`kapelle batches` keeps lists. What fails stops no other item.",
            file=("--file", "-F", "Read the items from YAML or TOML; - is stdin."),
        )
    )

    items: list[ItemSpec] = Field(
        default=[],
        max_length=1_000,
        description="what is done; each is a prompt or an object",
        json_schema_extra=argument(
            "PROMPT",
            help="What each item asks for; - reads one of them from stdin.",
            more=("--item", "A further item; repeatable."),
        ),
    )
    saved: Name | None = field(
        None, "the saved list whose items are worked off, as it is at the start", "--list",
        metavar="NAME",
    )  # fmt: skip
    at_once: int = field(4, "how many items are under way at a time", ge=1, le=100)
    pattern: Name | None = field(
        None, "the pattern that does the items which name none; by default each is a task",
        metavar="PATTERN",
    )  # fmt: skip
    options: dict[str, Any] = field({}, "what that pattern is asked for besides the prompt")
    checks: RunChecks = field([], "what must pass of every item", "--check", kind="check")
    max_turns: Turns | None = field(
        None, "maximum number of turns of an attempt at an item that is a task and names none"
    )
    merge: bool = field(
        True, "bring what passed into the run's branch; without it each item stays on its own",
    )  # fmt: skip

    @property
    def subject(self) -> str:
        return f"{format_count(len(self.items), 'item')}: {self.items[0].label}"

    @property
    def roles(self) -> list[Role]:
        return [
            self.role(item.agent, item.model, max_turns=self.turns_of(item), field="max_turns")
            for item in self.items
        ]

    def turns_of(self, item: ItemSpec) -> int | None:
        """Return the limit of an item that is a task; a run of a pattern has limits of its own."""
        if item.pattern or self.pattern:
            return None
        return item.max_turns or self.max_turns

    @property
    def places(self) -> list[tuple[str, bool]]:
        return [(item.directory, False) for item in self.items if item.directory]

    @property
    def inner_runs(self) -> list[tuple[str, dict[str, Any]]]:
        found: dict[tuple[Any, ...], tuple[str, dict[str, Any]]] = {}
        for item in self.items:
            if name := item.pattern or self.pattern:
                kind = (name, item.agent, item.model, item.directory, repr(item.options))
                found.setdefault(kind, (name, self.asked(item)))
        return [*found.values()]

    @model_validator(mode="after")
    def _patterns_fit(self) -> "BatchSpec":
        """What a run of an item would be refused for is told before anything begins."""
        if not self.items:
            raise ValueError(
                "there is no item: name prompts, a saved list (--list NAME) or a file (-F FILE)"
            )
        for number, item in enumerate(self.items, 1):
            name = item.pattern or self.pattern
            if name == "batch":
                raise ValueError(f"item {number}: a batch holds no batches")
            if name and (found := shipped(name)):
                try:
                    found.spec.model_validate({"directory": self.directory, **self.asked(item)})
                except ValidationError as error:
                    raise ValueError(f"item {number} ({name}): {format_problems(error)}") from None
        return self

    def asked(self, item: ItemSpec) -> dict[str, Any]:
        """The spec of the run that does an item; its prompt is what the pattern's command takes."""
        given = {key: value for key in _OF_RUN if (value := getattr(item, key)) is not None}
        given |= {"title": item.label, **self.options, **item.options}
        found = shipped(item.pattern or self.pattern or "")
        if found:
            fields = found.spec.model_fields
        else:
            fields = {}
        name = (found and argument_of(found.spec)) or "prompt"
        is_list = name in fields and "list" in str(fields[name].annotation)
        return {name: [item.prompt] if is_list else item.prompt, **given}


class ItemOutcome(BaseModel):
    """What became of an item, and why."""

    number: int
    title: str
    id: str | None = None
    status: str = "not begun"
    verified: bool | None = None
    merged: bool = False
    cost_usd: float | None = None
    reason: str | None = None


class BatchResult(BaseModel):
    items: list[ItemOutcome]
    reason: str
    verified: bool = False  # whether all of them are


@pattern("batch", spec=BatchSpec)
async def batch(ctx: Context, spec: BatchSpec) -> BatchResult:
    """Work off a list of independent items, so many at once, and tell of each what became of it."""
    titles = enumerate((item.label for item in spec.items), 1)
    items = [ItemOutcome(number=number, title=title) for number, title in titles]
    result = ctx.keep(BatchResult(items=items, reason=""))
    ended: list[ItemOutcome] = []

    async def one(item: ItemSpec, outcome: ItemOutcome) -> None:
        async with ctx.lock("items", spec.at_once):
            try:
                await _perform(ctx, spec, item, outcome)
            except LimitReached:
                raise
            except (Failed, KapelleError) as error:
                outcome.status = "failed"
                outcome.reason = str(error)
        # An item whose work is completed may still wait for its merge, which may fail.
        ended.append(outcome)
        done = sum(item.status == "completed" for item in ended)
        await ctx.progress(items=len(items), ended=len(ended), done=done, failed=len(ended) - done)

    await ctx.gather(*map(one, spec.items, items))
    failed = [item for item in items if item.status != "completed"]
    if failed:
        told = "; ".join(f"{item.number} ({item.title}): {item.reason}" for item in failed[:5])
        if len(failed) > 5:
            more = f"; and {len(failed) - 5} more"
        else:
            more = ""
        raise Failed(f"{len(failed)} of {len(items)} items failed: {told}{more}", result)
    if spec.checks and any(item.merged for item in items):
        together = await ctx.check(*spec.checks)
        if not together.passed:
            names = ", ".join(check.name for check in together.failed)
            raise Failed(f"each item is done, but all together {names} fails", result)
    if len(items) > 1:
        result.reason = f"all {len(items)} items are done"
    else:
        result.reason = "the item is done"
    unseen = sum(not item.verified for item in items)
    result.verified = not unseen
    if 0 < unseen < len(items):
        result.reason += f", {unseen} not verified"
    return result


async def _perform(ctx: Context, spec: BatchSpec, item: ItemSpec, outcome: ItemOutcome) -> None:
    work: TaskResult | RunResult
    if name := item.pattern or spec.pattern:
        work = await ctx.run(name, spec.asked(item))
    else:
        work = await ctx.task(
            item.prompt,
            title=item.label,
            role="item",
            **{name: getattr(item, name) for name in OF_TASK},
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
            merged = await ctx.merge(work)
        outcome.merged = merged.ok
        if not merged.ok and not merged.elsewhere:
            problem = f"it is done, but could not be merged: {merged.problem}"
            outcome.status = "failed"
            outcome.reason = problem
