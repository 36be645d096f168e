"""The table of all commands, and the program that imports only the module of the one in use."""

import importlib
from typing import TYPE_CHECKING, NamedTuple

import click

from kapelle.cli.parser import CliGroup
from kapelle.cli.schema import built_in_patterns

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

START = "Start work"
FOLLOW = "Follow and answer"
REVIEW = "Review and deliver"
ORGANIZE = "Organize"
SET_UP = "Set up"
SERVER = "Server"
GROUPS = (START, FOLLOW, REVIEW, ORGANIZE, SET_UP, SERVER)


class CommandEntry(NamedTuple):
    """Where a command is defined (a module of kapelle.cli and its attribute), and its help.

    The help is the first line of the command's own help.
    """

    module: str
    attribute: str
    help: str
    group: str


COMMANDS: dict[str, CommandEntry] = {
    "run": CommandEntry(
        "work_commands", "run", "Give an agent a task and print the task's id.", START
    ),
    "start": CommandEntry("start", "start", "Start a run of any pattern, your own too.", START),
    "schedule": CommandEntry(
        "schedules", "schedule", "Start work later, again and again, or after other work.", START
    ),
    "batches": CommandEntry(
        "batches", "batches", "Save and edit lists of tasks for `kapelle batch --list`.", START
    ),
    "runs": CommandEntry(
        "runs", "runs", "List runs, show them, and pause, answer or cancel them.", FOLLOW
    ),
    "list": CommandEntry(
        "tasks", "list_tasks", "List the tasks and runs of this repository, newest first.", FOLLOW
    ),
    "status": CommandEntry(
        "tasks", "status", "Show a task with its claims and verified results, or a run.", FOLLOW
    ),
    "logs": CommandEntry(
        "logs", "logs", "Show what a task's agent wrote and did, or the events of a run.", FOLLOW
    ),
    "top": CommandEntry(
        "top", "top", "Watch all active work live, with keys to answer, cancel or merge.", FOLLOW
    ),
    "wait": CommandEntry("tasks", "wait", "Wait until tasks or runs have ended.", FOLLOW),
    "questions": CommandEntry(
        "questions", "questions", "List the open questions of tasks and runs, oldest first.", FOLLOW
    ),
    "answer": CommandEntry(
        "questions", "answer", "Answer a question of a task or a run, which then goes on.", FOLLOW
    ),
    "say": CommandEntry("questions", "say_", "Send a message to the agent of a task.", FOLLOW),
    "attach": CommandEntry(
        "attach",
        "attach",
        "Attach to the terminal of an interactive task; Ctrl-] detaches.",
        FOLLOW,
    ),
    "cancel": CommandEntry(
        "tasks", "cancel", "Stop tasks and runs with all their processes.", FOLLOW
    ),
    "events": CommandEntry("events", "events", "Show the history of all events.", FOLLOW),
    "diff": CommandEntry("tasks", "diff", "Show what a task or a run changed.", REVIEW),
    "merge": CommandEntry(
        "merge", "merge", "Merge the branches of tasks and runs into their bases.", REVIEW
    ),
    "pr": CommandEntry(
        "merge", "pr", "Push the work of a task or a run and open or update a pull request.", REVIEW
    ),
    "continue": CommandEntry(
        "restarts",
        "continue_",
        "Send a follow-up to an ended or waiting task, or to a run.",
        REVIEW,
    ),
    "retry": CommandEntry(
        "restarts", "retry", "Run an ended task again from the beginning.", REVIEW
    ),
    "resume": CommandEntry(
        "restarts", "resume", "Resume a task where it stopped, or a paused or limited run.", REVIEW
    ),
    "requeue": CommandEntry(
        "restarts", "requeue", "Put a task back into the queue; stop it first if it runs.", REVIEW
    ),
    "check": CommandEntry(
        "tasks", "check", "Run the checks of an ended task again, on its commit.", REVIEW
    ),
    "report": CommandEntry(
        "usage", "report", "Report what was done, verified and spent, and what needs you.", REVIEW
    ),
    "usage": CommandEntry("usage", "usage", "Show used tokens, turns and money.", REVIEW),
    "search": CommandEntry(
        "knowledge",
        "search_all",
        "Search prompts, output, results, commits, learnings and notes.",
        ORGANIZE,
    ),
    "project": CommandEntry(
        "projects", "project", "Create, rename, archive, delete and switch projects.", ORGANIZE
    ),
    "flag": CommandEntry(
        "tasks", "flag_work", "Flag tasks and runs for attention, or unflag them.", ORGANIZE
    ),
    "snooze": CommandEntry(
        "tasks",
        "snooze",
        "Hide tasks and runs from what needs you until a given time.",
        ORGANIZE,
    ),
    "archive": CommandEntry(
        "tasks", "archive", "Remove ended tasks and runs from the list; keep their work.", ORGANIZE
    ),
    "prune": CommandEntry(
        "daemon", "prune", "Archive ended work and free its disk space.", ORGANIZE
    ),
    "learnings": CommandEntry(
        "knowledge", "learnings", "List, add and correct what earlier work has taught.", ORGANIZE
    ),
    "templates": CommandEntry(
        "templates",
        "templates",
        "Keep guidelines for one kind of work, and see its success rate.",
        ORGANIZE,
    ),
    "notes": CommandEntry(
        "coordination", "notes", "Read and write notes that agents and people share.", ORGANIZE
    ),
    "locks": CommandEntry(
        "coordination",
        "locks",
        "Lock files of a checkout, so that no agent changes them.",
        ORGANIZE,
    ),
    "init": CommandEntry("init", "init", "Choose an agent and set up this repository.", SET_UP),
    "agents": CommandEntry("agents", "agents", "List, check and configure agents.", SET_UP),
    "config": CommandEntry("config", "config", "Show and change settings.", SET_UP),
    "doctor": CommandEntry(
        "doctor", "doctor", "Find problems that keep Kapelle from working.", SET_UP
    ),
    "demo": CommandEntry(
        "demo", "demo", "Watch scripted agents work on a sample repository.", SET_UP
    ),
    "trust": CommandEntry(
        "trust", "trust", "Allow a repository to execute what its .kapelle defines.", SET_UP
    ),
    "untrust": CommandEntry(
        "trust", "untrust", "Withdraw trust from a repository; running work goes on.", SET_UP
    ),
    "prompts": CommandEntry(
        "trust", "prompts", "Show the prompts of pattern roles, and copy them for editing.", SET_UP
    ),
    "relocate": CommandEntry(
        "relocation", "relocate", "Move the work of a repository that was moved.", SET_UP
    ),
    "mcp": CommandEntry(
        "mcp", "mcp", "Serve Kapelle's tools to an agent or editor over stdin and stdout.", SET_UP
    ),
    "acp": CommandEntry(
        "acp",
        "acp",
        "Serve as an agent for an editor that speaks the Agent Client Protocol.",
        SET_UP,
    ),
    "notify": CommandEntry("daemon", "notify", "Test the configured notifications.", SET_UP),
    "completion": CommandEntry(
        "main", "completion", "Print the completion script of a shell.", SET_UP
    ),
    "help": CommandEntry(
        "help", "show_help", "Show the help of a command, or all commands.", SET_UP
    ),
    "open": CommandEntry("daemon", "open_page", "Open the page in the browser, logged in.", SERVER),
    "serve": CommandEntry("daemon", "serve", "Run the daemon in the foreground.", SERVER),
    "service": CommandEntry(
        "daemon", "service", "Start the daemon with the machine, and again when it dies.", SERVER
    ),
    "stop": CommandEntry("daemon", "stop", "Stop the daemon; running agents go on.", SERVER),
    "backup": CommandEntry("daemon", "backup", "Back up the database now.", SERVER),
    "uninstall": CommandEntry(
        "uninstall",
        "uninstall",
        "Stop the daemon and remove Kapelle's files from this machine.",
        SERVER,
    ),
}

