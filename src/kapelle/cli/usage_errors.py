"""Errors about a wrong command line: click's exceptions as errors with a hint what to type."""

from collections.abc import Iterable, Sequence

import click

from kapelle.cli.parser import MissingCommand, TooManyArguments
from kapelle.domain.errors import InvalidInput

# Words that people type behind the name of a pattern who look for its runs.
RUN_COMMANDS = frozenset({"list", "ls", "status", "cancel", "pause", "resume", "result", "tail"})
# Options of other tools, and what to write here.
_OTHER_TOOLS = {
    "--pipeline": "Several --step make a pipeline: leave --pipeline out.",
    "--foreground": "Write --follow, or -f.",
    "--background": "Work runs in the background unless it is followed: leave --background out.",
}


def translate(error: click.UsageError) -> InvalidInput:
    """Return click's error about a command line as an error that names what to type."""
    see = f"See `{_command_path(error.ctx)} --help`."
    match error:
        case TooManyArguments():
            return _too_many_arguments(error, see)
        case MissingCommand():
            return InvalidInput(f"`{_command_path(error.ctx)}` needs a command.", hint=see)
        case click.NoSuchCommand():
            return _unknown_command(error)
        case click.NoSuchOption():
            return _unknown_option(error, see)
        case click.BadOptionUsage():
            return _wrong_use_of_option(error, see)
        case click.MissingParameter():
            return _missing_argument(error, see)
    return InvalidInput(" ".join(error.format_message().split()), hint=see)


def suggest(names: Sequence[str]) -> str:
    """Return a question that offers names in place of what was typed; empty without names."""
    if not names:
        return ""
    return f"Did you mean {' or '.join(names)}?"


def find_similar(word: str, names: Iterable[str], count: int = 2, cutoff: float = 0.6) -> list[str]:
    """Return the names that are spelled like a word, the most similar first."""
    import difflib

    return difflib.get_close_matches(word, list(names), n=count, cutoff=cutoff)


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Return the end of a sentence that offers the name that is spelled like a word."""
    similar = find_similar(word, names, count=1)
    if similar:
        return f"; did you mean {similar[0]}?"
    return ""


def _command_path(ctx: click.Context | None) -> str:
    if ctx is None:
        return "kapelle"
    return ctx.command_path


def _join(*sentences: str) -> str:
    return " ".join(sentence for sentence in sentences if sentence)


def _too_many_arguments(error: TooManyArguments, see: str) -> InvalidInput:
    from kapelle.cli.schema import built_in_patterns

    name = error.ctx.info_name if error.ctx else None
    if name in built_in_patterns() and len(error.words) > 1 and error.words[0] in RUN_COMMANDS:
        return InvalidInput(
            f"`kapelle {name}` has no command {error.words[0]!r}.",
            hint=f"Write `kapelle runs {' '.join(error.words)}`.",
        )
    return InvalidInput(
        error.message, hint=f"Put a text of several words into quotation marks. {see}"
    )


def _unknown_command(error: click.NoSuchCommand) -> InvalidInput:
    path = _command_path(error.ctx)
    similar = [f"`{path} {name}`" for name in (error.possibilities or ())[:2]]
    return InvalidInput(
        f"There is no command {error.command_name!r}.",
        hint=_join(suggest(similar), f"`{path} --help` lists the commands."),
    )


def _unknown_option(error: click.NoSuchOption, see: str) -> InvalidInput:
    instead = _OTHER_TOOLS.get(error.option_name)
    if instead is None:
        instead = suggest((error.possibilities or ())[:2])
    return InvalidInput(f"No such option: {error.option_name}.", hint=_join(instead, see))


def _wrong_use_of_option(error: click.BadOptionUsage, see: str) -> InvalidInput:
    """Return the error about an option without its value, or about a flag with a value."""
    name = error.option_name
    params = error.ctx.command.get_params(error.ctx) if error.ctx else []
    option = next((param for param in params if name in param.opts), None)
    if isinstance(option, click.Option) and not option.is_flag:
        value = option.metavar or "VALUE"
        return InvalidInput(f"{name} needs a value.", hint=f"Write {name} {value}. {see}")
    alone = f"Write {name} alone"
    if option is not None and option.secondary_opts:
        alone += f", or {option.secondary_opts[0]}"
    return InvalidInput(f"{name} does not take a value.", hint=f"{alone}. {see}")


def _missing_argument(error: click.MissingParameter, see: str) -> InvalidInput:
    ctx = error.ctx
    if ctx is None or error.param is None:
        return InvalidInput("An argument is missing.", hint=see)
    params = ctx.command.get_params(ctx)
    arguments = [param for param in params if isinstance(param, click.Argument)]
    words = [ctx.command_path, *(argument.make_metavar(ctx) for argument in arguments)]
    name = error.param.human_readable_name
    return InvalidInput(f"{name} is missing.", hint=f"Write `{' '.join(words)}`. {see}")
