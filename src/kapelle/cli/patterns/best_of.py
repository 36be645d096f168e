"""`kapelle best-of`."""

from typing import Annotated

import typer

from kapelle.cli.options import Json
from kapelle.cli.patterns.direction import Direction, Maximize, Minimize, direction
from kapelle.cli.patterns.options import pattern_command
from kapelle.cli.patterns.spec import Options, Spec, only_given, shared_spec
from kapelle.cli.prompt import read_prompt, ways
from kapelle.cli.run_options import Check, FollowToEnd, Prompt, PromptFile, Words
from kapelle.cli.runs import start_run
from kapelle.cli.task_spec import check_specs
from kapelle.cli.values import not_empty, optional_duration_s, optional_text, texts
from kapelle.domain.errors import InvalidInput

FEWEST, MOST = 2, 20


@pattern_command
def best_of(
    ctx: typer.Context,
    prompt: Prompt = None,
    prompt_file: PromptFile = None,
    candidate: Annotated[
        Words, typer.Option(metavar="AGENT[:MODEL]", help="Who takes part; repeatable.")
    ] = None,
    count: Annotated[
        int | None,
        typer.Option(
            "--count", "-n", min=FEWEST, max=MOST, metavar="NUMBER",
            help="So many tries of the same one; default 2.",
        ),
    ] = None,
    check: Check = None,
    score: Annotated[
        str | None,
        typer.Option("--eval", metavar="COMMAND", help="What prints the number that decides."),
    ] = None,
    minimize: Minimize = False,
    maximize: Maximize = False,
    direction: Direction = None,
    eval_timeout: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Stop --eval after this long.")
    ] = None,
    judge: Annotated[
        str | None, typer.Option(metavar="AGENT", help="Who picks one; not with --eval.")
    ] = None,
    judge_model: Annotated[
        str | None, typer.Option(metavar="NAME", help="The judge's model.")
    ] = None,
    follow: FollowToEnd = False,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Give the same task to several at once and keep the best of what they made.

    Each works in a worktree of its own. What fails a check is out; of the rest a score or a
    judge picks one.
    """
    start_run("best-of", best_of_spec(ctx.params), follow=follow, as_json=as_json)


def best_of_spec(options: Options) -> Spec:
    """The choice asked for."""
    candidates = _candidates(options["candidate"] or [])
    towards = direction(options)
    _require_a_choice(candidates, options["count"])
    _require_one_way(options, towards)
    if options["in_place"]:
        raise InvalidInput(
            "--in-place leaves no room for several at once: each needs a worktree of its own.",
            hint="Leave --in-place out.",
        )
    spec = {
        "prompt": read_prompt(options["prompt"], options["prompt_file"], ways("best-of")),
        "candidates": candidates,
        "count": options["count"],
        "checks": check_specs(options["check"] or [], None),
        "eval": optional_text(options["score"], "--eval"),
        "direction": towards,
        "eval_timeout_s": optional_duration_s(options["eval_timeout"], "--eval-timeout"),
        **texts(options, ("judge", "judge_model")),
    }
    return {**only_given(spec), **shared_spec(options)}


def _candidates(entries: list[str]) -> list[str]:
    """Repeated or separated by commas; one who is named twice tries twice."""
    named = [
        not_empty(part.strip(), "--candidate") for entry in entries for part in entry.split(",")
    ]
    for name in named:
        if name.startswith(":") or name.endswith(":"):
            lacks = "agent" if name.startswith(":") else "model"
            raise InvalidInput(
                f"--candidate {name!r} lacks the {lacks}.",
                hint="Write --candidate AGENT or --candidate AGENT:MODEL.",
            )
    return named


def _require_a_choice(candidates: list[str], count: int | None) -> None:
    if len(candidates) > 1 and count is not None:
        raise InvalidInput(
            "-n is for several tries of one candidate, and these are several candidates.",
            hint="Leave -n out, or name one candidate.",
        )
    if len(candidates) == 1 and count is None:
        raise InvalidInput(
            "One candidate alone is no choice.",
            hint=f"Name another --candidate, or add -n 3: {candidates[0]} then tries three times.",
        )
    if len(candidates) > MOST:
        raise InvalidInput(f"At most {MOST} can take part, and these are {len(candidates)}.")


def _require_one_way(options: Options, towards: str | None) -> None:
    scored, judged = options["score"] is not None, options["judge"] or options["judge_model"]
    if scored and judged:
        raise InvalidInput(
            "Either the number of --eval decides or a judge does.", hint="Leave one of them out."
        )
    if scored and towards is None:
        raise InvalidInput(
            "--eval prints a number, and nothing says whether more is better.",
            hint="Add --minimize or --maximize.",
        )
    if towards and not scored:
        raise InvalidInput(
            f"--{towards} needs a number.",
            hint="Add --eval COMMAND, which prints it in its last line.",
        )
