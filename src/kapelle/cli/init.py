"""`kapelle init`."""

import json
import os
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import click

from kapelle.cli.agents import advice
from kapelle.cli.config import config_file, current, loaded, root
from kapelle.cli.output import document, say
from kapelle.cli.parser import command, flag, json_flag, option
from kapelle.cli.proposal import Proposal, propose
from kapelle.cli.states import DONE, INPUT_NEEDED
from kapelle.client.environment import shell_for
from kapelle.domain.errors import InvalidInput, KapelleError
from kapelle.home import Home

_FOR_AGENTS = """\
## Kapelle

Work that can be done beside yours, or that must be tried until a check passes, goes to Kapelle:
`kapelle run "what to do" --check "how to see that it is done"` prints an id at once and works in a
worktree of its own. `kapelle wait ID` waits, `kapelle status ID` tells what was verified, `kapelle
diff ID` shows it; `kapelle merge ID` only when the person wants it. `kapelle --help` has the rest.
"""

_EXAMPLES = {
    "project": '# project = "my-project"',
    "checks": '# checks = ["make test"]',
    "copy": '# copy = [".env"]',
    "link": '# link = ["data"]',
    "setup": '# setup = "make deps"',
}


@command("init", "kapelle init", "kapelle init --agent claude --yes")
@option("--agent", metavar="NAME", help="Default agent.")
@flag("--yes", "-y", help="Use what is proposed, not only as comments.")
@flag("--agents-md", help="Describe Kapelle to agents in AGENTS.md.")
@json_flag
def init(agent: str | None, yes: bool, agents_md: bool, as_json: bool) -> int:
    """Choose an agent and set up this repository.

    Kapelle looks at what the repository is built with, and proposes set-up commands and checks.
    Existing files are never overwritten.
    """
    from kapelle.agents.registry import REHEARSAL, available, type_of
    from kapelle.settings import set_value

    settings = loaded().settings
    ask = sys.stdin.isatty() and not as_json
    installed = [info.name for info in available(settings) if info.installed]
    # The rehearsal is the agent only of people who choose it.
    names = [name for name in installed if type_of(name, settings) != REHEARSAL]
    outcome: dict[str, Any] = {"default_agent": settings.default_agent, "found": names}
    choice = agent
    if agent is None and settings.default_agent is None:
        choice = _pick(names, ask=ask)
    if choice is not None:
        # Also one that is still to be installed.
        type_of(choice, settings)
        outcome["default_agent"] = choice
        if ask:
            say(f"The default agent will be {choice}.")
    outcome["chosen"] = choice is not None
    top = root(current())
    proposal = propose(top) if top else Proposal()
    outcome["proposal"] = proposal.as_json()
    outcome["not_passed"] = shell_for(Home.default(), str(current()))["dropped"]
    path, is_written = _repository_config(proposal, yes, ask)
    outcome |= {"repository_config": path, "written": is_written}
    if choice is not None:  # a person who leaves at a question has changed nothing
        set_value(Home.default().config, "default_agent", choice)
    if agents_md:
        outcome["agents_md"] = _describe_to_agents(top or current())
    if as_json:
        document(outcome)
    else:
        _explain(outcome)
    if outcome["default_agent"] is None:
        return INPUT_NEEDED
    return DONE


def _describe_to_agents(directory: Path) -> str:
    """Add a section about Kapelle to AGENTS.md, unless it has one; return the path."""
    path = directory / "AGENTS.md"
    if path.is_symlink():
        # The link of a stranger could lead to any file of this person.
        raise InvalidInput(f"{path} is a link, which is not written through.")
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    if "\n## Kapelle\n" not in f"\n{text}":
        with path.open("a", encoding="utf-8") as file:
            file.write(_gap_behind(text) + _FOR_AGENTS)
    say(f"{path} describes Kapelle to agents.")
    return str(path)


