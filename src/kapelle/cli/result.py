"""The outcome of a command, and how it is printed."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kapelle.cli.output import document, say, write
from kapelle.domain.errors import KapelleError


@dataclass(frozen=True)
class Result:
    """The report of a command: data for programs, lines for people, an exit code.

    --json prints the data. Otherwise the lines go to stdout, then the remarks to stderr; both may
    be generators, so nothing is computed that is not printed. An error is raised after the output:
    it tells what went wrong with the rest of the work.
    """

    data: Any
    lines: Iterable[str] = ()
    remarks: Iterable[str] = ()
    exit_code: int = 0
    error: KapelleError | None = None

    def print(self, *, as_json: bool) -> int:
        """Print the result and return its exit code; raises its error, if it has one."""
        if as_json:
            document(self.data)
        else:
            write(self.lines)
            sys.stdout.flush()
            for remark in self.remarks:
                say(remark)
        if self.error is not None:
            raise self.error
        return self.exit_code
