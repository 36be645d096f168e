"""Commands on tasks, most of which take runs as well: list, status, wait, cancel, diff …"""

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import typer

from kapelle.cli.command import (
    BudgetOption,
    CommandExit,
    CommandOutput,
    FollowToEnd,
    JsonFlag,
    MaxTurns,
    argument,
    flag,
    option,
)
from kapelle.cli.format import (
    ERROR,
    STATUS_STYLE,
    between,
    clean,
    colourful,
    delivery_words,
    doing_words,
    exit_code_of_all,
    finished,
    local,
    marks,
    one_line,
    paint,
    repository_path,
    status_words,
)
from kapelle.cli.ids import (
    AnyIds,
    NewestId,
    NewestIds,
    NewestTaskId,
    TaskId,
    completing,
    here,
    is_run,
    newest_task_id,
    path_of,
    task_path,
    work_id,
)
from kapelle.cli.logs import check_passage
from kapelle.cli.output import data, document, say
from kapelle.cli.pages import (
    LimitOption,
    RepositoryOption,
    columns,
    listing,
    repository_filter,
    status_option,
    statuses,
)
from kapelle.cli.queue_view import waiting_lines
from kapelle.cli.relocation import say_if_moved
from kapelle.cli.values import (
    duration_s,
    future_time,
    is_time,
    listed,
    not_empty,
    optional,
    read_prompt,
    refuse,
    usd,
)
from kapelle.client.http import DaemonConnection
from kapelle.domain.errors import InvalidInput, KapelleError, NotFound
from kapelle.domain.ids import is_id_part
from kapelle.domain.report import FINAL, RunFields, TaskFields
from kapelle.domain.states import RunStatus, TaskStatus
from kapelle.domain.text import shorten_paths

# A run can be paused, besides all that a task can be.
_STATUSES = (*TaskStatus, RunStatus.PAUSED)
_LONGEST_CHECKS_S = 86_400.0
Everything = Annotated[bool, flag("Those of every repository, archived ones too.", "--all")]


def list_tasks(
    status: list[str] | None = status_option("work", _STATUSES),
    tag: str | None = option("NAME", "Only tasks with this tag."),
    project: str | None = option(
        "NAME", "Only those of this project.", autocompletion=completing("project")
    ),
    repository: RepositoryOption = None,
    limit: LimitOption = 20,
    nested: bool = flag("Parts of runs too."),
    flagged: bool = flag("Only those that are flagged."),
    everything: Everything = False,
) -> CommandOutput:
    """List the tasks and runs of this repository, the newest first.

    Outside of a repository it lists those of all.
    """
    wanted = statuses(status, _STATUSES)
    query = {"tag": tag, "project": project, "nested": nested, "flagged": flagged}
    hint = 'tasks or runs. `kapelle run "…"` gives an agent a task.'
    return list_work("/work", {"status": wanted, **query}, everything, limit, hint, repository)


def list_work(
    path: str,
    query: dict[str, Any],
    everything: bool,
    limit: int,
    hint: str,
    repository: str | None = None,
) -> CommandOutput:
    """List what there is at a path: of a named repository or of this one, or of all with what is
    archived."""
    for name in ("tag", "project", "pattern"):
        optional(not_empty, query.get(name), f"--{name}")
    query = {**query, "archived": everything}
    asked = {name: value for name, value in query.items() if value}
    named = repository_filter(repository)
    # A project may span repositories, so its name is enough.
    repository = named or (None if everything or query["project"] else here())
    asked |= {"repository": named} if named else {}
    if repository:
        elsewhere = " `--all` shows those of other repositories."
    else:
        elsewhere = ""
    nothing = f"{'Here' if repository else 'There'} are no {hint}{elsewhere}"
    if asked:
        nothing = "Nothing matches."
    else:
        nothing = nothing
    lines = partial(rows, repositories=repository is None)
    report = listing(path, {**asked, "repository": repository}, limit, lines, nothing)
    yield (found := next(report))
    yield from report
    if not found and repository is not None and not asked:
        say_if_moved(DaemonConnection())


