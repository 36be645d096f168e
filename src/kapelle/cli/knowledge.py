"""`kapelle learnings`, what earlier work has taught, and `kapelle search`."""

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kapelle.cli import parser
from kapelle.cli.config import current
from kapelle.cli.field_errors import name_options
from kapelle.cli.figures import format_elapsed
from kapelle.cli.ids import complete, id_argument, ids_argument, learning_path, work_id
from kapelle.cli.layout import field_line, paint
from kapelle.cli.output import plain_line
from kapelle.cli.pages import (
    columns,
    limit_option,
    listing,
    repository_filter,
    repository_option,
)
from kapelle.cli.parser import CliCommand, CliGroup, argument, command, flag, option, reports
from kapelle.cli.result import Result
from kapelle.cli.schema import schemas
from kapelle.cli.spec_options import options_of, params_of
from kapelle.cli.spec_values import read_spec
from kapelle.cli.text import clean, one_line, shorten_ids_on_terminal
from kapelle.cli.types import FILE
from kapelle.cli.values import listed, not_empty
from kapelle.cli.view import heading_lines
from kapelle.client.http import DaemonConnection
from kapelle.domain.errors import InvalidInput
from kapelle.domain.text import format_count

if TYPE_CHECKING:
    from kapelle.client.records import HitJson, LearningJson

learnings = CliGroup(
    "learnings",
    help="List, add and correct what earlier work has taught." + parser.LISTS_BY_DEFAULT,
    default_command="list",
    examples=['kapelle learnings add "Tests need Redis" "Start it with make redis."'],
)
_STYLES = {"reported": "yellow", "discarded": "dim"}
_PATH = "/learnings"

project_option = option(
    "--project",
    metavar="NAME",
    help="Project of the learnings; by default that of this repository.",
    shell_complete=complete("project"),
)
all_flag = flag("--all", "everywhere", help="Learnings of every project.")
tag_option = option("--tag", metavar="TAG", help="Tag of the learnings to list.")
learning_argument = id_argument("learning_id", "learnings", "a learning")


def _cells(learning: "LearningJson") -> list[str]:
    tags = one_line(", ".join(learning["tags"]), 30)
    return [learning["id"], learning["scope"], learning["author"], tags, learning["title"]]


_lines = columns("ID,SCOPE,BY,TAGS,TITLE", _cells, fold=(2, 3))


@learnings.command("list")
@project_option
@all_flag
@tag_option
@option("--status", metavar="STATUS", help="Status: kept, reported (to be judged) or discarded.")
@limit_option(50)
@reports
def list_learnings(
    project: str | None, everywhere: bool, tag: str | None, status: str | None, limit: int
) -> Result:
    """List the learnings that work here gets: this project's and the global ones, newest first."""
    query = {**_scope_query(project, everywhere), "tag": tag, "status": status}
    nothing = 'No such learnings here. `kapelle learnings add "TITLE" "CONTENT"` adds one.'
    return listing(_PATH, query, limit, _lines, nothing)


@learnings.command("search", examples=["kapelle learnings search flaky tests"])
@argument("words", metavar="WORD", nargs=-1, required=True, help="Words to search for.")
@project_option
@all_flag
@tag_option
@limit_option(10, 1000)
@reports
def search(
    words: Sequence[str], project: str | None, everywhere: bool, tag: str | None, limit: int
) -> Result:
    """Search learnings, best match first; "several words" in quotation marks stand together."""
    query = {**_scope_query(project, everywhere), "query": " ".join(words), "tag": tag}
    return listing(_PATH, query, limit, _lines, "No learning matches.")


_OPTIONS = options_of(schemas()["learning"])


@reports
def _add(**params: Any) -> Result:
    if params["title"] is None:
        example = '`kapelle learnings add "Tests need Redis" "Start it with make redis."`'
        raise InvalidInput("TITLE is missing.", hint=f"Write {example}.")
    spec = read_spec(_OPTIONS, params, "learnings add TITLE")
    with name_options(_OPTIONS):
        learning = DaemonConnection().post(_PATH, {"directory": str(current()), **spec})
    return Result(learning, [plain_line(learning["id"])])


learnings.add_command(
    CliCommand(
        "add",
        params=[*params_of(_OPTIONS), parser.json_option()],
        callback=_add,
        help="Add a learning.",
        examples=['kapelle learnings add "Tests need Redis" "Start it with make redis."'],
    )
)


@learnings.command("show")
@learning_argument
@reports
def show(learning_id: str) -> Result:
    """Show a learning with its author."""
    learning = DaemonConnection().get(learning_path(learning_id))
    return Result(learning, _describe(learning))


def _describe(learning: "LearningJson") -> Iterator[str]:
    status = paint(learning["status"], _STYLES.get(learning["status"]))
    yield from heading_lines(learning["title"], learning["id"], status, learning["reason"])
    project = os.path.basename(learning["project"] or "")
    yield field_line("scope", one_line(f"{learning['scope']} {project}".strip()))
    author = learning["author"]
    if learning["task_id"]:
        author += f" in {learning['task_id']}"
    yield field_line("by", one_line(author))
    yield field_line("time", f"added {format_elapsed(learning['created_at'], None)} ago")
    if learning["tags"]:
        yield field_line("tags", one_line(", ".join(learning["tags"])))
    yield ""
    for line in learning["content"].split("\n"):
        yield one_line(line)