def _gap_behind(text: str) -> str:
    """Return what separates a further section from a text by an empty line."""
    if not text:
        return ""
    if text.endswith("\n"):
        return "\n"
    return "\n\n"


def _pick(names: list[str], *, ask: bool) -> str | None:
    """Return the only installed agent, or the one that the person picks."""
    if len(names) == 1:
        return names[0]
    if not names or not ask:
        return None
    say("These agents are installed: " + ", ".join(names) + ".")
    answer: str = click.prompt("Which one by default?", default=names[0], err=True)
    return answer.strip()


def _repository_config(proposal: Proposal, yes: bool, ask: bool) -> tuple[str | None, bool]:
    """Write the repository's configuration, if there is none.

    Return its path and whether it was written now; the path is None outside of a repository.
    """
    from kapelle.settings.trust import find_executable, grant

    home = Home.default()
    here = current()
    path = config_file(here)
    if root(here) is None:
        return None, False
    if path.exists():
        return str(path), False
    accepted = _show_proposal(proposal, yes, ask)
    is_empty = not find_executable(home, here).items
    _write_config(path, proposal, accepted)
    _take_over_prompts(path.parent, proposal, accepted=accepted)
    if proposal.tracks:
        _write_tracks(path.parent / "tracks.toml", proposal.tracks)
    if is_empty and accepted:
        # It contains only what this person has just agreed to.
        grant(home, find_executable(home, here))
    return str(path), True


def _show_proposal(proposal: Proposal, yes: bool, ask: bool) -> bool:
    """Show what is proposed; return whether the person accepts it."""
    if proposal.dropped:
        say(f"Not taken over: {', '.join(proposal.dropped)}.")
        say("Prompts of your own: kapelle prompts tracks/implement --copy; a browser: [browser].")
    if proposal.prompts:
        names = ", ".join(proposal.prompt_files.values())
        say(f"Prompts for kapelle tracks: {names}.")
    values = proposal.as_toml()
    if not values and not proposal.prompts:
        return yes
    tools = ""
    if proposal.found:
        tools = f"Found: {', '.join(proposal.found)}. "
    say(f"{tools}Proposed for tasks in worktrees:")
    say("\n".join(f"  {name} = {value}" for name, value in values.items()))
    if proposal.tables:
        say(_tables(proposal.tables, "  ").strip("\n"))
    return yes or (ask and click.confirm("Use these?", default=True, err=True))


def _write_config(path: Path, proposal: Proposal, accepted: bool) -> None:
    """Write a configuration; a proposal that was not accepted stands there as comments."""
    values = proposal.as_toml()
    mark = "" if accepted else "# "
    path.parent.mkdir(exist_ok=True)
    with open(path, "x", encoding="utf-8") as file:
        file.write(_config(values, mark) + _tables(proposal.tables, mark))
        file.write(_container(proposal.docker))
    if values and not accepted:
        say("They are in the file as comments, not used: remove the # to use them.")
    service = proposal.docker.get("service")
    if service:
        say(f"The service {service} of the compose file mounts this repository. To run set-up and")
        say("checks in it, remove the # of [workspace.docker].")


def _write_tracks(path: Path, spec: dict[str, Any]) -> None:
    """Write the specification of tracks, unless there is a file already."""
    if os.path.lexists(path):
        return
    with open(path, "x", encoding="utf-8") as file:
        file.write(_tracks(spec))
    say("Start its features with: kapelle tracks -F .kapelle/tracks.toml")


def _take_over_prompts(directory: Path, proposal: Proposal, *, accepted: bool) -> None:
    """Write the prompts of another program where Kapelle reads those of a pattern."""
    if proposal.prompts and not accepted:
        names = ", ".join(proposal.prompt_files.values())
        say(f"Not taken over without --yes: {names}.")
        return
    for role, text in proposal.prompts.items():
        path = directory / "prompts" / f"{role}.md"
        if directory.resolve() not in path.parent.resolve().parents or os.path.lexists(path):
            # A stranger's link could lead anywhere; what is there stays.
            source = proposal.prompt_files[role]
            say(f"{path} is there already, or a link: {source} is not taken over.")
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _container(docker: dict[str, object]) -> str:
    """Return the table of a container as comments."""
    if not docker:
        return ""
    note = "# Set-up and checks in a container; published ports collide between worktrees."
    return f"\n{note}{_tables({'workspace.docker': docker}, '# ')}"