# Commands of `kapelle --help`; `kapelle help --all` lists all.
COMMON = (
    "run", "loop", "workflow", "start", "schedule",
    "list", "status", "logs", "top", "wait", "answer", "cancel",
    "diff", "merge", "pr", "continue",
    "search",
    "init", "agents", "config", "doctor",
    "open", "stop",
)  # fmt: skip

# Names that people know from other tools.
ALIASES = {"ls": "list", "ps": "list", "log": "logs", "show": "status"}


def command_help() -> dict[str, tuple[str, str]]:
    """Return the group and the first line of the help of every command, patterns included."""
    patterns = {name: (START, summary) for name, summary in built_in_patterns().items()}
    others = {name: (entry.group, entry.help) for name, entry in COMMANDS.items()}
    return {"run": others["run"], **patterns, **others}


def command_names() -> list[str]:
    """Return the names of all commands, those of the built-in patterns too."""
    return list(command_help())


def is_command(name: str) -> bool:
    """Return whether there is a command or an alias of this name."""
    return name in COMMANDS or name in ALIASES or name in built_in_patterns()


def load(name: str) -> click.Command:
    """Import and return the command of a name or an alias; raises KeyError if there is none."""
    name = ALIASES.get(name, name)
    if name not in COMMANDS and name in built_in_patterns():
        from kapelle.cli.start import build_pattern_command

        return build_pattern_command(name)
    entry = COMMANDS[name]
    module = importlib.import_module(f"kapelle.cli.{entry.module}")
    command: click.Command = getattr(module, entry.attribute)
    return command


class Program(CliGroup):
    """The top level of the command line, which imports a command when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return command_names()

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if is_command(cmd_name):
            return load(cmd_name)
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        # click offers commands that were registered; here none are.
        if not ctx.resilient_parsing and not is_command(name):
            raise click.NoSuchCommand(name, possibilities=command_names(), ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from kapelle.cli.help import write_overview

        write_overview(formatter, COMMON)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        names = [
            CompletionItem(name, help=help)
            for name, (_, help) in command_help().items()
            if name.startswith(incomplete)
        ]
        # Options alone: click would import every command to list them.
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]
