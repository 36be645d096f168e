"""`kapelle trust` and `untrust`, the question about trust, and `kapelle prompts`."""

import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kapelle.cli.config import config_file, current
from kapelle.cli.figures import local_time
from kapelle.cli.layout import format_table
from kapelle.cli.output import plain_line, say
from kapelle.cli.pages import columns, whole_list
from kapelle.cli.parser import argument, command, flag, reports
from kapelle.cli.result import Result
from kapelle.cli.text import one_line
from kapelle.client.http import DaemonConnection
from kapelle.domain.errors import Conflict, NotFound, NotTrusted
from kapelle.domain.text import format_count
from kapelle.home import Home

if TYPE_CHECKING:
    from kapelle.client.records import TrustJson

_STATUS_TEXTS = {
    "trusted": "trusted",
    "changed": "changed since",
    "not_trusted": "not trusted",
    "not_needed": "nothing to execute",
}
_MAX_LINES = 20


@command("trust", "kapelle trust --show", "kapelle trust", "kapelle trust list")
@argument(
    "directory",
    metavar="DIR|list",
    required=False,
    help="Directory of the repository; by default this one. list shows all trusted ones.",
)
@flag("--show", help="What could be executed, and what changed, without a change of trust.")
@reports
def trust(directory: str | None, show: bool) -> Result:
    """Allow a repository to execute what its .kapelle defines.

    That is: its commands, agents, variables, MCP servers and patterns. Trust ends when one of them
    changes.
    """
    client = DaemonConnection()
    if directory == "list":
        nothing = "No repository is trusted yet: kapelle trust DIR"
        lines = columns("REPOSITORY,STATUS,SINCE", _repository_cells)
        return whole_list(client.get("/trust"), lines, nothing)
    query = {"directory": os.path.abspath(directory or current())}
    [executable] = client.get("/trust", query)
    if not show and executable["items"]:
        executable = {**_grant(client, executable), "difference": executable["difference"]}
    return Result(executable, remarks=_trust_remarks(executable, show=show))


def _repository_cells(repository: "TrustJson") -> list[str]:
    status = "gone"
    if Path(repository["directory"]).is_dir():
        status = _STATUS_TEXTS[repository["status"]]
    return [repository["directory"], status, local_time(repository["trusted_at"])]


def _trust_remarks(executable: "TrustJson", *, show: bool) -> Iterator[str]:
    yield from _item_lines(executable, in_full=show)
    place = one_line(executable["directory"])
    if not executable["items"]:
        yield f"{place} has nothing that could be executed, so it needs no trust."
    elif show:
        yield f"{place}: {_STATUS_TEXTS[executable['status']]}."
    else:
        items = format_count(len(executable["items"]), "item")
        yield f"{place} is trusted: it may now run the {items} above."


@command("untrust", "kapelle untrust")
@argument(
    "directory",
    metavar="DIR",
    required=False,
    help="Directory of the repository; by default this one.",
)
@reports
def untrust(directory: str | None) -> Result:
    """Withdraw trust from a repository; running work goes on."""
    place = os.path.abspath(directory or current())
    answer = DaemonConnection().delete("/trust", {"directory": place})
    remark = f"{one_line(answer['directory'])} is not trusted any more."
    if answer["status"] == "trusted":
        remark = "Its record is removed, but KAPELLE_TRUST of the daemon still trusts it."
    return Result(answer, remarks=[remark])


def ask(refusal: NotTrusted) -> bool:
    """Show what a repository would execute, and ask whether it may.

    Return False without a terminal.
    """
    from kapelle.settings.trust import VARIABLE, is_trusted_by

    # The last word of the hint is the place.
    place = shlex.split(refusal.hint or "")[-1]
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        if is_trusted_by(os.environ, Path(place)):
            say(f"The daemon was started without {VARIABLE}, so it does not apply: kapelle stop")
        return False
    client = DaemonConnection()
    [executable] = client.get("/trust", {"directory": place})
    status = _STATUS_TEXTS[executable["status"]]
    say(f"{one_line(executable['directory'])} is {status}. It could execute:")
    for line in _item_lines(executable, in_full=False):
        say(line)
    if not click.confirm("Do you trust it?", default=False, err=True):
        return False
    _grant(client, executable)
    return True


