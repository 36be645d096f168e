"""Commands on tasks, most of which take runs as well: list, status, wait, cancel, diff …"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kapelle.cli.figures import format_elapsed, local_time
from kapelle.cli.ids import (
    complete,
    here,
    is_run,
    newest_task_argument,
    newest_task_id,
    newest_work_argument,
    newest_works_argument,
    path_of,
    task_path,
    work_argument,
    work_id,
)
from kapelle.cli.layout import STATUS_STYLE, paint, uses_colours
from kapelle.cli.output import data, document, plain_line, say, show_error
from kapelle.cli.pages import (
    columns,
    limit_option,
    listing,
    repository_filter,
    repository_option,
    status_option,
    statuses,
)
from kapelle.cli.parser import (
    command,
    flag,
    json_flag,
    option,
    reports,
)
from kapelle.cli.passages import check_passage
from kapelle.cli.queue_view import waiting_lines
from kapelle.cli.relocation import moved_hint
from kapelle.cli.result import Result
from kapelle.cli.states import (
    ERROR,
    describe_activity,
    describe_delivery,
    describe_marks,
    describe_status,
    exit_code_of_all,
    is_finished,
)
from kapelle.cli.text import clean, one_line
from kapelle.cli.types import Number
from kapelle.cli.values import (
    duration_s,
    future_time,
    is_time,
    listed,
    not_empty,
    optional,
    refuse,
)
from kapelle.cli.view import repository_path
from kapelle.client.http import DaemonConnection
from kapelle.domain.errors import KapelleError
from kapelle.domain.report import FINAL
from kapelle.domain.states import RunStatus, TaskStatus
from kapelle.domain.text import shorten_paths

if TYPE_CHECKING:
    from kapelle.client.records import WorkJson

# A run can be paused, besides all that a task can be.
_STATUSES = (*TaskStatus, RunStatus.PAUSED)
_LONGEST_CHECKS_S = 86_400.0
all_flag = flag("--all", "everything", help="Work of every repository, and archived work.")
timeout_option = option(
    "--timeout", metavar="DURATION", help="Maximum time to wait, such as 90, 90s, 10m or 2h."
)


@command("list", "kapelle list --status running --status waiting", "kapelle list --all --json")
@status_option("tasks and runs", _STATUSES)
@option("--tag", metavar="NAME", help="Tag of the tasks to list.")
@option(
    "--project",
    metavar="NAME",
    help="Project of the work to list.",
    shell_complete=complete("project"),
)
@repository_option
@limit_option(20)
@flag("--nested", help="Parts of runs, too.")
@flag("--flagged", help="Flagged work only.")
@all_flag
@reports
def list_tasks(
    status: Sequence[str],
    tag: str | None,
    project: str | None,
    repository: str | None,
    limit: int,
    nested: bool,
    flagged: bool,
    everything: bool,
) -> Result:
    """List the tasks and runs of this repository, newest first.

    Outside of a repository it lists those of all repositories.
    """
    query = {
        "status": statuses(status, _STATUSES),
        "tag": tag,
        "project": project,
        "nested": nested,
        "flagged": flagged,
    }
    hint = 'tasks or runs. `kapelle run "…"` gives an agent a task.'
    return list_work("/work", query, everything, limit, hint, repository)


def list_work(
    path: str,
    query: dict[str, Any],
    everything: bool,
    limit: int,
    hint: str,
    repository: str | None = None,
) -> Result:
    """List the work at a path: of a named repository, of this one, or of all repositories.

    With everything, archived work is listed, too.
    """
    for name in ("tag", "project", "pattern"):
        optional(not_empty, query.get(name), f"--{name}")
    filters = {name: value for name, value in query.items() if value}
    if everything:
        filters["archived"] = True
    chosen = repository_filter(repository)
    if chosen:
        filters["repository"] = chosen
        searched = chosen
    elif everything or query["project"]:
        searched = None  # a project may span repositories, so its name is enough
    else:
        searched = here()
    if filters:
        nothing = "Nothing matches."
    elif searched:
        nothing = f"Here are no {hint} `--all` shows those of other repositories."
    else:
        nothing = f"There are no {hint}"

    def lines(items: "list[WorkJson]") -> list[str]:
        return rows(items, repositories=searched is None)

    result = listing(path, {**filters, "repository": searched}, limit, lines, nothing)
    if result.data or searched is None or filters:
        return result
    return Result([], remarks=_nothing_here(nothing))


def _nothing_here(nothing: str) -> Iterator[str]:
    """Return the remarks about a repository without work, which may have been moved."""
    yield nothing
    moved = moved_hint(DaemonConnection())
    if moved:
        yield moved


def rows(items: "list[WorkJson]", repositories: bool = False) -> list[str]:
    """Return a table of tasks and runs, if asked for with the names of their repositories."""
    names = shorten_paths({repository_path(item) for item in items})

    def row(item: "WorkJson") -> list[str]:
        age = format_elapsed(item["created_at"], None)
        cells = [item["id"], describe_status(item), _worker(item), age]
        if repositories:
            cells.append(one_line(names[repository_path(item)], 24))
        return [*cells, _title(item)]

    kinds = "/".join(sorted({"PATTERN" if "pattern" in item else "AGENT" for item in items}))
    header = ["ID", "STATUS", kinds, "AGE", "TITLE"]
    if repositories:
        header.insert(4, "REPOSITORY")
    return columns(",".join(header), row, STATUS_STYLE)(items)


def _worker(item: "WorkJson") -> str:
    """Return the pattern of a run, or the agent of a task's last attempt: it may be a fallback."""
    if "pattern" in item:
        return one_line(item["pattern"], 16)
    if item["attempts"]:
        return one_line(item["attempts"][-1]["agent"], 16)
    return one_line(item["agent"], 16)


