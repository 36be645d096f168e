"""`kapelle learnings`: what earlier work has taught, for people to look at and to correct."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from kapelle.cli.command import LISTS, CommandOutput, argument, command_group, flag, option
from kapelle.cli.config import current
from kapelle.cli.format import between, clean, field, heading, one_line, paint, shown
from kapelle.cli.ids import LearningIdArgument, LearningIds, completing, learning_path, work_id
from kapelle.cli.output import data, say
from kapelle.cli.pages import LimitOption, RepositoryOption, columns, listing, repository_filter
from kapelle.cli.spec_options import options_of, schemas, spec_of, spelled, with_parameters
from kapelle.cli.values import listed, not_empty
from kapelle.client.http import DaemonConnection
from kapelle.domain.errors import InvalidInput
from kapelle.domain.text import format_count

learnings = command_group("Look at what earlier work has taught, add to it and correct it." + LISTS)
_STYLES = {"reported": "yellow", "discarded": "dim"}
_PATH = "/learnings"

_HERE = "Of this project, in place of the one around here."
ProjectOption = Annotated[str | None, option("NAME", _HERE, autocompletion=completing("project"))]
All = Annotated[bool, flag("Of every project.", "--all")]
_SHOWN = columns("ID,SCOPE,BY,TAGS,TITLE", lambda one: [
    one["id"], one["scope"], one["author"], one_line(", ".join(one["tags"]), 30), one["title"]
], fold=(2, 3))  # fmt: skip
Tag = Annotated[str | None, option("TAG", "Only those with this tag.")]


@learnings.command("list")
def list_learnings(
    project: ProjectOption = None,
    all_: All = False,
    tag: Tag = None,
    status: str | None = option("STATUS", "kept, reported (to be judged) or discarded."),
    limit: LimitOption = 50,
) -> CommandOutput:
    """List what work here is told: this project's learnings and the global ones, newest first."""
    query = {**_where(project, all_), "tag": tag, "status": status}
    nothing = 'No such learnings here. `kapelle learnings add "TITLE" "CONTENT"` adds one.'
    return listing(_PATH, query, limit, _SHOWN, nothing)


@learnings.command("search")
def search(
    words: list[str] = argument("WORDS...", "What it is about."),
    project: ProjectOption = None,
    all_: All = False,
    tag: Tag = None,
    limit: int = option(None, "How many at most.", default=10, min=1, max=1000),
) -> CommandOutput:
    """Find learnings by their words, the best first; "several words" stand together."""
    query = {**_where(project, all_), "query": " ".join(words), "tag": tag}
    return listing(_PATH, query, limit, _SHOWN, "Nothing is known.")


def add_command() -> Callable[..., CommandOutput]:
    """`kapelle learnings add`."""
    schema = schemas()["learning"]
    options = options_of(schema)

    def add(**params: Any) -> CommandOutput:
        if params["title"] is None:
            example = '`kapelle learnings add "Tests need Redis" "Start it with make redis."`'
            raise InvalidInput("TITLE is missing.", hint=f"Write {example}.")
        spec = spec_of(options, params, "learnings add TITLE")
        with spelled(options):
            made = DaemonConnection().post(_PATH, {"directory": str(current()), **spec})
        yield made
        data(made["id"])

    return with_parameters(add, schema, options)


learnings.command("add")(add_command())


@learnings.command("show")
def show(learning_id: LearningIdArgument) -> CommandOutput:
    """Show one learning, with who said it."""
    yield (found := DaemonConnection().get(learning_path(learning_id)))
    yield from heading(found, found["reason"], _STYLES)
    scope = found["scope"]
    project = found["project"]
    yield field("scope", one_line(f"{scope} {os.path.basename(project or '')}".strip()))
    yield field("by", one_line(" in ".join(filter(None, [found["author"], found["task_id"]]))))
    yield field("time", f"said {between(found['created_at'], None)} ago")
    if found["tags"]:
        yield field("tags", one_line(", ".join(found["tags"])))
    yield from ("", *(one_line(line) for line in found["content"].split("\n")))


