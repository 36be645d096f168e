"""Commands on tasks, most of which take runs as well: list, status, wait, cancel, diff, merge …"""

import sys
import time
from collections.abc import Callable
from typing import Annotated, Any

import typer

from kapelle.cli.format import clean, colourful, one_line, paint
from kapelle.cli.ids import AnyId, AnyIds, TaskId, is_run, path_of, run_path, task_path
from kapelle.cli.options import Budget, Json, MaxTurns
from kapelle.cli.outcome import ERROR, FINAL, Task, exit_code_of_all, settled
from kapelle.cli.outcome import waiting_words as what_it_waits_for
from kapelle.cli.output import data, document, say
from kapelle.cli.pages import show_list, status_option, statuses
from kapelle.cli.values import listed, optional_duration_s, optional_text, optional_usd
from kapelle.client.http import Connection as Client
from kapelle.domain.errors import InvalidInput, KapelleError
from kapelle.domain.states import TaskStatus

_STATUSES = tuple(TaskStatus)


def list_tasks(
    status: Annotated[list[str] | None, status_option("tasks", _STATUSES)] = None,
    tag: Annotated[str | None, typer.Option(help="Only tasks with this tag.")] = None,
    project: Annotated[str | None, typer.Option(help="Only tasks of this project.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 20,
    everything: Annotated[bool, typer.Option("--all", help="Archived tasks too.")] = False,
    as_json: Json = False,
) -> None:
    """List tasks, the newest first."""
    query = {
        "status": statuses(status, "task", _STATUSES),
        "tag": optional_text(tag, "--tag"),
        "project": optional_text(project, "--project"),
        "archived": "true" if everything else None,
    }
    filtered = any((status, tag, project))
    nothing = "No tasks match." if filtered else 'No tasks. `kapelle run "…"` gives an agent one.'
    show_list(Client(), "/tasks", query, limit, as_json=as_json, lines=_lines, nothing=nothing)


def _lines(tasks: list[dict[str, Any]]) -> list[str]:
    from kapelle.cli.format import STATUS_STYLE, between, table

    rows = [
        [
            task["id"],
            task["status"],
            one_line(_agent(task), 16),
            between(task["created_at"], None),
            _title(task),
        ]
        for task in tasks
    ]
    styles = [STATUS_STYLE.get(task["status"]) for task in tasks]
    return table(["ID", "STATUS", "AGENT", "AGE", "TITLE"], rows, styles)


def _agent(task: dict[str, Any]) -> str:
    """Who works on it or did last, which may be a fallback agent."""
    who: str = (task["attempts"][-1] if task["attempts"] else task)["agent"]
    return who


def _title(task: dict[str, Any]) -> str:
    """The title, and what a task that is not going on by itself waits for."""
    title = one_line(task["title"])
    if task.get("archived_at"):
        return f"(archived) {title}"
    if task["status"] == TaskStatus.WAITING:
        return f"{title} ({one_line(what_it_waits_for(task))})"
    waits = task["status"] in {TaskStatus.QUEUED, TaskStatus.BLOCKED}
    return f"{title} ({one_line(task['reason'])})" if waits and task["reason"] else title


def status(task_id: AnyId, as_json: Json = False) -> None:
    """Show one task: what was claimed and what was verified; or one run."""
    if is_run(task_id):
        from kapelle.cli.runs import show_status

        show_status(Client(), task_id, as_json)
        return
    task = Client().get(task_path(task_id))
    if as_json:
        document(task)
        return
    from kapelle.cli.task_view import describe

    sys.stdout.writelines(f"{line}\n" for line in describe(task))


LONG_POLL_S = 25.0
LIVE_POLL_S = 1.0

Report = Callable[[Task], None]


def wait(
    task_ids: AnyIds,
    timeout: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Give up after 90, 90s, 10m or 2h.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Wait until tasks or runs have ended.

    Exits with 0 when all are completed, 1 when one failed or was cancelled, 3 when one needs
    input or is paused, 2 when the time is up.
    """
    wait_for(task_ids, timeout, as_json)


def wait_for(
    ids: list[str], timeout: str | None, as_json: bool, path: Callable[[str], str] = path_of
) -> None:
    """Wait for what the ids name, and exit with what became of it."""
    limit_s = optional_duration_s(timeout, "--timeout")
    deadline = None if limit_s is None else time.monotonic() + limit_s
    client = Client()
    tasks = [client.get(path(text)) for text in listed(ids, "An id")]
    live = sys.stdout.isatty() and not as_json
    tasks = _live_wait(client, tasks, deadline) if live else _wait(client, tasks, deadline, as_json)
    if as_json:
        document(tasks)
    pending = [task for task in tasks if not settled(task)]
    if pending:
        say(f"kapelle: the time is up, and {_names(pending)} has not ended. It goes on.")
        raise typer.Exit(ERROR)
    raise typer.Exit(exit_code_of_all(tasks))


def _names(tasks: list[Task]) -> str:
    more = f" and {len(tasks) - 1} more" if len(tasks) > 1 else ""
    return f"{tasks[0]['id']} ({tasks[0]['status']}){more}"


def _wait(client: Client, tasks: list[Task], deadline: float | None, as_json: bool) -> list[Task]:
    def report(task: Task) -> None:
        if settled(task) and not as_json:
            data(_ending(task))
            sys.stdout.flush()

    for task in tasks:
        report(task)
    return until_settled(client, tasks, deadline, report)


def _ending(task: Task) -> str:
    reason = f"  {one_line(task['reason'])}" if task["reason"] else ""
    return f"{task['id']}  {task['status']}{reason}"


def _live_wait(client: Client, tasks: list[Task], deadline: float | None) -> list[Task]:
    from kapelle.cli.live import LiveTasks

    with LiveTasks(tasks) as view:
        tasks = until_settled(client, tasks, deadline, view.update, LIVE_POLL_S)
    for task in tasks:
        if settled(task):
            data(_ending(task))
    return tasks


def until_settled(
    client: Client,
    tasks: list[Task],
    deadline: float | None,
    report: Report,
    poll_s: float = LONG_POLL_S,
) -> list[Task]:
    """The tasks when nothing more will happen to them, or as they are at the deadline.

    A short poll keeps the state of all of them fresh; a long one asks only for the first.
    """
    known = {task["id"]: task for task in tasks}
    while pending := [task for task in known.values() if not settled(task)]:
        remaining = LONG_POLL_S if deadline is None else deadline - time.monotonic()
        if remaining <= 0:
            break
        first = pending[0]
        fresh = [_poll(client, first, min(poll_s, remaining))]
        if poll_s < LONG_POLL_S:
            fresh += [client.get(path_of(task["id"])) for task in pending[1:]]
        for task in fresh:
            known[task["id"]] = task
            report(task)
    return [known[task["id"]] for task in tasks]


def _poll(client: Client, task: Task, seconds: float) -> Task:
    began = time.monotonic()
    fresh: Task = client.get(
        path_of(task["id"], "wait"), {"timeout_s": round(seconds, 3)}, timeout=seconds + 30
    )
    if not settled(fresh) and time.monotonic() - began < seconds / 2:
        # The answer came early because of a rate limit, which may take long to pass.
        time.sleep(min(1.0, seconds))
    return fresh


def change_each(
    client: Client,
    ids: list[str],
    action: str,
    body: dict[str, Any] | None = None,
    path: Callable[..., str] = path_of,
) -> tuple[list[Task], KapelleError | None]:
    """Do it to every one; one that refuses does not keep the others from it."""
    changed: list[Task] = []
    failure: KapelleError | None = None
    for some_id in listed(ids, "An id"):
        try:
            changed.append(client.post(path(some_id, action), body))
        except KapelleError as error:
            if failure:
                say(f"kapelle: {failure.message}")
            failure = error
    return changed, failure


def until_ended(client: Client, task: Task) -> Task:
    """The task or run once it has ended, which was asked of it already."""
    while task["status"] not in FINAL:
        task = client.get(path_of(task["id"], "wait"), {"timeout_s": 25})
        if task["status"] not in FINAL:
            # One that rests is told at once; only this pause keeps us from asking without end.
            time.sleep(0.3)
    return task


def show_each(tasks: list[Task], as_json: bool, state: str | None = None) -> None:
    """The id and the status of every one, or another word for its state."""
    if as_json:
        document(tasks)
        return
    for task in tasks:
        data(f"{task['id']}  {state or task['status']}")


def cancel(
    task_ids: AnyIds,
    reason: Annotated[str | None, typer.Option(help="Why, for the record.")] = None,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Do not wait until they have ended.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Stop tasks and runs, with every process they started."""
    client = Client()
    tasks, failure = change_each(client, task_ids, "cancel", {"reason": reason})
    if not no_wait:
        tasks = [until_ended(client, task) for task in tasks]
    show_each(tasks, as_json)
    if failure:
        raise failure


def archive(task_ids: AnyIds, as_json: Json = False) -> None:
    """Take ended tasks and runs out of the list and keep their work."""
    tasks, failure = change_each(Client(), task_ids, "archive")
    show_each(tasks, as_json, "archived")
    if failure:
        raise failure


def retry(
    task_id: TaskId, budget: Budget = None, max_turns: MaxTurns = None, as_json: Json = False
) -> None:
    """Run an ended task once more from the beginning."""
    _show_one(Client().post(task_path(task_id, "retry"), new_limits(budget, max_turns)), as_json)


def resume(
    task_id: AnyId,
    message: Annotated[
        str | None, typer.Argument(help="An answer or advice for the agent.", show_default=False)
    ] = None,
    budget: Budget = None,
    max_turns: MaxTurns = None,
    as_json: Json = False,
) -> None:
    """Go on where a task's last attempt left off, or with a run that is paused."""
    if is_run(task_id):
        _resume_run(task_id, message or budget or max_turns, as_json)
        return
    body = {"message": message, **new_limits(budget, max_turns)}
    _show_one(Client().post(task_path(task_id, "resume"), body), as_json)


def _resume_run(run_id: str, more: str | int | None, as_json: bool) -> None:
    if more:
        raise InvalidInput(
            "A run that goes on takes neither a message nor new limits.",
            hint=f'`kapelle runs answer {run_id.strip()} "…"` answers what it asked.',
        )
    run = Client().post(run_path(run_id, "resume"))
    if as_json:
        document(run)
        return
    data(run["id"])
    say(f"It is {run['status']} again; `kapelle runs tail {run['id']}` follows it.")


def new_limits(budget: str | None, max_turns: int | None) -> dict[str, float | None]:
    """The limits of a task from now on, as the API takes them."""
    return {"budget_usd": optional_usd(budget, "--budget"), "max_turns": max_turns}


def requeue(task_id: TaskId, as_json: Json = False) -> None:
    """Put a task back into the queue; a running one is stopped first."""
    _show_one(Client().post(task_path(task_id, "requeue")), as_json)


def _show_one(task: Task, as_json: bool) -> None:
    if as_json:
        document(task)
        return
    data(task["id"])
    say(f"It is {task['status']} again; `kapelle logs -f {task['id']}` follows it.")


_STYLES = {"+++": "bold", "---": "bold", "diff": "bold", "@@": "cyan", "+": "green", "-": "red"}


def diff(
    task_id: AnyId,
    stat: Annotated[
        bool, typer.Option("--stat", help="Only how much changed in which file.")
    ] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="The patch byte for byte, so that `git apply` takes it.")
    ] = False,
    against: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Instead, how it differs from that task's work."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what a task or a run changed."""
    if against is not None and is_run(task_id):
        raise InvalidInput(
            "--against compares the work of two tasks.", hint="`kapelle runs status` lists them."
        )
    if raw and not stat and not as_json:
        sys.stdout.buffer.write(Client().get_bytes(path_of(task_id, "patch"), {})[0])
        return
    changes = Client().get(path_of(task_id, "diff"), {"against": against})
    if as_json:
        document(changes)
        return
    shown = changes["stat"] if stat else changes["patch"]
    if not shown.strip():
        say("It changed nothing.")
        return
    text = clean(shown)
    if colourful() and not stat:
        text = "\n".join(paint(line, _style(line)) for line in text.split("\n"))
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


def _style(line: str) -> str | None:
    return next((style for start, style in _STYLES.items() if line.startswith(start)), None)


def merge(
    task_id: AnyId,
    into: Annotated[
        str | None,
        typer.Option(metavar="BRANCH", help="The branch to merge into; by default its base."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Even if it is not completed.")] = False,
    as_json: Json = False,
) -> None:
    """Merge the branch of a task or a run into its base."""
    body = {"into": into, "force": force}
    merged = Client().post(path_of(task_id, "merge"), body, timeout=600)
    if as_json:
        document(merged)
        return
    data(merged["commit"])
    if merged["already"]:
        say(f"{merged['base']} already contained it.")
        return
    updated = merged["checkout_updated"]
    where = f"; the checkout {updated} was updated" if updated else ""
    say(f"Merged {merged['id']} into {merged['base']}{where}.")
