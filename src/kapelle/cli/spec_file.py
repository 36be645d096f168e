"""The specification of a run from a JSON, YAML or TOML file."""

import json
from pathlib import Path
from typing import Any

from kapelle.domain.errors import InvalidInput

_KINDS = {".json": "JSON", ".yaml": "YAML", ".yml": "YAML", ".toml": "TOML"}


def read_spec(file: Path) -> dict[str, Any]:
    """What the file holds; an error names the file and, where it is known, the line."""
    kind = _KINDS.get(file.suffix.lower())
    if kind is None:
        raise InvalidInput(
            f"--spec {file} is of no kind that is known.", hint="Use .json, .yaml or .toml."
        )
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"--spec {file} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise InvalidInput(f"--spec {file} is not UTF-8 text.") from None
    spec = _parsed(kind, text, file)
    if not isinstance(spec, dict) or not all(isinstance(key, str) for key in spec):
        raise InvalidInput(
            f"--spec {file} holds no fields.", hint="Give every field a name: prompt, agent …"
        )
    return spec


def _parsed(kind: str, text: str, file: Path) -> Any:
    try:
        if kind == "JSON":
            return json.loads(text)
        if kind == "TOML":
            import tomllib

            return tomllib.loads(text)
    except ValueError as error:
        raise InvalidInput(f"{file} is not {kind}: {error}.") from None
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InvalidInput(f"{file} is not YAML: {' '.join(str(error).split())}.") from None
