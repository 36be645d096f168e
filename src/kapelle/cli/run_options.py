"""The options of `kapelle run`."""

from pathlib import Path
from typing import Annotated

import typer

from kapelle.cli.ids import complete_task

Words = list[str] | None

Prompt = Annotated[
    str | None,
    typer.Argument(metavar="PROMPT", help="What to do; - reads it from stdin."),
]
PromptFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Read the prompt from a file.")
]
Agent = Annotated[str | None, typer.Option("--agent", "-a", metavar="NAME", help="Who does it.")]
Model = Annotated[
    str | None, typer.Option("--model", "-m", metavar="NAME", help="The agent's model.")
]
Directory = Annotated[
    Path | None,
    typer.Option("--directory", "-C", metavar="DIRECTORY", help="Where; by default here."),
]
Title = Annotated[str | None, typer.Option(metavar="TEXT", help="A short name for lists.")]
Priority = Annotated[
    str | None, typer.Option("--priority", "-p", metavar="P0|P1|P2", help="P0 goes first.")
]
After = Annotated[
    Words,
    typer.Option(
        "--after",
        "--depends-on",
        "--deps",
        metavar="ID",
        help="Start when this task has ended; repeatable, or several separated by commas.",
        autocompletion=complete_task,
    ),
]
DepsPolicy = Annotated[
    str | None,
    typer.Option(metavar="cancel|run", help="What becomes of it when one of those fails."),
]
ContinueFrom = Annotated[
    str | None,
    typer.Option(
        metavar="ID", help="Tell the agent what that task did.", autocompletion=complete_task
    ),
]
Fork = Annotated[
    bool,
    typer.Option(
        "--fork", help="With --continue-from: go on in a copy of that task's conversation."
    ),
]
Fallback = Annotated[
    Words,
    typer.Option(
        metavar="AGENT", help="Who takes over when the agent is limited or fails; repeatable."
    ),
]
MaxTurns = Annotated[
    int | None,
    typer.Option(min=1, max=1_000_000, metavar="NUMBER", help="Stop an attempt after so many."),
]
Budget = Annotated[
    str | None,
    typer.Option(metavar="USD", help="Stop when all attempts together have cost so much."),
]
Mcp = Annotated[
    Words,
    typer.Option(
        metavar="NAME=COMMAND", help="An MCP server, as a command or an https URL; repeatable."
    ),
]
Timeout = Annotated[
    str | None,
    typer.Option(metavar="DURATION", help="Stop an attempt after 90, 90s, 10m or 2h."),
]
Check = Annotated[
    Words,
    typer.Option(
        metavar="COMMAND",
        help="What must pass: a command, diff_not_empty or no_error_in_output; repeatable.",
    ),
]
CheckTimeout = Annotated[
    str | None, typer.Option(metavar="DURATION", help="Stop a check after this long.")
]
Retry = Annotated[
    str | None,
    typer.Option(
        metavar="none|same|analyze",
        help="Whether failed work is tried again, and whether its failure is analyzed first.",
    ),
]
MaxAttempts = Annotated[
    int | None, typer.Option(min=1, metavar="NUMBER", help="At most so many attempts.")
]
RetryDelay = Annotated[
    str | None, typer.Option(metavar="DURATION", help="Wait this long before the second attempt.")
]
Env = Annotated[
    Words,
    typer.Option(
        metavar="NAME[=VALUE]", help="A variable for the agent; NAME alone passes yours on."
    ),
]
Worktree = Annotated[bool, typer.Option("--worktree", help="In a git worktree of its own.")]
InPlace = Annotated[bool, typer.Option("--in-place", help="Right in the directory.")]
Base = Annotated[str | None, typer.Option(metavar="BRANCH", help="What a worktree starts from.")]
SystemPrompt = Annotated[str | None, typer.Option(metavar="TEXT", help="Standing instructions.")]
Project = Annotated[str | None, typer.Option(metavar="NAME", help="The project it belongs to.")]
Tag = Annotated[Words, typer.Option(metavar="NAME", help="A tag; repeatable.")]
ContextValue = Annotated[
    Words, typer.Option(metavar="KEY=VALUE", help="A fact for the agent; repeatable.")
]
Every = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION",
        help="As a schedule: at once, then again so long after each success.",
    ),
]
FollowToEnd = Annotated[
    bool,
    typer.Option(
        "--follow", "-f", help="Watch it to the end; exit 0 done, 1 failed, 3 input needed."
    ),
]
