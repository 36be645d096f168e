import inspect
import re

import pytest

from kapelle.cli.commands import commands, load, unknown_command

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


def command_of(name: str) -> tuple[object, str]:
    first, *inner = name.split()
    command = load(first)
    for part in inner:
        command = command.commands[part]
    context = command.make_context(name, [], resilient_parsing=True)
    return command, command.get_help(context)


@pytest.mark.parametrize(
    "name",
    [
        *sorted(set(commands()) - OTHERS - {"config", "service", "mcp", "acp", "notify"}),
        *SUBCOMMANDS,
    ],
)
def test_every_command_explains_itself_and_has_json(name: str) -> None:
    _, text = command_of(name)
    assert text.startswith("Usage:")
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


@pytest.mark.parametrize("name", sorted(set(commands()) - OTHERS - {"config", "service"}))
def test_the_overview_says_what_the_command_says(name: str) -> None:
    command = load(name)
    assert inspect.cleandoc(command.help).splitlines()[0] == commands()[name][1]


@pytest.mark.parametrize(
    ("typed", "meant"), [("lsit", "list"), ("statsu", "status"), ("cancle", "cancel")]
)
def test_a_typing_error_gets_a_suggestion(typed: str, meant: str) -> None:
    assert f"`kapelle {meant}`" in unknown_command(typed)


def test_nonsense_gets_none() -> None:
    assert not re.search("mean", unknown_command("xyzzy"))


def test_there_is_nothing_for_an_unknown_name() -> None:
    assert load("nonsense") is None
