"""`kapelle loop`."""

from pathlib import Path
from typing import Annotated

import typer

from kapelle.cli.options import Json
from kapelle.cli.patterns.direction import Direction, Maximize, Minimize
from kapelle.cli.patterns.loop_spec import loop_spec
from kapelle.cli.patterns.options import pattern_command
from kapelle.cli.run_options import FollowToEnd, Prompt, PromptFile, Words
from kapelle.cli.runs import start_run

_Duration = str | None


@pattern_command
def loop(
    ctx: typer.Context,
    prompt: Prompt = None,
    prompt_file: PromptFile = None,
    step: Annotated[
        Words,
        typer.Option(metavar="PROMPT", help="A further step of every iteration; repeatable."),
    ] = None,
    until: Annotated[
        Words,
        typer.Option(
            metavar="COMMAND", help="Go on until this passes, or diff_not_empty; repeatable."
        ),
    ] = None,
    score: Annotated[
        str | None,
        typer.Option("--eval", metavar="COMMAND", help="What prints the number to make better."),
    ] = None,
    minimize: Minimize = False,
    maximize: Maximize = False,
    direction: Direction = None,
    target: Annotated[
        str | None, typer.Option(metavar="NUMBER", help="Good enough: stop when it is reached.")
    ] = None,
    max_iterations: Annotated[
        int | None,
        typer.Option(
            min=0, max=1_000_000, metavar="NUMBER", help="At most so many; 0: any, default 10."
        ),
    ] = None,
    max_failures: Annotated[
        int | None,
        typer.Option(
            min=0, max=1_000_000, metavar="NUMBER",
            help="Stop after so many failed in a row; 0: never, default 3.",
        ),
    ] = None,
    convergence: Annotated[
        int | None,
        typer.Option(
            min=0, max=1000, metavar="NUMBER",
            help="Stop when so many in a row brought nothing new; 0: never, default 3.",
        ),
    ] = None,
    cooldown: Annotated[
        _Duration, typer.Option(metavar="DURATION", help="Wait between iterations.")
    ] = None,
    checkpoint: Annotated[
        bool,
        typer.Option("--checkpoint", help="Carry the conversation on; else each begins afresh."),
    ] = False,
    eval_timeout: Annotated[
        _Duration, typer.Option(metavar="DURATION", help="Stop --until or --eval after so long.")
    ] = None,
    eval_mode: Annotated[
        str | None, typer.Option(metavar="shell|agent", help="Who decides: a command or a judge.")
    ] = None,
    eval_prompt: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What the judge is to look at.")
    ] = None,
    eval_schema: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A JSON schema for the judge, with done or score."),
    ] = None,
    judge: Annotated[
        str | None, typer.Option(metavar="AGENT", help="Who judges; by default who works.")
    ] = None,
    judge_model: Annotated[
        str | None, typer.Option(metavar="NAME", help="The judge's model.")
    ] = None,
    follow: FollowToEnd = False,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Have an agent try again until a condition holds, or to make a number better.

    With --until it goes on until the commands pass. With --eval and --minimize or --maximize it
    keeps the best iteration and puts the others back. A judge decides instead with --judge or
    --eval-prompt.
    """
    start_run("loop", loop_spec(ctx.params), follow=follow, as_json=as_json)