def _grant(client: DaemonConnection, executable: "TrustJson") -> "TrustJson":
    body = {"directory": executable["directory"], "digest": executable["digest"]}
    answer: TrustJson = client.post("/trust", body)
    return answer


def _item_lines(executable: "TrustJson", *, in_full: bool) -> Iterator[str]:
    """Return what a repository could execute, or the difference to what was trusted.

    Unless in full, long items and long lists are shortened.
    """
    lines = executable["difference"]
    if not lines:
        lines = []
        for item in executable["items"]:
            lines += _lines_of_item(item["name"], item["text"].splitlines(), in_full=in_full)
    limit = len(lines) if in_full else _MAX_LINES
    for line in lines[:limit]:
        yield f"  {one_line(line)}"
    if len(lines) > limit:
        yield f"  and {format_count(len(lines) - limit, 'line')} more: kapelle trust --show"


def _lines_of_item(name: str, text: Sequence[str], *, in_full: bool) -> list[str]:
    if in_full:
        return [f"{name}: {line}" for line in text]
    if len(text) > 1:
        return [f"{name} ({format_count(len(text), 'line')})"]
    return [f"{name} = {''.join(text)}"]


@command("prompts", "kapelle prompts", "kapelle prompts loop --copy")
@argument(
    "name",
    metavar="PATTERN[/ROLE]",
    required=False,
    help="Pattern, or a role of it; by default all.",
)
@flag("--copy", help="Copy the prompts to .kapelle/prompts, where they can be changed.")
@reports
def prompts(name: str | None, copy: bool) -> Result:
    """Show the prompts of pattern roles, and copy them for editing.

    A file .kapelle/prompts/PATTERN/ROLE.md of a trusted repository replaces the built-in prompt.
    """
    from kapelle.settings.trust import determine_standing, find_executable

    built_in = _built_in_prompts()
    chosen = {key: text for key, text in built_in.items() if name in {None, key, key.split("/")[0]}}
    if not chosen:
        raise NotFound(f"There is no prompt {name!r}.", hint="`kapelle prompts` lists the prompts.")
    if copy:
        return _copy_prompts(chosen)
    executable = find_executable(Home.default(), current())
    own = executable.prompts
    is_trusted = determine_standing(Home.default(), executable, os.environ) == "trusted"
    views = []
    for key, text in chosen.items():
        is_own = is_trusted and key in own
        views.append({"name": key, "text": own[key] if is_own else text, "own": is_own})
    unknown = sorted(set(own) - set(built_in)) if name is None else []
    data = {"prompts": views, "unknown": unknown}
    if name in built_in:
        return Result(data, [plain_line(str(views[0]["text"]).rstrip())])
    rows = [(str(view["name"]), ".kapelle" if view["own"] else "built in") for view in views]
    remarks = []
    if own and not is_trusted:
        names = ", ".join(sorted(own))
        remarks.append(f"Not used, because the repository is not trusted: {names}. `kapelle trust`")
    for key in unknown:
        remarks.append(f".kapelle/prompts/{key}.md is for no role of a known pattern.")
    return Result(data, format_table(["PROMPT", "FROM"], rows), remarks)


def _built_in_prompts() -> dict[str, str]:
    """Return the prompts of all built-in patterns as PATTERN/ROLE."""
    from kapelle.patterns import registry

    prompts = {}
    for pattern in registry.load_built_in():
        for role, text in pattern.prompts.items():
            prompts[f"{pattern.name}/{role}"] = text
    return prompts


def _copy_prompts(texts: Mapping[str, str]) -> Result:
    """Write prompts to .kapelle/prompts; raises Conflict for one that is there already."""
    directory = config_file(current()).parent / "prompts"
    paths = []
    for key, text in texts.items():
        path = directory / f"{key}.md"
        if path.exists():
            raise Conflict(f"{path} is there already.", hint="Change it, or delete it first.")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n", encoding="utf-8")
        say(f"{path} is yours to change; then: kapelle trust")
        paths.append(str(path))
    return Result(paths)
