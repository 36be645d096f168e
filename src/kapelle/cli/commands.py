"""Every command by name, so that only the module of the one in use is imported."""

import importlib
import inspect
from functools import cache
from typing import Any

import typer

from kapelle.cli.command import LightGroup, command_of, suggestion

# Each with where it is made and the first line of its help.
_TABLE = """
run         start:work_command  Give an agent a task and print the task's id.
start       start:start_command  Start a run of any pattern, your own too.
runs        runs:runs  List runs, look at them, and pause, answer or end them.
batches     batches:batches  Keep lists of work, and work them off with `kapelle batch --list`.
schedule    schedules:schedule  Start work later, again and again, or after other work.
list        tasks:list_tasks  List the tasks and runs of this repository, the newest first.
top         top:top  Show all tasks and runs at work, live; keys look at one, answer, cancel, merge.
status      tasks:status  Show one task: what was claimed and what was verified; or one run.
questions   questions:questions  List what tasks and runs ask of you, the oldest first.
say         questions:say_  Tell the agent of a task something, at once if it can hear that.
answer      questions:answer  Answer a question of a task or a run; it then goes on.
logs        logs:logs  Show what a task's agent said and did, or what a run did.
attach      attach:attach  Attach to the terminal of an interactive task; Ctrl-] leaves it running.
wait        tasks:wait  Wait until tasks or runs have ended.
cancel      tasks:cancel  Stop tasks and runs, with every process they started.
retry       tasks:retry  Run an ended task once more from the beginning.
resume      tasks:resume  Go on with a task where it left off, or with a paused or limited run.
continue    tasks:continue_  Follow up on a task that has ended or waits, or on an ended run.
requeue     tasks:requeue  Put a task back into the queue; a running one is stopped first.
archive     tasks:archive  Take ended tasks and runs out of the list and keep their work.
check       tasks:check  Make the checks of an ended task once more, on what it committed.
flag        tasks:flag_work  Flag tasks and runs for attention, or no more.
snooze      tasks:snooze  Hide tasks and runs from what needs you until a given time.
prune       daemon:prune  Put away what has ended and free its disk space.
diff        tasks:diff  Show what a task or a run changed.
merge       merge:merge  Merge the branches of tasks and runs into their bases, in this order.
pr          merge:pr  Push what a task or a run did and open a pull request, or update it.
search      knowledge:search_all  Find words in all that was asked, said and done, learnt and noted.
learnings   knowledge:learnings  Look at what earlier work has taught, add to it and correct it.
project     projects:project  Make, rename, archive, delete projects, switch between them.
templates   templates:templates  Keep guidelines for work of one kind, and see what comes of it.
notes       coordination:notes  Read and write notes that agents and people share.
locks       coordination:locks  Hold files of a checkout, so that no agent changes them.
report      usage:report  Tell what was asked for, done, proven and spent, and what needs you.
usage       usage:usage  Show what was used: tokens, turns and money.
events      events:events  Show the history of everything that happened.
agents      agents:agents  List agents, try them out and set them up.
mcp         mcp:mcp  Serve Kapelle's tools to an agent or editor over stdin and stdout.
open        daemon:open_page  Open the page in the browser, logged in.
acp         acp:acp  Serve as an agent for an editor that speaks the Agent Client Protocol.
trust       trust:trust  Let a repository execute what stands in its .kapelle.
prompts     trust:prompts  Show what the roles of patterns are told, and copy it to change it.
untrust     trust:untrust  Trust a repository no more; what it runs already goes on.
relocate    relocation:relocate  Take the work of a repository along after it was moved.
init        init:init  Choose an agent and set up this repository.
config      config:config  Show and change settings.
doctor      doctor:doctor  Look for anything that keeps Kapelle from working.
demo        demo:demo  Watch a small ensemble of agents work on a sample repository.
serve       daemon:serve  Run the daemon in the foreground.
service     daemon:service  Have your machine start the daemon, and again when it dies.
stop        daemon:stop  Stop the daemon; running agents go on.
notify      daemon:notify  Try how you are told what happens while you are elsewhere.
uninstall   uninstall:uninstall  Stop the daemon and remove what Kapelle has left on this machine.
backup      daemon:backup  Copy the database to a safe place now.
completion  main:completion  Print the completion script of a shell.
"""


_LINES = [line.split(maxsplit=2) for line in _TABLE.strip().splitlines()]
_OWN = {name: (place, about) for name, place, about in _LINES}


# Names that people know from other tools; the help lists the command alone.
_ALIASES = {"ls": "list", "ps": "list", "log": "logs", "show": "status"}


@cache
def commands() -> dict[str, tuple[str, str]]:
    """Every command, those of the built-in patterns too, which cost more to read than to list."""
    from kapelle.cli.spec_options import built_in

    patterns = {name: ("start:work_command", about) for name, about in built_in().items()}
    first = next(iter(_OWN))
    return {first: _OWN[first], **patterns, **_OWN}


class LazyGroup(LightGroup):
    """The top level, which imports a command's module only when that command is used."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(commands())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return load(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help) for name, (_, help) in commands().items()])

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        # The base class suggests from commands that were registered, and here none are.
        if args and not _place(args[0]) and not ctx.resilient_parsing:
            ctx.fail(unknown_command(args[0]))
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            # Typer would turn it into exit code 1, which here means that the work failed.
            raise PipeClosed from error


class PipeClosed(Exception):
    """Whoever read our output has seen enough."""


def unknown_command(typed: str) -> str:
    """What to say about a command that does not exist."""
    return f"There is no command {typed!r}.{suggestion(typed, commands(), 0.55, '`kapelle {}`')}"


def _place(name: str) -> str:
    """Where a command or the one of an alias is made; nothing if there is none of this name."""
    name = _ALIASES.get(name, name)
    return (_OWN.get(name) or commands().get(name) or ("",))[0]


def load(name: str) -> Any:
    """The command of this name, or None when there is none."""
    name = _ALIASES.get(name, name)
    if not (place := _place(name)):
        return None
    module, _, attribute = place.partition(":")
    found = getattr(importlib.import_module(f"kapelle.cli.{module}"), attribute)
    if attribute.endswith("_command"):
        found = found(name)
    if isinstance(found, typer.Typer):
        found = typer.main.get_command(found)
    elif inspect.isfunction(found):
        found = command_of(found, name)
    found.name = name
    return found
