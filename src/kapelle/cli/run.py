"""`kapelle run`."""

import sys
from typing import Any

import typer

from kapelle.cli import run_options as given
from kapelle.cli.options import Json
from kapelle.cli.output import data, document, json_line, say
from kapelle.cli.starting import begin
from kapelle.cli.task_spec import task_spec
from kapelle.client.http import Connection as Client
from kapelle.domain.errors import InvalidInput


def run(
    ctx: typer.Context,
    prompt: given.Prompt = None,
    prompt_file: given.PromptFile = None,
    agent: given.Agent = None,
    model: given.Model = None,
    directory: given.Directory = None,
    title: given.Title = None,
    priority: given.Priority = None,
    after: given.After = None,
    deps_policy: given.DepsPolicy = None,
    continue_from: given.ContinueFrom = None,
    fork: given.Fork = False,
    fallback: given.Fallback = None,
    max_turns: given.MaxTurns = None,
    budget: given.Budget = None,
    timeout: given.Timeout = None,
    check: given.Check = None,
    check_timeout: given.CheckTimeout = None,
    retry: given.Retry = None,
    max_attempts: given.MaxAttempts = None,
    retry_delay: given.RetryDelay = None,
    env: given.Env = None,
    mcp: given.Mcp = None,
    worktree: given.Worktree = False,
    in_place: given.InPlace = False,
    base: given.Base = None,
    system_prompt: given.SystemPrompt = None,
    project: given.Project = None,
    tag: given.Tag = None,
    context: given.ContextValue = None,
    every: given.Every = None,
    follow: given.FollowToEnd = False,
    as_json: Json = False,
) -> None:
    """Give an agent a task and print the task's id."""
    spec = task_spec(ctx.params)
    if every is not None:
        _repeat(spec, every, follow, as_json)
        return
    client = Client()
    show_new(client, begin(client, "/tasks", spec), follow, as_json)


def _repeat(spec: dict[str, Any], every: str, follow: bool, as_json: bool) -> None:
    """Create a schedule that does it again and again, and print the schedule's id."""
    from kapelle.cli.schedules.create import every_s, send

    if follow:
        raise InvalidInput(
            "--every and --follow exclude each other: it may go on for ever.",
            hint="`kapelle schedule status ID` shows how it gets on.",
        )
    send({"kind": "task", "spec": spec, "every_s": every_s(every)}, as_json)


def show_new(
    client: Client, task: dict[str, Any], to_end: bool, as_json: bool, after: int | None = None
) -> None:
    """The id of a task that was just begun; to its end if asked for, behind an attempt if given."""
    if to_end:
        _follow(client, task, as_json, after)
    elif as_json:
        document(task)
    else:
        _tell(task["id"])


def _tell(task_id: str) -> None:
    data(task_id)
    if sys.stdout.isatty():
        say(f"Follow it with `kapelle logs -f {task_id}`.")


def _follow(client: Client, task: dict[str, Any], as_json: bool, after: int | None) -> None:
    from kapelle.cli.follow import conclude, follow_task
    from kapelle.cli.outcome import exit_code

    if as_json:
        json_line(task)
    else:
        data(task["id"])
        sys.stdout.flush()
    ended = follow_task(client, task, as_json=as_json, after=after)
    if as_json:
        json_line({"event": "end", "status": ended["status"], "task": ended})
    else:
        conclude(ended)
    raise typer.Exit(exit_code(ended))