def _title(item: "WorkJson") -> str:
    """Return the title with the progress, the reason of waiting, or the delivery."""
    title = one_line(item["title"])
    if item.get("archived_at"):
        return f"(archived) {title}"
    delivery = item.get("delivery")
    if not _has_ended(item):
        state = one_line(describe_activity(item))
    elif delivery:
        state = describe_delivery(delivery, item["status"], with_reason=False)
    else:
        state = ""
    remarks = ", ".join(text for text in [state, *describe_marks(item)] if text)
    if remarks:
        return f"{title} ({remarks})"
    return title


@command("status", "kapelle status", "kapelle status 4f2xq")
@newest_work_argument
@reports
def status(task_id: str | None) -> Result:
    """Show a task with its claims and verified results, or a run."""
    client = DaemonConnection()
    return show_status(client, path_of(work_id(client, task_id)))


def show_status(client: DaemonConnection, path: str) -> Result:
    """Return the view of a task or a run."""
    from kapelle.cli.run_view import describe

    item = client.get(path)
    return Result(item, describe(client, item))


# A person is told of work that takes longer to stop.
_STOPS_QUICKLY_S = 0.5


@command("wait", "kapelle wait 4f2xq --timeout 30m")
@newest_works_argument
@timeout_option
@json_flag
def wait(task_ids: Sequence[str], timeout: str | None, as_json: bool) -> int:
    """Wait until tasks or runs have ended.

    Work with a delivery is waited for until it is delivered. Exits with 0 when all are completed, 1
    when one failed or was cancelled, 3 when one needs input or is paused, 2 when the time is up.
    """
    limit_s = optional(duration_s, timeout, "--timeout")
    client = DaemonConnection()
    ids: list[str | None] = [*listed(task_ids, "An id")] or [None]
    paths = [path_of(work_id(client, text)) for text in ids]
    items = [client.get(path) for path in paths]
    item_by_id = {item["id"]: item for item in items}
    if as_json:
        with waiting_lines(client, items):
            _wait_until(is_finished, client, item_by_id, limit_s)
        document([item_by_id[item["id"]] for item in items])
    elif sys.stdout.isatty():
        from kapelle.cli.live_view import watch_live

        with watch_live(client, items):
            _wait_until(is_finished, client, item_by_id, limit_s)
        for item in item_by_id.values():
            _show_end(item)
    else:
        for item in items:
            _show_end(item)
        with waiting_lines(client, items):
            _wait_until(is_finished, client, item_by_id, limit_s, _show_end)
    pending = [item for item in item_by_id.values() if not is_finished(item)]
    if pending:
        _report_timeout(pending)
        return ERROR
    return exit_code_of_all(list(item_by_id.values()))


def _report_timeout(pending: "Sequence[WorkJson]") -> None:
    subject = f"{pending[0]['id']} ({pending[0]['status']})"
    if len(pending) > 1:
        subject += f" and {len(pending) - 1} more"
    say(f"error: The time is up, and {subject} has not ended. It goes on.")


