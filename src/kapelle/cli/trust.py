"""What a repository brings along: `kapelle trust` and `untrust`, the question that a refusal leads
to, and `kapelle prompts`, its own words for the roles of patterns."""

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from kapelle.cli.command import CommandOutput, argument, flag
from kapelle.cli.config import config_file, current
from kapelle.cli.format import local, one_line, table
from kapelle.cli.output import data, say
from kapelle.cli.pages import columns, whole_list
from kapelle.client.http import DaemonConnection
from kapelle.domain.errors import Conflict, NotFound, NotTrusted
from kapelle.domain.text import format_count
from kapelle.home import Home

_WORDS = {
    "trusted": "trusted",
    "changed": "changed since",
    "not_trusted": "not trusted",
    "not_needed": "nothing to execute",
}
_MOST_LINES = 20

TrustTarget = Annotated[str | None, argument("[DIR|list]", "By default this one.")]


def trust(
    directory: TrustTarget = None,
    show: bool = flag("Only show what could be executed, and what changed."),
) -> CommandOutput:
    """Let a repository execute what stands in its .kapelle.

    These are its commands, agents, variables, MCP servers and patterns. It holds until one of them
    changes. `kapelle trust list` shows every repository that was trusted.
    """
    client = DaemonConnection()
    if directory == "list":
        nothing = "No repository was trusted yet: kapelle trust DIR"
        shown = columns("REPOSITORY,STATUS,SINCE", lambda one: [
            one["directory"],
            _WORDS[one["status"]] if Path(one["directory"]).is_dir() else "gone",
            local(one["trusted_at"]),
        ])  # fmt: skip
        yield from whole_list(client.get("/trust"), shown, nothing)
        return
    [found] = client.get("/trust", {"directory": os.path.abspath(directory or current())})
    if not show and found["items"]:
        found = {**_grant(client, found), "difference": found["difference"]}
    yield found
    _explain(found, whole=show)
    place = one_line(found["directory"])
    if not found["items"]:
        say(f"{place} has nothing that could be executed, so it needs no trust.")
    elif show:
        say(f"{place}: {_WORDS[found['status']]}.")
    else:
        items = format_count(len(found["items"]), "item")
        say(f"{place} is trusted: it may now run the {items} above.")


def untrust(directory: TrustTarget = None) -> CommandOutput:
    """Trust a repository no more; what it runs already goes on."""
    place = os.path.abspath(directory or current())
    yield (left := DaemonConnection().delete("/trust", {"directory": place}))
    if left["status"] == "trusted":
        say("It is no longer kept as trusted, but KAPELLE_TRUST of the daemon still names it.")
    else:
        say(f"{one_line(left['directory'])} is not trusted any more.")


def ask(refusal: NotTrusted) -> bool:
    """Show what a repository would execute and ask whether it may; False without a terminal."""
    from kapelle.settings.trust import VARIABLE, is_trusted_by

    # The last word of what to type is the place.
    [*_, place] = shlex.split(refusal.hint or "")
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        if is_trusted_by(os.environ, Path(place)):
            say(f"The daemon was started without {VARIABLE}, so it does not count: kapelle stop")
        return False
    client = DaemonConnection()
    [found] = client.get("/trust", {"directory": place})
    say(f"{one_line(found['directory'])} is {_WORDS[found['status']]}. It could execute:")
    _explain(found)
    if not typer.confirm("Do you trust it?", default=False, err=True):
        return False
    _grant(client, found)
    return True


def _grant(client: DaemonConnection, found: dict[str, Any]) -> dict[str, Any]:
    body = {"directory": found["directory"], "digest": found["digest"]}
    granted: dict[str, Any] = client.post("/trust", body)
    return granted


def _explain(found: dict[str, Any], *, whole: bool = False) -> None:
    """What stands there, each thing in a line or whole, or of what changed what went and came."""
    items = [(item["name"], item["text"].splitlines()) for item in found["items"]]
    lines = found["difference"] or [
        f"{name}: {line}" if whole else f"{name} ({format_count(len(text), 'line')})"
        if len(text) > 1 else f"{name} = {line}"
        for name, text in items
        for line in (text if whole else text[:1] or [""])
    ]  # fmt: skip
    most = len(lines) if whole else _MOST_LINES
    for line in lines[:most]:
        say(f"  {one_line(line)}")
    if len(lines) > most:
        say(f"  and {format_count(len(lines) - most, 'line')} more: kapelle trust --show")


def prompts(
    name: str | None = argument("[PATTERN[/ROLE]]", "Whose; by default all."),
    copy: bool = flag("Copy it to .kapelle/prompts, where it can be changed."),
) -> CommandOutput:
    """Show what the roles of patterns are told, and copy it to change it.

    A file .kapelle/prompts/PATTERN/ROLE.md of a trusted repository stands instead of the built-in
    text.
    """
    from kapelle.patterns import registry
    from kapelle.settings.trust import determine_standing, find_executable

    built_in = {f"{one.name}/{role}": text for one in registry.load_built_in()
                for role, text in one.prompts.items()}  # fmt: skip
    asked = {key: text for key, text in built_in.items() if name in {None, key, key.split("/")[0]}}
    found = find_executable(Home.default(), current())
    own = found.prompts
    trusted = determine_standing(Home.default(), found, os.environ) == "trusted"
    if not asked:
        raise NotFound(f"There is no prompt {name!r}.", hint="kapelle prompts lists them.")
    if copy:
        place = config_file(current()).parent / "prompts"
        for key, text in asked.items():
            path = place / f"{key}.md"
            if path.exists():
                raise Conflict(f"{path} is there already.", hint="Change it, or delete it first.")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n", encoding="utf-8")
            say(f"{path} is yours to change; then: kapelle trust")
        yield [str(place / f"{key}.md") for key in asked]
        return
    told = [
        {
            "name": key,
            "text": own.get(key, text) if trusted else text,
            "own": trusted and key in own,
        }
        for key, text in asked.items()
    ]
    if name is None:
        unknown = sorted(set(own) - set(built_in))
    else:
        unknown = []
    yield {"prompts": told, "unknown": unknown}
    if name in built_in:
        data(str(told[0]["text"]).rstrip())
    else:
        rows = [(str(one["name"]), ".kapelle" if one["own"] else "built in") for one in told]
        yield from table(["PROMPT", "FROM"], rows)
        if own and not trusted:
            say(f"Not used, for it is not trusted: {', '.join(sorted(own))}. `kapelle trust`")
        for key in unknown:
            say(f".kapelle/prompts/{key}.md is for no role of a pattern that Kapelle has.")