@learnings.command("edit")
@learning_argument
@option("--title", metavar="TEXT", help="New title.")
@option("--content", metavar="TEXT", help="New content.")
@option("--tag", metavar="TAG", multiple=True, help="New tags.")
@option("--scope", metavar="project|global", help="New scope: work of its project, or all work.")
@option("--project", metavar="NAME", help="New project.")
@reports
def edit(
    learning_id: str,
    title: str | None,
    content: str | None,
    tag: Sequence[str],
    scope: str | None,
    project: str | None,
) -> Result:
    """Change a learning; a discarded one becomes valid again."""
    fields: dict[str, Any] = {
        "title": title,
        "content": content,
        "scope": scope,
        "project": project,
    }
    changes = {name: value for name, value in fields.items() if value is not None}
    if tag:
        changes["tags"] = listed(tag, "--tag")
    if not changes:
        raise InvalidInput(
            "There is nothing to change.",
            hint="Give --title, --content, --tag, --scope or --project.",
        )
    learning = DaemonConnection().put(learning_path(learning_id), changes)
    return Result(learning, [plain_line(learning["id"])])


@learnings.command("delete")
@ids_argument("learning_ids", "learnings", "learnings")
@reports
def delete(learning_ids: Sequence[str]) -> Result:
    """Delete learnings; `kapelle learnings export` keeps a copy."""
    client = DaemonConnection()
    items = [client.delete(learning_path(learning_id)) for learning_id in learning_ids]
    remarks = [f"{item['id']} is deleted: {one_line(item['title'], 80)}" for item in items]
    return Result(items, remarks=remarks)


@learnings.command("export", examples=["kapelle learnings export learnings.md"])
@argument("file", metavar="FILE", type=FILE, required=False, help="File; by default stdout.")
@all_flag
@reports
def export(file: Path | None, everywhere: bool) -> Result:
    """Write the learnings that work here gets as Markdown, which `import` reads."""
    query = {} if everywhere else _scope_query(None, False)
    content, _ = DaemonConnection().get_bytes(f"{_PATH}/markdown", query)
    page = content.decode()
    data = {"markdown": page}
    if file is None:
        return Result(data, clean(page).splitlines())
    return Result(data, remarks=_write_page(file, page))


def _write_page(file: Path, page: str) -> Iterator[str]:
    file.write_bytes(page.encode())
    number = page.count("\n## ")
    yield f"{file} contains {format_count(number, 'learning')}."


@learnings.command("import", examples=["kapelle learnings import learnings.md"])
@argument("file", metavar="FILE", type=FILE, help="Markdown; - reads stdin.")
@reports
def import_(file: Path) -> Result:
    """Add learnings from a page of Markdown: each `## Title` with the text below it."""
    if str(file) == "-":
        content = sys.stdin.buffer.read()
    else:
        content = file.read_bytes()
    page = content.decode("utf-8", "replace")
    body = {"markdown": page, "directory": str(current())}
    counts = DaemonConnection().post(f"{_PATH}/markdown", body)
    return Result(counts, remarks=_import_remarks(counts, page))


def _import_remarks(counts: dict[str, int], page: str) -> Iterator[str]:
    yield ", ".join(f"{number:,} {outcome}" for outcome, number in counts.items()) + "."
    for line in f"\n{page}".partition("\n## ")[0].splitlines():
        if line.strip() and not line.startswith("# "):
            yield f"Text before the first `## Title` is left out: {one_line(line, 60)}"
            return


def _scope_query(project: str | None, everywhere: bool) -> dict[str, Any]:
    """Return the query for the learnings of a project, of this directory, or of all projects."""
    if project is not None and everywhere:
        raise InvalidInput("--project and --all exclude each other.", hint="Leave one of them out.")
    directory = None if project or everywhere else str(current())
    return {"project": project, "directory": directory}


@command("search", "kapelle search login timeout", 'kapelle search "rate limit" --kind output')
@argument("words", metavar="WORD", nargs=-1, required=True, help="Words that must all be there.")
@option("--kind", metavar="KIND", help="Kind: prompt, result, output, commit, learning or note.")
@option("--task", metavar="ID", help="Task or run to search.", shell_complete=complete("work"))
@option("--project", metavar="NAME", help="Project to search.")
@repository_option
@limit_option(20, 200)
@reports
def search_all(
    words: Sequence[str],
    kind: str | None,
    task: str | None,
    project: str | None,
    repository: str | None,
    limit: int,
) -> Result:
    """Search prompts, output, results, commits, learnings and notes.

    "Several words" in quotation marks stand together. Learnings and notes come first, then work,
    newest first. With --repo, only work is searched.
    """
    client = DaemonConnection()
    query = {
        "query": not_empty(" ".join(words), "WORD"),
        "kind": kind,
        "project": project,
        "limit": limit,
        "repository": repository_filter(repository),
        "task": work_id(client, task) if task else None,
    }
    answer = client.get("/search", query)
    remarks = []
    if not answer["hits"]:
        remarks.append("Nothing matches.")
    if not answer["complete"]:
        remarks.append("Some work that has ended is not indexed yet: try again in a while.")
    return Result(answer, _hit_lines(answer["hits"]), remarks)


def _hit_lines(hits: "list[HitJson]") -> Iterator[str]:
    for hit in hits:
        title = one_line(hit["title"], 60)
        if hit["kind"] == "note":
            source = f"note of {hit['project']}"  # a note is read by its scope and key
        elif hit["attempt"]:
            place = f"attempt {hit['attempt']}, {hit['stream']} byte {hit['offset']}"
            source = f"{hit['kind']}, {place}: {title}"
        else:
            source = f"{hit['kind']}: {title}"
        source = paint(shorten_ids_on_terminal(source), "dim")
        yield f"{shorten_ids_on_terminal(hit['id'])}  {source}"
        yield f"    {one_line(hit['text'])}"
