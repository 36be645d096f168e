"""Prints the picture of a pattern: `python -m kapelle.patterns.picture NAME [DIRECTORY]`."""

import sys
from pathlib import Path

from kapelle.domain.errors import KapelleError
from kapelle.home import Home
from kapelle.patterns import registry
from kapelle.patterns.picture import picture

_USAGE = "python -m kapelle.patterns.picture NAME [DIRECTORY]: a pattern as seen from a directory"


def main(words: list[str]) -> int:
    if len(words) not in {1, 2} or words[0].startswith("-"):
        sys.stderr.write(f"{_USAGE}\n")
        return 2
    directory = Path(words[1]) if len(words) == 2 else Path()
    try:
        found = registry.get(words[0], Home.default(), directory)
    except KapelleError as error:
        sys.stderr.write(f"{error.message}\n")
        return 2
    sys.stdout.write(picture(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