@learnings.command("edit")
def edit(
    learning_id: LearningIdArgument,
    title: str | None = option("TEXT", "Its new title."),
    content: str | None = option("TEXT", "Its new content."),
    tag: list[str] | None = option("TAG", "Its new tags; repeatable."),
    scope: str | None = option("project|global", "Whose work is told it."),
    project: str | None = option("NAME", "Its new project."),
) -> CommandOutput:
    """Change a learning; one that was discarded is kept by that."""
    given: dict[str, Any] = {"title": title, "content": content, "scope": scope, "project": project}
    changes = {name: value for name, value in given.items() if value is not None}
    changes |= {"tags": listed(tag, "--tag")} if tag else {}
    if not changes:
        raise InvalidInput(
            "Nothing was given to change.",
            hint="Give --title, --content, --tag, --scope or --project.",
        )
    yield (changed := DaemonConnection().put(learning_path(learning_id), changes))
    data(changed["id"])


@learnings.command("delete")
def delete(learning_ids: LearningIds) -> CommandOutput:
    """Delete learnings; `export` first keeps a copy."""
    client = DaemonConnection()
    yield (gone := [client.delete(learning_path(one)) for one in learning_ids])
    for one in gone:
        say(f"{one['id']} is deleted: {one_line(one['title'], 80)}")


@learnings.command("export")
def export(
    file: Path | None = argument("[FILE]", "By default stdout."),
    all_: All = False,
) -> CommandOutput:
    """Write what work here is told as Markdown, which `import` reads."""
    page, _ = DaemonConnection().get_bytes(f"{_PATH}/markdown", {} if all_ else _where(None, False))
    yield {"markdown": page.decode()}
    if file is None:
        sys.stdout.write(clean(page.decode()))
    else:
        file.write_bytes(page)
        number = page.count(b"\n## ")
        say(f"{file} holds {format_count(number, 'learning')}.")


@learnings.command("import")
def import_(file: Path = argument("FILE", "Markdown; - is stdin.")) -> CommandOutput:
    """Keep what a page of Markdown tells: each `## Title` with the text below it."""
    if str(file) == "-":
        page = sys.stdin.buffer.read()
    else:
        page = file.read_bytes()
    text = page.decode("utf-8", "replace")
    body = {"markdown": text, "directory": str(current())}
    yield (done := DaemonConnection().post(f"{_PATH}/markdown", body))
    say(", ".join(f"{number:,} {what}" for what, number in done.items()) + ".")
    before = f"\n{text}".partition("\n## ")[0].splitlines()
    for line in [one for one in before if one.strip() and not one.startswith("# ")][:1]:
        say(f"What stands before the first `## Title` is left out: {one_line(line, 60)}")


def _where(project: str | None, everywhere: bool) -> dict[str, Any]:
    if project is not None and everywhere:
        raise InvalidInput("--project and --all exclude each other.", hint="Leave one of them out.")
    return {"project": project, "directory": None if project or everywhere else str(current())}


def search_all(
    words: list[str] = argument("WORDS...", "What to look for, all of it."),
    kind: str | None = option("KIND", "prompt, result, output, commit, learning or note."),
    task: str | None = option("ID", "Only of this task or run."),
    project: str | None = option("NAME", "Only of this project."),
    repository: RepositoryOption = None,
    limit: int = option(None, "How many at most.", default=20, min=1, max=200),
) -> CommandOutput:
    """Find words in all that was asked, said and done, learnt and noted.

    "Several words" in quotation marks stand together. Learnings and notes come first, then work,
    the newest before the older. With --repo, only work is searched.
    """
    client = DaemonConnection()
    typed = not_empty(" ".join(words), "WORDS")
    query = {"query": typed, "kind": kind, "project": project, "limit": limit}
    query["repository"] = repository_filter(repository)
    found = client.get("/search", {**query, "task": work_id(client, task) if task else None})
    yield found
    for hit in found["hits"]:
        place = f", attempt {hit['attempt']}, {hit['stream']} byte {hit['offset']}"
        about = f"{hit['kind']}{place if hit['attempt'] else ''}: {one_line(hit['title'], 60)}"
        if hit["kind"] == "note":
            about = f"note of {hit['project']}"  # without its scope nobody can get it
        about = paint(shown(about), "dim")
        yield f"{shown(hit['id'])}  {about}\n    {one_line(hit['text'])}"
    if not found["hits"]:
        say("Nothing was found.")
    if not found["complete"]:
        say("Some work that has ended is not indexed yet: try again in a while.")
