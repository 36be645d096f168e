import inspect
import re
import shlex

import click
import pytest
from tests.unit.cli.program import find_command

from kapelle.cli.commands import COMMON, command_help, command_names, is_command, load
from kapelle.cli.main import run_command
from kapelle.cli.parser import CliCommand, CliGroup
from kapelle.domain.errors import InvalidInput

OTHERS = {"demo", "attach"}
SUBCOMMANDS = [
    *(f"config {name}" for name in ("show", "get", "set", "reset", "path")),
    *(f"agents {name}" for name in ("list", "check")),
    *(f"agents config {name}" for name in ("show", "set", "reset")),
    *(f"service {name}" for name in ("install", "uninstall", "status")),
    "notify test",
    *(f"runs {name}" for name in ("list", "status", "tail", "steps", "result", "wait")),
    *(f"runs {name}" for name in ("pause", "resume", "cancel", "answer")),
]


def help_of(name: str) -> str:
    command = find_command(name)
    return command.get_help(command.make_context(name, [], resilient_parsing=True))


@pytest.mark.parametrize(
    "name",
    [
        *sorted(set(command_names()) - OTHERS - {"config", "service", "mcp", "acp", "notify"}),
        *SUBCOMMANDS,
    ],
)
def test_every_command_explains_itself_and_has_json(name: str) -> None:
    text = help_of(name)
    assert f"\nUsage: {name} " in text
    assert "--json" in text


@pytest.mark.parametrize(
    "name",
    [
        "run",
        "loop",
        "team",
        "orchestrate",
        "workflow",
        "debate",
        "pipeline",
        "best-of",
        "continue",
        "resume",
        "retry",
        "requeue",
    ],
)
def test_all_that_begins_something_follows_it_only_when_asked(name: str) -> None:
    command = load(name)
    context = command.make_context(name, [], resilient_parsing=True)
    (follow,) = [param for param in command.get_params(context) if param.name == "follow"]
    assert (follow.opts, follow.secondary_opts) == (["--follow", "-f"], ["--detach"])
    assert not follow.get_default(context)


@pytest.mark.parametrize("name", sorted(set(command_names()) - OTHERS - {"config", "service"}))
def test_the_overview_says_what_the_command_says(name: str) -> None:
    command = load(name)
    assert inspect.cleandoc(command.help or "").splitlines()[0] == command_help()[name][1]


@pytest.mark.parametrize(
    ("typed", "meant"), [("lsit", "list"), ("statsu", "status"), ("cancle", "cancel")]
)
def test_a_typing_error_gets_a_suggestion(typed: str, meant: str) -> None:
    with pytest.raises(InvalidInput, match=f"no command '{typed}'") as caught:
        run_command([typed])
    assert f"`kapelle {meant}`" in (caught.value.hint or "")


def test_nonsense_gets_none() -> None:
    with pytest.raises(InvalidInput) as caught:
        run_command(["xyzzy"])
    assert not re.search("mean", caught.value.hint or "")


def test_the_overview_fits_on_a_screen(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 40
    assert max(len(line) for line in lines) <= 80
    assert {line.split()[0] for line in lines if line.startswith("  ")} == set(COMMON)


def test_all_commands_are_one_option_away(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["help", "--all"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines if line.startswith("  ")} == set(command_names())


def test_there_is_nothing_for_an_unknown_name() -> None:
    assert not is_command("nonsense")
    assert is_command("ls")


def examples() -> list[str]:
    """Return the examples of all help pages that begin with the program's name."""
    lines: list[str] = []
    commands: list[click.Command] = [load(name) for name in command_names()]
    while commands:
        command = commands.pop()
        if isinstance(command, CliGroup):
            commands += command.commands.values()
        if isinstance(command, CliGroup | CliCommand):
            lines += [line for line in command.examples if line.startswith("kapelle ")]
    return sorted(set(lines))


@pytest.mark.parametrize("line", examples())
def test_the_examples_of_the_help_can_be_typed(line: str) -> None:
    words = shlex.split(re.split(r" [|>] ", line)[0])[1:]
    command = load(words.pop(0))
    while isinstance(command, CliGroup) and words and words[0] in command.commands:
        command = command.commands[words.pop(0)]
    command.make_context("kapelle", words)
