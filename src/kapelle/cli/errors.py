"""How an error reaches the person or the program that called."""

import errno
import json
import os
import re
import sys
import traceback
from pathlib import Path

from kapelle.cli.output import complain, give_up, say
from kapelle.domain.errors import InvalidInput, KapelleError

# A file that is already open does not tell its name when it cannot be written.
_FROM_WRITING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})
_HEADER_VALUE = re.compile(r"(Invalid header value|Bearer) .*")


def wants_json(arguments: list[str]) -> bool:
    """Whether --json was among the options, known even when parsing failed."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in options


def show_error(error: KapelleError, *, as_json: bool) -> None:
    """One or two sentences on stderr: what is wrong and what to type instead."""
    if as_json:
        shown = {"code": error.code, "message": error.message, "hint": error.hint}
        complain(json.dumps({"error": shown}))
        return
    sentences = [f"kapelle: {_sentence(error.message)}", error.hint or ""]
    apart = "\n" if any("\n" in sentence for sentence in sentences) else " "
    say(apart.join(filter(None, sentences)))


def _sentence(message: str) -> str:
    text = message.strip()
    return text if not text or text[-1] in ".!?:…" else text + "."


def system_error(error: OSError) -> KapelleError:
    """What the system refused, as a sentence: it is no failure of the program."""
    try:
        # What could not be written is still there, so a broken stdout fails once more.
        sys.stdout.flush()
    except OSError as broken:
        give_up(sys.stdout)
        return InvalidInput(f"Standard output cannot be written: {broken.strerror}.")
    if isinstance(error, FileNotFoundError) and not _directory_exists():
        return InvalidInput(
            "The current directory no longer exists.", hint="Change to another one first."
        )
    if error.filename is None and error.errno in _FROM_WRITING:
        return InvalidInput(f"{error.strerror}.")
    if error.filename is None or not error.strerror:
        return internal_error(error)
    return InvalidInput(f"{error.filename}: {error.strerror}.")


def _directory_exists() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def internal_error(error: BaseException) -> KapelleError:
    """An unforeseen failure: the traceback goes to a file, a sentence to the person."""
    what = _without_headers(f"internal error: {type(error).__name__}: {error}")
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
            log.write(_without_headers("".join(traceback.format_exception(error))) + "\n")
    except Exception:
        return None
    return path


def _without_headers(text: str) -> str:
    """The text without the values of headers, one of which is the token."""
    return _HEADER_VALUE.sub(r"\1 …", text)