def rows(items: list[TaskFields | RunFields], repositories: bool = False) -> list[str]:
    """A table of tasks and runs, with the names of their repositories if wanted."""
    names = shorten_paths({repository_path(item) for item in items})

    def row(item: TaskFields | RunFields) -> list[str]:
        # Who works on a task or did last may be a fallback agent.
        who = one_line(item.get("pattern") or (item["attempts"] or [item])[-1]["agent"], 16)
        where = one_line(names[repository_path(item)], 24)
        cells = [item["id"], status_words(item), who, between(item["created_at"], None)]
        return [*cells, *([where] if repositories else []), _title(item)]

    kinds = "/".join(sorted({"PATTERN" if "pattern" in item else "AGENT" for item in items}))
    where = "REPOSITORY," if repositories else ""
    return columns(f"ID,STATUS,{kinds},AGE,{where}TITLE", row, STATUS_STYLE)(items)


def _title(item: TaskFields | RunFields) -> str:
    """The title, with how far it is, what it waits for or where it was delivered."""
    if item.get("archived_at"):
        return f"(archived) {one_line(item['title'])}"
    told = item.get("delivery")
    if told:
        about = delivery_words(told, item["status"], with_reason=False)
    else:
        about = ""
    if _has_ended(item):
        about = about
    else:
        about = one_line(doing_words(item))
    about = ", ".join(filter(None, [about, *marks(item)]))
    if about:
        return f"{one_line(item['title'])} ({about})"
    return one_line(item["title"])


def status(task_id: NewestId = None) -> CommandOutput:
    """Show one task: what was claimed and what was verified; or one run."""
    client = DaemonConnection()
    return show_status(client, path_of(work_id(client, task_id)))


def show_status(client: DaemonConnection, path: str) -> CommandOutput:
    yield (item := client.get(path))
    from kapelle.cli.run_view import describe

    yield from describe(client, item)


# What takes longer to stop is told of.
_AT_ONCE_S = 0.5
Timeout = Annotated[str | None, option("DURATION", "Give up after 90, 90s, 10m or 2h.")]


def wait(task_ids: NewestIds = None, timeout: Timeout = None, as_json: JsonFlag = False) -> None:
    """Wait until tasks or runs have ended.

    And until they are delivered, where that was asked for. Exits with 0 when all are completed, 1
    when one failed or was cancelled, 3 when one needs input or is paused, 2 when the time is up.
    """
    limit_s = optional(duration_s, timeout, "--timeout")
    client = DaemonConnection()
    typed = listed(task_ids, "An id") if task_ids else [None]
    paths = [path_of(work_id(client, text)) for text in typed]
    items = [client.get(path) for path in paths]
    known = {item["id"]: item for item in items}
    if as_json:
        with waiting_lines(client, items):
            _until(finished, client, known, limit_s)
        document([known[item["id"]] for item in items])
    elif sys.stdout.isatty():
        from kapelle.cli.follow import watched

        with watched(client, items):
            _until(finished, client, known, limit_s)
        for item in known.values():
            _show_end(item)
    else:
        for item in items:
            _show_end(item)
        with waiting_lines(client, items):
            _until(finished, client, known, limit_s, _show_end)
    if pending := [item for item in known.values() if not finished(item)]:
        if len(pending) > 1:
            more = f" and {len(pending) - 1} more"
        else:
            more = ""
        first = f"{pending[0]['id']} ({pending[0]['status']})"
        say(f"kapelle: the time is up, and {first}{more} has not ended. It goes on.")
        raise typer.Exit(ERROR)
    raise typer.Exit(exit_code_of_all(list(known.values())))


def _show_end(item: TaskFields | RunFields) -> None:
    if finished(item):
        if item["reason"]:
            reason = f"  {one_line(item['reason'])}"
        else:
            reason = ""
        told = item.get("delivery")
        if told and told["status"] == "failed":
            reason += f"  {delivery_words(told, item['status'])}"
        data(f"{item['id']}  {status_words(item)}{reason}")
        sys.stdout.flush()


