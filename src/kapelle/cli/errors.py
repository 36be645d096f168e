"""How an error reaches the person or the program that called."""

import json
import os
import sys
import traceback
from pathlib import Path

import typer

from kapelle.cli.output import say
from kapelle.domain.errors import InvalidInput, KapelleError


def wants_json(arguments: list[str]) -> bool:
    """Whether --json was among the options, known even when parsing failed."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in options


def show_error(error: KapelleError, *, as_json: bool) -> None:
    """One or two sentences on stderr: what is wrong and what to type instead."""
    if as_json:
        shown = {"code": error.code, "message": error.message, "hint": error.hint}
        sys.stderr.write(json.dumps({"error": shown}) + "\n")
        return
    sentences = [f"kapelle: {_sentence(error.message)}", error.hint or ""]
    apart = "\n" if any("\n" in sentence for sentence in sentences) else " "
    say(apart.join(filter(None, sentences)))


def _sentence(message: str) -> str:
    text = message.strip()
    return text if not text or text[-1] in ".!?:…" else text + "."


def usage_error(error: typer.TyperException) -> InvalidInput:
    """What typer says about a wrong command line, as an error of ours."""
    context = getattr(error, "ctx", None)
    hint = f"See `{context.command_path if context else 'kapelle'} --help`."
    close = getattr(error, "possibilities", None)
    if close:
        return InvalidInput(
            f"{error.message}. Did you mean {' or '.join(sorted(close))}?", hint=hint
        )
    return InvalidInput(" ".join(error.format_message().split()), hint=hint)


def internal_error(error: BaseException) -> KapelleError:
    """An unforeseen failure: the traceback goes to a file, a sentence to the person."""
    what = f"internal error: {type(error).__name__}: {error}"
    written = _write_traceback(error)
    if written is None:
        return KapelleError(what)
    return KapelleError(what, hint=f"Details are in {written}.")


def _write_traceback(error: BaseException) -> Path | None:
    try:
        from kapelle.home import Home

        path = Path(Home.default().root) / "cli-error.log"
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with open(descriptor, "a", encoding="utf-8", errors="backslashreplace") as log:
            log.write("".join(traceback.format_exception(error)) + "\n")
    except Exception:
        return None
    return path