def _tracks(spec: dict[str, Any]) -> str:
    """Return a specification of the pattern tracks as TOML.

    TOML writes texts, numbers and lists as JSON does.
    """
    lines = []
    for name, value in spec.items():
        if name != "tracks":
            lines.append(f"{name} = {json.dumps(value, ensure_ascii=False)}")
    tracks = spec["tracks"].items()
    rows = [f"{json.dumps(name)} = {json.dumps(categories)}" for name, categories in tracks]
    return "\n".join([*lines, "", "[tracks]", *rows, ""])


def _config(values: dict[str, str], mark: str) -> str:
    """Return the template with values, behind the mark, in place of its examples."""
    own = {name: f"{mark}{name} = {value}" for name, value in values.items()}
    table = mark if own.keys() & {"copy", "link", "setup"} else "# "
    template = files("kapelle.cli").joinpath("repository.toml").read_text(encoding="utf-8")
    return template.format(**{**_EXAMPLES, "workspace": f"{table}[workspace]", **own})


def _tables(tables: dict[str, dict[str, object]], mark: str) -> str:
    """Return further tables of the configuration as TOML, each line behind the mark."""
    lines: list[str] = []
    for table, values in tables.items():
        lines += ["", f"{mark}[{table}]"]
        for name, value in values.items():
            lines.append(f"{mark}{name} = {json.dumps(value, ensure_ascii=False)}")
    if lines:
        return "\n".join([*lines, ""])
    return ""


def _explain(outcome: dict[str, Any]) -> None:
    """Say what was set up, and what the person may do next."""
    agent = outcome["default_agent"]
    if agent:
        _explain_agent(agent, is_new=outcome["chosen"])
    elif outcome["found"]:
        commands = " or ".join(f"`kapelle init --agent {name}`" for name in outcome["found"])
        say(f"Several agents are installed; choose one with {commands}.")
    else:
        say("No coding agent was found. Install one such as claude, codex or gemini, or set up any")
        say("""command: kapelle config set agents.NAME.command '["mytool", "{prompt}"]'""")
        say("To look around without one: kapelle init --agent rehearsal")
    path = outcome["repository_config"]
    if path is None:
        say("This is not a git repository, so no repository configuration was written.")
    elif outcome["written"]:
        say(f"{path} was written. Commit it: it applies to everybody who works here.")
    else:
        say(f"{path} exists already and stays as it is. Commit it: it applies to everybody who")
        say("works here.")
    filters = outcome["proposal"]["filters"]
    if filters:
        text = json.dumps(filters)
        say(f"Work that changes files with a filter of git ({', '.join(filters)}) fails")
        say(f"unless you allow it: kapelle config set git.filters '{text}'")
    if outcome["not_passed"]:
        say(f"Not passed on to agents and checks: {', '.join(outcome['not_passed'])}.")
        say("To pass one: --env NAME, or kapelle config set environment.pass '[\"NAME\"]'")
    if agent:
        say('Next: kapelle run -f "what to do"')


def _explain_agent(name: str, *, is_new: bool) -> None:
    """Say which agent is the default, and what keeps it from working."""
    from kapelle.agents.registry import describe

    before = "" if is_new else ", as it was set before"
    say(f"The default agent is {name}{before} ({Home.default().config}).")
    try:
        info = describe(name, loaded().settings)
        if info.problem:
            say(advice(info.problem, info.hint))
    except KapelleError as error:
        say(error.message)
