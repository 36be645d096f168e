"""`kapelle pipeline`."""

from pathlib import Path
from typing import Annotated

import typer

from kapelle.cli.options import Json
from kapelle.cli.patterns.options import pattern_command
from kapelle.cli.patterns.spec import Options, Spec, given_spec, only_given, shared_spec, steps_of
from kapelle.cli.run_options import FollowToEnd, Words
from kapelle.cli.runs import start_run
from kapelle.cli.values import choice, key_values
from kapelle.domain.errors import InvalidInput

FEWEST, MOST = 2, 20
_EXAMPLE = 'Write `kapelle pipeline "design it" --step "implement it" --step "test it"`.'


@pattern_command
def pipeline(
    ctx: typer.Context,
    prompts: Annotated[
        Words,
        typer.Argument(
            metavar="PROMPT",
            help="What each step does; - reads one of them from stdin.",
            show_default=False,
        ),
    ] = None,
    step: Annotated[
        Words, typer.Option(metavar="PROMPT", help="A further step; repeatable.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", "-F", metavar="FILE", help="Read the steps from YAML or TOML; - is stdin."
        ),
    ] = None,
    var: Annotated[
        Words, typer.Option(metavar="NAME=VALUE", help="A variable of the file; repeatable.")
    ] = None,
    workspaces: Annotated[
        str | None,
        typer.Option(
            metavar="shared|each", help="One worktree through all steps, or one for each."
        ),
    ] = None,
    follow: FollowToEnd = False,
    as_json: Json = False,
) -> None:
    """Have agents do steps one after another, each told what the one before it did.

    The steps are the prompts, then those of --step, or those of a file.
    """
    start_run("pipeline", pipeline_spec(ctx.params), follow=follow, as_json=as_json)


def pipeline_spec(options: Options) -> Spec:
    """The pipeline asked for."""
    prompts = [*(options["prompts"] or ()), *(options["step"] or ())]
    variables = key_values(options["var"] or [], "--var")
    workspaces = choice("--workspaces", options["workspaces"], ("shared", "each"))
    if options["file"] is not None:
        return _from_file(options, prompts, variables, workspaces)
    if variables:
        raise InvalidInput("--var is for the steps of a file.", hint="Add -F FILE.")
    _require_steps(len(prompts))
    spec = {"steps": steps_of(prompts, _EXAMPLE), "workspaces": workspaces}
    return {**only_given(spec), **shared_spec(options)}


def _from_file(
    options: Options, prompts: list[str], variables: dict[str, str], workspaces: str | None
) -> Spec:
    if prompts:
        raise InvalidInput(
            "The steps were given twice, as prompts and as a file.",
            hint="Leave -F out, or put the prompts into the file.",
        )
    from kapelle.cli.pipeline_file import read_pipeline

    overrides = only_given({**given_spec(options), "workspaces": workspaces})
    return read_pipeline(options["file"], variables, overrides)


def _require_steps(count: int) -> None:
    if not count:
        raise InvalidInput("There are no steps.", hint=_EXAMPLE)
    if count < FEWEST:
        raise InvalidInput(
            "A pipeline has at least 2 steps, and this is one.",
            hint="Add --step PROMPT; `kapelle run` is for a single task.",
        )
    if count > MOST:
        raise InvalidInput(f"A pipeline has at most {MOST} steps, and these are {count}.")