def _until(
    is_over: Callable[[TaskFields | RunFields], bool],
    client: DaemonConnection,
    known: dict[str, TaskFields | RunFields],
    limit_s: float | None = None,
    report: Callable[[TaskFields | RunFields], None] = lambda _: None,
) -> None:
    """Keep what is known up to date until all of it is over, or the time is up."""
    began = time.monotonic()
    for some_id in [some_id for some_id, item in known.items() if not is_over(item)]:
        if limit_s is None:
            left = None
        else:
            left = limit_s - (time.monotonic() - began)
        known[some_id] = client.wait(path_of(some_id, "wait"), {}, is_over, left)
        report(known[some_id])


def change_each(
    ids: list[str],
    action: str,
    body: dict[str, Any] | None = None,
    *,
    of_runs: dict[str, Any] | None = None,
    path: Callable[..., str] | None = None,
    state: str | None = None,
    wait: bool = False,
    remark: str = "",
) -> CommandOutput:
    """Do it to every one and show them; one that refuses does not keep the others from it.

    of_runs is said of runs alone; state is another word for the status they are shown with;
    remark is said if one still runs.
    """
    client = DaemonConnection()
    failure = None
    where = path or (lambda text, what: path_of(work_id(client, text), what))
    changed: dict[str, TaskFields | RunFields] = {}
    for some_id in listed(ids, "An id"):
        try:
            at = where(some_id, action)
            if at.startswith("/runs/"):
                more = of_runs
            else:
                more = None
            item = client.post(at, {**(body or {}), **more} if more else body)
            changed[item["id"]] = item
        except KapelleError as error:
            if failure:
                say(f"kapelle: {failure.message}")
            failure = error
    if wait:
        _until(_has_ended, client, changed, _AT_ONCE_S)
        if not all(map(_has_ended, changed.values())):
            say("Stopping; after tasks.grace_s what has not ended is killed. --no-wait leaves it.")
        _until(_has_ended, client, changed)
    yield CommandExit(list(changed.values()), failure)
    for item in changed.values():
        data(f"{item['id']}  {state or item['status']}")
    if remark and any(item["status"] == "running" for item in changed.values()):
        say(remark)


def _has_ended(item: TaskFields | RunFields) -> bool:
    return item["status"] in FINAL


def cancel(
    task_ids: AnyIds,
    keep_tasks: bool = flag("Of a run: leave the tasks it started to go on."),
    reason: str | None = option("TEXT", "Why, for the record."),
    no_wait: bool = flag("Do not wait until they have ended."),
) -> CommandOutput:
    """Stop tasks and runs, with every process they started."""
    if keep_tasks:
        of_runs = {"with_tasks": False}
    else:
        of_runs = {}
    return change_each(task_ids, "cancel", {"reason": reason}, of_runs=of_runs, wait=not no_wait)


def archive(task_ids: AnyIds) -> CommandOutput:
    """Take ended tasks and runs out of the list and keep their work."""
    return change_each(task_ids, "archive", state="archived")


def check(task_id: NewestTaskId = None) -> CommandOutput:
    """Make the checks of an ended task once more, on what it committed."""
    path = task_path(newest_task_id(DaemonConnection(), task_id), "check")
    made = DaemonConnection().post(path, timeout=_LONGEST_CHECKS_S)["checked_again"]
    yield CommandExit(made, 0 if made["passed"] else 1)
    yield from (check_passage(one).text for one in made["checks"])


Off = Annotated[bool, flag("Take that back.", "--off")]


def flag_work(task_ids: AnyIds, off: Off = False) -> CommandOutput:
    """Flag tasks and runs for attention, or no more."""
    yield from _mark(task_ids, {"flagged": not off}, "not flagged" if off else "flagged")
    if not off:
        say("`kapelle list --flagged` lists what is.")


def snooze(
    task_ids: AnyIds,
    until: str = option("TIME", "In so long, or when: 2h, 18:00, 2030-01-31.", default="1d"),
    off: Off = False,
) -> CommandOutput:
    """Hide tasks and runs from what needs you until a given time.

    The time may also be the last argument: `kapelle snooze ID 2h`.
    """
    if len(task_ids) > 1 and is_time(task_ids[-1]):
        *task_ids, until = task_ids
    if off:
        moment = None
    else:
        moment = future_time(until, "--until", None)
    if moment:
        state = f"snoozed until {local(moment)}"
    else:
        state = "not snoozed"
    return _mark(task_ids, {"snoozed_until": moment}, state)


