"""`kapelle team`."""

from pathlib import Path
from typing import Annotated

import typer

from kapelle.cli.options import Json
from kapelle.cli.patterns.options import pattern_command
from kapelle.cli.patterns.team_spec import team_spec
from kapelle.cli.run_options import Words
from kapelle.cli.starting import begin, is_collecting
from kapelle.client.http import Connection as Client
from kapelle.domain.errors import InvalidInput

_Name = str | None


@pattern_command
def team(
    ctx: typer.Context,
    goal: Annotated[
        str | None,
        typer.Argument(metavar="GOAL", help="What to build; - reads it from stdin."),
    ] = None,
    goal_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Read the goal from a file, or - for stdin.")
    ] = None,
    criteria: Annotated[
        Words, typer.Option(metavar="TEXT", help="What success means; repeatable.")
    ] = None,
    verify: Annotated[
        Words, typer.Option(metavar="COMMAND", help="What must pass at the end; repeatable.")
    ] = None,
    planner: Annotated[_Name, typer.Option(metavar="AGENT", help="Who plans.")] = None,
    worker: Annotated[_Name, typer.Option(metavar="AGENT", help="Who does the work.")] = None,
    reviewer: Annotated[_Name, typer.Option(metavar="AGENT", help="Who reviews it.")] = None,
    planner_model: Annotated[
        _Name, typer.Option(metavar="NAME", help="The planner's model.")
    ] = None,
    worker_model: Annotated[_Name, typer.Option(metavar="NAME", help="The workers' model.")] = None,
    reviewer_model: Annotated[
        _Name, typer.Option(metavar="NAME", help="The reviewer's model.")
    ] = None,
    max_iterations: Annotated[
        int | None,
        typer.Option(min=1, max=1000, metavar="NUMBER", help="Plan at most so often; default 4."),
    ] = None,
    max_workers: Annotated[
        int | None,
        typer.Option(min=1, max=100, metavar="NUMBER", help="So many at once; default 4."),
    ] = None,
    ask: Annotated[
        bool, typer.Option("--ask", help="It may ask you; without a terminal it waits, exit 3.")
    ] = False,
    non_interactive: Annotated[
        bool, typer.Option("--non-interactive", help="It never asks; this is the default.")
    ] = False,
    resume: Annotated[
        Words, typer.Option(metavar="TOKEN", help="Go on with a run that asked; needs --answer.")
    ] = None,
    answer: Annotated[
        Words, typer.Option(metavar="TEXT", help="With --resume: what it wanted to know.")
    ] = None,
    progress: Annotated[
        bool, typer.Option("--progress", help="Print one JSON line per iteration on stderr.")
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Print its id and leave it in the background.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Have a team reach a goal: plan, work in parallel, verify, review, again until done.

    It is followed to its end unless --detach is given: exit 0 done, 1 failed, 3 input needed.
    With --json the run is printed when it has ended. Without a goal a terminal is asked for it.
    """
    from kapelle.cli.patterns.team_follow import Manner, watch

    manner = Manner(progress=progress, detach=detach, as_json=as_json, mute=non_interactive)
    if resume or answer:
        if is_collecting():
            raise InvalidInput(
                "A schedule starts new runs, and --resume goes on with one.",
                hint="Leave --resume and --answer out.",
            )
        from kapelle.cli.patterns.team_resume import answered

        client = Client()
        run, seen = answered(client, ctx.params)
        watch(client, run, manner, seen)
        return
    spec = team_spec(ctx.params)
    client = Client()
    watch(client, begin(client, "/runs", {"pattern": "team", "spec": spec}), manner)
