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
    """Put what agents should know of Kapelle at the end of AGENTS.md, once."""
    path = directory / "AGENTS.md"
    if path.is_symlink():
        # A stranger's link could lead to any file of this person.
        raise InvalidInput(f"{path} is a link, which is not written through.")
    if path.exists():
        text = path.read_text(encoding="utf-8")
    else:
        text = ""
    if "\n## Kapelle\n" not in f"\n{text}":
        with path.open("a", encoding="utf-8") as file:
            if not text:
                gap = ""
            elif text.endswith("\n"):
                gap = "\n"
            else:
                gap = "\n\n"
            file.write(gap + _FOR_AGENTS)
    say(f"{path} tells agents about Kapelle.")
    return str(path)


def _pick(found: list[str], *, ask: bool) -> str | None:
    if len(found) == 1:
        return found[0]
    if not found or not ask:
        return None
    say("These agents are installed: " + ", ".join(found) + ".")
    answer: str = click.prompt("Which one by default?", default=found[0], err=True)
    return answer.strip()


def _repository_config(proposal: Proposal, accepted: bool, ask: bool) -> tuple[str | None, bool]:
    """The repository's config file and whether it was written just now."""
    from kapelle.settings.trust import find_executable, grant

    home = Home.default()
    here = current()
    path = config_file(current())
    if root(here) is None or path.exists():
        return str(path) if root(here) else None, False
    if proposal.dropped:
        say(f"Not taken over: {', '.join(proposal.dropped)}.")
        say("Prompts of your own: kapelle prompts tracks/implement --copy; a browser: [browser].")
    if proposal.prompts:
        names = ", ".join(proposal.prompt_files.values())
        say(f"Prompts for kapelle tracks: {names}.")
    proposed = proposal.as_toml()
    if proposed or proposal.prompts:
        if proposal.found:
            found = f"Found: {', '.join(proposal.found)}. "
        else:
            found = ""
        say(f"{found}Proposed for tasks in worktrees:")
        say("\n".join(f"  {name} = {value}" for name, value in proposed.items()))
        if proposal.tables:
            say(_tables(proposal.tables, "  ").strip("\n"))
        accepted = accepted or (ask and click.confirm("Use these?", default=True, err=True))
    is_empty = not find_executable(home, here).items
    path.parent.mkdir(exist_ok=True)
    with open(path, "x", encoding="utf-8") as file:
        mark = "" if accepted else "# "
        file.write(_config(proposed, mark) + _tables(proposal.tables, mark))
        file.write(_container(proposal.docker))
    if proposed and not accepted:
        say("They are in the file as comments, not used: take away the # to use them.")
    if service := proposal.docker.get("service"):
        say(f"The service {service} of the compose file mounts this repository. To run set-up and")
        say("checks in it, take away the # of [workspace.docker].")
    _take_over_prompts(path.parent, proposal, accepted=accepted)
    if proposal.tracks and not os.path.lexists(path.parent / "tracks.toml"):
        with open(path.parent / "tracks.toml", "x", encoding="utf-8") as file:
            file.write(_tracks(proposal.tracks))
        say("Start its features with: kapelle tracks -F .kapelle/tracks.toml")
    if is_empty and accepted:
        # It holds what this person has just agreed to, and nothing else.
        grant(home, find_executable(home, here))
    return str(path), True


def _take_over_prompts(directory: Path, proposal: Proposal, *, accepted: bool) -> None:
    """Write the prompts of another program where Kapelle looks for those of a pattern."""
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
    """The table of a container as comments."""
    if not docker:
        return ""
    note = "# Set-up and checks in a container; published ports collide between worktrees."
    return f"\n{note}{_tables({'workspace.docker': docker}, '# ')}"


def _tracks(spec: dict[str, Any]) -> str:
    """A spec of the pattern tracks as TOML, which writes texts, numbers and lists as JSON does."""
    written = {name: json.dumps(one, ensure_ascii=False) for name, one in spec.items()}
    lines = [f"{name} = {text}" for name, text in written.items() if name != "tracks"]
    rows = [f"{json.dumps(name)} = {json.dumps(one)}" for name, one in spec["tracks"].items()]
    return "\n".join([*lines, "", "[tracks]", *rows, ""])


def _config(proposed: dict[str, str], mark: str) -> str:
    """The template with what is proposed, behind the mark, in the place of its examples."""
    own = {name: f"{mark}{name} = {value}" for name, value in proposed.items()}
    if own.keys() & {"copy", "link", "setup"}:
        table = mark
    else:
        table = "# "
    template = files("kapelle.cli").joinpath("repository.toml").read_text(encoding="utf-8")
    return template.format(**{**_EXAMPLES, "workspace": f"{table}[workspace]", **own})


def _tables(tables: dict[str, dict[str, object]], mark: str) -> str:
    """Further tables of the configuration as TOML, behind the mark."""
    lines: list[str] = []
    for table, values in tables.items():
        rows = [f"{name} = {json.dumps(one, ensure_ascii=False)}" for name, one in values.items()]
        lines += ["", *(f"{mark}{line}" for line in [f"[{table}]", *rows])]
    if lines:
        return "\n".join([*lines, ""])
    return ""


def _explain(done: dict[str, Any]) -> None:
    name = done["default_agent"]
    found = done["found"]
    path = done["repository_config"]
    if name:
        _explain_default(name, done)
    elif found:
        names = " or ".join(f"`kapelle init --agent {name}`" for name in found)
        say(f"Several agents are installed; choose one with {names}.")
    else:
        say("No coding agent was found. Install one such as claude, codex or gemini, or set up any")
        say("""command: kapelle config set agents.NAME.command '["mytool", "{prompt}"]'""")
        say("To look around without one: kapelle init --agent rehearsal")
    if path is None:
        say("This is not a git repository, so no repository config was written.")
    else:
        if done["written"]:
            verb = "was written"
        else:
            verb = "is there already and stays as it is"
        say(f"{path} {verb}. Commit it: it holds for everybody who works here.")
    if names := done["proposal"]["filters"]:
        text = json.dumps(names)
        say(f"Work that changes files with a filter of git ({', '.join(names)}) fails")
        say(f"unless you allow it: kapelle config set git.filters '{text}'")
    if done["not_passed"]:
        say(f"Not passed on to agents and checks: {', '.join(done['not_passed'])}.")
        say("To pass one: --env NAME, or kapelle config set environment.pass '[\"NAME\"]'")
    if name:
        say('Next: kapelle run -f "what to do"')


def _explain_default(name: str, done: dict[str, Any]) -> None:
    from kapelle.agents.registry import describe

    config = Home.default().config
    if done["chosen"]:
        before = ""
    else:
        before = ", as it was set before"
    say(f"The default agent is {name}{before} ({config}).")
    try:
        info = describe(name, loaded().settings)
        if info.problem:
            say(advice(info.problem, info.hint))
    except KapelleError as error:
        say(error.message)