def _show_end(item: "WorkJson") -> None:
    """Print how work ended, if it has."""
    if not is_finished(item):
        return
    line = f"{item['id']}  {describe_status(item)}"
    if item["reason"]:
        line += f"  {one_line(item['reason'])}"
    delivery = item.get("delivery")
    if delivery and delivery["status"] == "failed":
        line += f"  {describe_delivery(delivery, item['status'])}"
    data(line)
    sys.stdout.flush()


def _ignore(_item: "WorkJson") -> None:
    """Report nothing."""


def _wait_until(
    is_over: "Callable[[WorkJson], bool]",
    client: DaemonConnection,
    item_by_id: "dict[str, WorkJson]",
    limit_s: float | None = None,
    report: "Callable[[WorkJson], None]" = _ignore,
) -> None:
    """Keep the items up to date until all of them are over, or the time is up."""
    started_at = time.monotonic()
    pending = [item_id for item_id, item in item_by_id.items() if not is_over(item)]
    for item_id in pending:
        remaining_s = None
        if limit_s is not None:
            remaining_s = limit_s - (time.monotonic() - started_at)
        item_by_id[item_id] = client.wait(path_of(item_id, "wait"), {}, is_over, remaining_s)
        report(item_by_id[item_id])


def change_each(
    ids: Sequence[str],
    action: str,
    body: Mapping[str, object] | None = None,
    *,
    run_body: Mapping[str, object] | None = None,
    path: Callable[[str, str], str] | None = None,
    state: str | None = None,
    wait: bool = False,
    remark: str = "",
) -> Result:
    """Perform an action on every task and run, and return them as they are then.

    An item that refuses does not keep the others from it. run_body is sent to runs alone; state is
    shown in place of the status; the remark is shown if an item is still running.
    """
    client = DaemonConnection()

    def perform(some_id: str) -> Any:
        action_path = path(some_id, action) if path else path_of(work_id(client, some_id), action)
        if run_body and action_path.startswith("/runs/"):
            return client.post(action_path, {**(body or {}), **run_body})
        return client.post(action_path, body)

    error: KapelleError | None = None
    changed: dict[str, WorkJson] = {}
    for some_id in listed(ids, "An id"):
        try:
            item = perform(some_id)
            changed[item["id"]] = item
        except KapelleError as refusal:
            if error is not None:
                show_error(error, as_json=False)
            error = refusal
    if wait:
        _wait_for_end(client, changed)
    items = list(changed.values())
    lines = [plain_line(f"{item['id']}  {state or item['status']}") for item in items]
    remarks = []
    if remark and any(item["status"] == "running" for item in items):
        remarks.append(remark)
    return Result(items, lines, remarks, error=error)


def _wait_for_end(client: DaemonConnection, items: "dict[str, WorkJson]") -> None:
    """Wait until all items have ended; tell if that takes longer."""
    _wait_until(_has_ended, client, items, _STOPS_QUICKLY_S)
    if not all(_has_ended(item) for item in items.values()):
        say("Stopping; after tasks.grace_s Kapelle kills what has not ended. --no-wait returns.")
    _wait_until(_has_ended, client, items)


def _has_ended(item: "WorkJson") -> bool:
    return item["status"] in FINAL


@command("cancel", "kapelle cancel 4f2xq --reason 'wrong branch'")
@work_argument
@flag("--keep-tasks", help="For a run: its tasks go on.")
@option("--reason", metavar="TEXT", help="Reason, for the record.")
@flag("--no-wait", help="Return at once, before they have ended.")
@reports
def cancel(task_ids: Sequence[str], keep_tasks: bool, reason: str | None, no_wait: bool) -> Result:
    """Stop tasks and runs with all their processes."""
    run_body = {"with_tasks": False} if keep_tasks else {}
    return change_each(task_ids, "cancel", {"reason": reason}, run_body=run_body, wait=not no_wait)


@command("archive", "kapelle archive 4f2xq")
@work_argument
@reports
def archive(task_ids: Sequence[str]) -> Result:
    """Remove ended tasks and runs from the list; keep their work."""
    return change_each(task_ids, "archive", state="archived")


