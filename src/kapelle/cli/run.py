"""`kapelle run`."""

import sys
from typing import Any

import typer

from kapelle.cli import run_options as given
from kapelle.cli.client import Client
from kapelle.cli.options import Json
from kapelle.cli.output import data, document, json_line, say
from kapelle.cli.task_spec import task_spec


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
    timeout: given.Timeout = None,
    check: given.Check = None,
    check_timeout: given.CheckTimeout = None,
    retry: given.Retry = None,
    max_attempts: given.MaxAttempts = None,
    retry_delay: given.RetryDelay = None,
    env: given.Env = None,
    worktree: given.Worktree = False,
    in_place: given.InPlace = False,
    base: given.Base = None,
    system_prompt: given.SystemPrompt = None,
    project: given.Project = None,
    tag: given.Tag = None,
    context: given.ContextValue = None,
    follow: given.FollowToEnd = False,
    as_json: Json = False,
) -> None:
    """Give an agent a task and print the task's id."""
    client = Client()
    task = client.create("/tasks", task_spec(ctx.params))
    if follow:
        _follow(client, task, as_json)
    elif as_json:
        document(task)
    else:
        _tell(task["id"])


def _tell(task_id: str) -> None:
    data(task_id)
    if sys.stdout.isatty():
        say(f"Follow it with `kapelle logs -f {task_id}`.")


def _follow(client: Client, task: dict[str, Any], as_json: bool) -> None:
    from kapelle.cli.follow import conclude, follow
    from kapelle.cli.outcome import exit_code

    if as_json:
        json_line(task)
    else:
        data(task["id"])
        sys.stdout.flush()
    ended = follow(client, task, as_json=as_json)
    if as_json:
        json_line({"event": "end", "status": ended["status"], "task": ended})
    else:
        conclude(ended)
    raise typer.Exit(exit_code(ended))