def _mark(ids: list[str], body: dict[str, Any], state: str) -> CommandOutput:
    client = DaemonConnection()
    return change_each(ids, "mark", body, state=state,
                       path=lambda text, what: f"/work/{work_id(client, text)}/{what}")  # fmt: skip


def retry(
    task_id: NewestTaskId = None,
    budget: BudgetOption = None,
    max_turns: MaxTurns = None,
    follow: FollowToEnd = False,
    as_json: JsonFlag = False,
) -> None:
    """Run an ended task once more from the beginning."""
    path = task_path(newest_task_id(DaemonConnection(), task_id), "retry")
    _again(path, _new_limits(budget, max_turns), follow, as_json)


def resume(
    task_id: NewestId = None,
    message: str | None = argument("[MESSAGE]", "An answer or advice for the agent."),
    merge: bool = flag("Merge its base into its branch first; conflicts are its."),
    budget: BudgetOption = None,
    max_turns: MaxTurns = None,
    cycles: int | None = option(
        "NUMBER", "New limit of a workflow that ended at its limit of cycles.", min=1, max=50
    ),
    follow: FollowToEnd = False,
    as_json: JsonFlag = False,
) -> None:
    """Go on with a task where it left off, or with a paused or limited run."""
    task_id, message = _id_and_message(task_id, message, "resume")
    whole = work_id(DaemonConnection(), task_id)
    limits = _new_limits(budget, max_turns)
    body: dict[str, Any] = {"message": message, "merge": merge, **limits}
    alone = "A run that goes on takes neither a message nor new limits."
    hint = f'`kapelle answer {whole} "…"` answers what it asked.'
    refuse(
        (is_run(whole) and any(body.values()), alone, hint),
        (not is_run(whole) and cycles is not None, "A task has no cycles.", "Leave out --cycles."),
    )
    if is_run(whole):
        if cycles is None:
            body = {}
        else:
            body = {"cycles": cycles}
    _again(path_of(whole, "resume"), body, follow, as_json)


def _id_and_message(
    task_id: str | None, message: str | None, verb: str
) -> tuple[str | None, str | None]:
    """What was typed as both; a message alone is one for the newest.

    Raises NotFound for a word that could be an id and is none: nobody can tell a mistyped id from
    a message.
    """
    if message is not None or task_id is None:
        return task_id, message
    if not is_id_part(task_id):
        return None, task_id
    try:
        return work_id(DaemonConnection(), task_id), None
    except NotFound as error:
        error.hint = f"To send it as a message, type an id first: `kapelle {verb} ID {task_id}`."
        raise


def _new_limits(budget: str | None, max_turns: int | None) -> dict[str, float | None]:
    """The limits of a task from now on, as the API takes them."""
    return {"budget_usd": optional(usd, budget, "--budget"), "max_turns": max_turns}


def requeue(task_id: TaskId, follow: FollowToEnd = False, as_json: JsonFlag = False) -> None:
    """Put a task back into the queue; a running one is stopped first."""
    _again(task_path(task_id, "requeue"), {}, follow, as_json)


def _again(path: str, body: dict[str, Any], to_end: bool, as_json: bool) -> None:
    """Have a task or a run go on, and follow it from there if asked for."""
    from kapelle.cli.follow import show_new
    from kapelle.cli.spec_options import options_of, schemas, spelled

    client = DaemonConnection()
    with spelled(options_of(schemas()["task"])):
        item = client.post(path, body)
    show_new(client, item, to_end, as_json, after=len(item.get("attempts", ())))


_MESSAGE = 'Write `kapelle continue ID "what next"`, or pipe it in with `-`.'
# What a forked task takes over. Its checks, variables and MCP servers it does not: the daemon
# shows their names only.
_KEPT = (
    "directory", "project", "tags", "priority", "timeout_s", "max_turns", "budget_usd", "retry",
    "fallback_agents",
)  # fmt: skip