@command("check", "kapelle check 4f2xq")
@newest_task_argument
@reports
def check(task_id: str | None) -> Result:
    """Run the checks of an ended task again, on its commit.

    Exits with 1 when a check fails.
    """
    path = task_path(newest_task_id(DaemonConnection(), task_id), "check")
    task = DaemonConnection().post(path, timeout=_LONGEST_CHECKS_S)
    outcome = task["checked_again"]
    lines = [check_passage(one).text for one in outcome["checks"]]
    return Result(outcome, lines, exit_code=0 if outcome["passed"] else 1)


off_flag = flag("--off", help="Undo this.")


@command("flag", "kapelle flag 4f2xq", "kapelle flag 4f2xq --off")
@work_argument
@off_flag
@reports
def flag_work(task_ids: Sequence[str], off: bool) -> Result:
    """Flag tasks and runs for attention, or unflag them."""
    if off:
        return _mark(task_ids, {"flagged": False}, "not flagged")
    remark = "`kapelle list --flagged` lists flagged work."
    return _mark(task_ids, {"flagged": True}, "flagged", remark)


@command("snooze", "kapelle snooze 4f2xq 2h", "kapelle snooze 4f2xq --until 18:00")
@work_argument
@option(
    "--until",
    metavar="TIME",
    default="1d",
    help="End of the snooze: a duration, a time of day or a date, such as 2h, 18:00, 2030-01-31.",
)
@off_flag
@reports
def snooze(task_ids: Sequence[str], until: str, off: bool) -> Result:
    """Hide tasks and runs from what needs you until a given time.

    The time may also be the last argument: `kapelle snooze ID 2h`.
    """
    ids = list(task_ids)
    if len(ids) > 1 and is_time(ids[-1]):
        until = ids.pop()
    if off:
        return _mark(ids, {"snoozed_until": None}, "not snoozed")
    end = future_time(until, "--until", None)
    return _mark(ids, {"snoozed_until": end}, f"snoozed until {local_time(end)}")


def _mark(ids: Sequence[str], body: Mapping[str, object], state: str, remark: str = "") -> Result:
    """Mark tasks and runs."""
    client = DaemonConnection()

    def path(text: str, action: str) -> str:
        return f"/work/{work_id(client, text)}/{action}"

    result = change_each(ids, "mark", body, state=state, path=path)
    if not remark:
        return result
    return replace(result, remarks=[remark])


_DIFF_STYLES = {
    "+++": "bold",
    "---": "bold",
    "diff": "bold",
    "@@": "cyan",
    "+": "green",
    "-": "red",
}


@command("diff", "kapelle diff 4f2xq", "kapelle diff 4f2xq --raw | git apply")
@newest_work_argument
@flag("--stat", help="Changed files with the number of changed lines.")
@flag("--raw", help="Patch byte for byte, as `git apply` takes it.")
@option("--against", metavar="ID", help="Other task whose work to compare with.")
@option("--attempt", type=Number(), metavar="NUMBER", help="Attempt whose changes to show.")
@json_flag
def diff(
    task_id: str | None,
    stat: bool,
    raw: bool,
    against: str | None,
    attempt: int | None,
    as_json: bool,
) -> int:
    """Show what a task or a run changed.

    Of work that went on after its merge, this shows the changes since the merge.
    """
    client = DaemonConnection()
    item_id = work_id(client, task_id)
    refuse(
        (
            against is not None and is_run(item_id),
            "--against compares the work of two tasks.",
            f"`kapelle runs steps {item_id}` lists the tasks of the run.",
        ),
        (
            attempt is not None and (is_run(item_id) or against or raw),
            "--attempt is for tasks, without --against and --raw.",
            "`kapelle status ID` lists the attempts.",
        ),
    )
    changes = client.get(path_of(item_id, "diff"), {"against": against, "attempt": attempt})
    if raw and not stat and not as_json:
        patch, _ = client.get_bytes(path_of(item_id, "patch"), {})
        sys.stdout.buffer.write(patch)
        return 0
    text = changes["stat"] if stat else changes["patch"]
    if not text.strip():
        return Result(changes, remarks=["It changed nothing."]).print(as_json=as_json)
    lines = clean(text).removesuffix("\n").split("\n")
    if uses_colours() and not stat:
        lines = [paint(line, _diff_style(line)) for line in lines]
    return Result(changes, lines).print(as_json=as_json)


def _diff_style(line: str) -> str | None:
    for beginning, style in _DIFF_STYLES.items():
        if line.startswith(beginning):
            return style
    return None
