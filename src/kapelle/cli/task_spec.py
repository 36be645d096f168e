"""From the options of `kapelle run` to the body of POST /tasks."""

import os
from pathlib import Path
from typing import Any

from kapelle.cli.config import current
from kapelle.cli.prompt import read_prompt
from kapelle.cli.values import (
    choice,
    environment,
    key_values,
    listed,
    mcp_servers,
    optional_duration_s,
    optional_usd,
    texts,
)
from kapelle.domain.errors import InvalidInput

BUILT_IN_CHECKS = frozenset({"diff_not_empty", "no_error_in_output"})
_TEXTS = ("agent", "model", "title", "continue_from", "base", "system_prompt", "project")


def task_spec(options: dict[str, Any]) -> dict[str, Any]:
    """The task asked for; what was not given is left to the daemon's settings."""
    priority = options["priority"] and options["priority"].upper()
    if options["fork"] and options["continue_from"] is None:
        raise InvalidInput(
            "--fork needs a task whose session is forked.", hint="Add --continue-from ID."
        )
    spec = {
        "prompt": read_prompt(options["prompt"], options["prompt_file"]),
        "directory": absolute_directory(options["directory"]),
        **texts(options, _TEXTS),
        "max_turns": options["max_turns"],
        "priority": choice("--priority", priority, ("P0", "P1", "P2")),
        "depends_on": listed(options["after"] or [], "A task id of --after"),
        "deps_policy": choice("--deps-policy", options["deps_policy"], ("cancel", "run")),
        "fork_session": options["fork"] or None,
        "fallback_agents": listed(options["fallback"] or [], "--fallback"),
        "budget_usd": optional_usd(options["budget"], "--budget"),
        "timeout_s": optional_duration_s(options["timeout"], "--timeout"),
        "checks": check_specs(
            options["check"] or [],
            optional_duration_s(options["check_timeout"], "--check-timeout"),
        ),
        "retry": retry_spec(
            choice("--retry", options["retry"], ("none", "same", "analyze")),
            options["max_attempts"],
            optional_duration_s(options["retry_delay"], "--retry-delay"),
        ),
        "env": environment(options["env"] or []),
        "mcp": mcp_servers(options["mcp"] or []),
        "workspace": workspace_kind(options["worktree"], options["in_place"]),
        "tags": listed(options["tag"] or [], "--tag"),
        "context": key_values(options["context"] or [], "--context"),
    }
    return {key: value for key, value in spec.items() if value not in (None, [], {})}


def absolute_directory(directory: Path | None) -> str:
    """The directory as an absolute path; it must be one that exists here."""
    given = directory or Path()
    path = os.path.abspath(given if given.is_absolute() else current() / given)
    # With a URL the daemon may stand on another machine.
    if not os.path.isdir(path) and not os.environ.get("KAPELLE_URL"):
        raise InvalidInput(f"{directory} is not a directory.", hint="Use -C with one that exists.")
    return path


def check_specs(checks: list[str], timeout_s: float | None) -> list[Any]:
    """Checks as the API takes them; a plain string does unless there is a time limit."""
    specs: list[Any] = []
    for check in checks:
        if not check.strip():
            raise InvalidInput(
                "--check is empty.", hint='Write a command, for example --check "make test".'
            )
        if timeout_s is None:
            specs.append(check)
            continue
        kind = {"kind": check} if check in BUILT_IN_CHECKS else {"command": check}
        specs.append({**kind, "timeout_s": timeout_s})
    return specs


def retry_spec(
    policy: str | None, max_attempts: int | None, delay_s: float | None
) -> dict[str, Any] | None:
    """The retry policy; asking for several attempts or a delay means to retry."""
    given = {"max_attempts": max_attempts, "delay_s": delay_s}
    wanted = {key: value for key, value in given.items() if value is not None}
    if policy is None and not wanted:
        return None
    return {"policy": policy or "same", **wanted}


def workspace_kind(worktree: bool, in_place: bool) -> str | None:
    """The kind of workspace asked for; None leaves it to the settings."""
    if worktree and in_place:
        raise InvalidInput(
            "--worktree and --in-place exclude each other.", hint="Leave one of them out."
        )
    return "worktree" if worktree else "in_place" if in_place else None