def continue_(
    task_id: NewestId = None,
    message: str | None = argument("MESSAGE", "What next; - reads it from stdin."),
    fork: bool = flag("As a new task, in a copy of the conversation."),
    comments: bool = flag("Tell it the new comments on its pull request."),
    budget: BudgetOption = None,
    max_turns: MaxTurns = None,
    follow: FollowToEnd = False,
    as_json: JsonFlag = False,
) -> None:
    """Follow up on a task that has ended or waits, or on an ended run.

    A run is followed up by a new task, which starts from its branch and has its checks.
    """
    from kapelle.cli.follow import show_new

    if fork and comments:
        raise InvalidInput("--comments goes on with the same task: leave --fork out.")
    task_id, message = _id_and_message(task_id, message, "continue")
    given = message is not None or not comments
    if given:
        said = read_prompt(message, None, _MESSAGE, "message")
    else:
        said = ""
    client = DaemonConnection()
    limits = _new_limits(budget, max_turns)
    task_id = work_id(client, task_id)
    body = {"message": said or None, **({"comments": True} if comments else {})}
    if is_run(task_id):
        alone = "A run is followed up by a new task on its branch, without --fork and limits."
        refuse((fork or any(limits.values()), alone, f'kapelle continue {task_id} "…"'))
        task = client.create(path_of(task_id, "follow_up"), body)
        show_new(client, task, follow, as_json)
        return
    if not fork:
        _again(task_path(task_id, "resume"), {**body, **limits}, follow, as_json)
        return
    earlier = client.get(task_path(task_id))
    task = client.create("/tasks", forked(earlier, said, limits))
    if task["status"] == "blocked":
        say(f"It begins when {earlier['id']} has ended, which is {earlier['status']}.")
    show_new(client, task, follow, as_json)


def forked(earlier: TaskFields, message: str, limits: dict[str, float | None]) -> dict[str, Any]:
    """The new task that goes on in a copy of an earlier one's conversation."""
    if earlier["attempts"]:
        last = earlier["attempts"][-1]
    else:
        last = earlier
    same_agent = last["agent"] == earlier["agent"]
    spec = {
        "prompt": message,
        # The conversation is one of the agent that had it last.
        "agent": last["agent"],
        "model": earlier["model"] if same_agent else None,
        "continue_from": earlier["id"],
        "fork_session": True,
        "workspace": earlier["workspace"]["kind"],
        **{name: earlier[name] for name in _KEPT},
        **{name: limit for name, limit in limits.items() if limit is not None},
    }
    return {key: value for key, value in spec.items() if value not in (None, [])}


_STYLES = {"+++": "bold", "---": "bold", "diff": "bold", "@@": "cyan", "+": "green", "-": "red"}


def diff(
    task_id: NewestId = None,
    stat: bool = flag("Only how much changed in which file."),
    raw: bool = flag("The patch byte for byte, so that `git apply` takes it."),
    against: str | None = option("ID", "Instead, how it differs from that task's work."),
    attempt: int | None = option("N", "Only what this attempt of a task changed."),
) -> CommandOutput:
    """Show what a task or a run changed.

    Of one that went on after its merge, show what is new since then.
    """
    client = DaemonConnection()
    whole = work_id(client, task_id)
    two = "--against compares the work of two tasks."
    refuse((against is not None and is_run(whole), two, "`kapelle runs status` lists them."))
    of_task = "--attempt is for tasks, without --against and --raw."
    is_apart = attempt is not None and bool(is_run(whole) or against or raw)
    refuse((is_apart, of_task, "`kapelle status ID` lists the attempts."))
    query = {"against": against, "attempt": attempt}
    yield (changes := client.get(path_of(whole, "diff"), query))
    if raw and not stat:
        sys.stdout.buffer.write(client.get_bytes(path_of(whole, "patch"), {})[0])
        return
    if stat:
        shown = changes["stat"]
    else:
        shown = changes["patch"]
    if not shown.strip():
        say("It changed nothing.")
        return
    text = clean(shown)
    if colourful() and not stat:
        styles = [*_STYLES.items(), ("", None)]
        text = "\n".join(
            paint(line, next(style for start, style in styles if line.startswith(start)))
            for line in text.split("\n")
        )
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
