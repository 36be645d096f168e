"""The settings that hold, from files and the environment, and changing them in a file.

Sentences about wrong ones say where they stand; a change keeps what a person wrote around it.
"""

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import ValidationError

from kapelle.domain.environment import looks_secret
from kapelle.domain.errors import InvalidInput, problem
from kapelle.home import Home, write_private
from kapelle.settings import trust
from kapelle.settings.files import Stamp, leaves, names_in, read_toml, stamp
from kapelle.settings.models import REPOSITORY_KEYS, Settings, TasksSettings

# Variables that lead a program elsewhere: to another server, another configuration, other code.
_FOREIGN = re.compile(
    r"PATH$|HOME$|ENV$|BASH_ENV$|SHELL$|(LD|DYLD|PYTHON|GIT|XDG|KAPELLE|SSL_CERT|PERL5|RUBY)|NODE_"
    r"|(.*_)?(PROXY|BASE_URL|API_BASE|API_URL|API_HOST|CA_BUNDLE)$"
    r"|(.*_)?(ENDPOINT(_URL.*)?|CONFIG(_DIR|_FILE|_PATH|_CONTENT)?|SETTINGS_PATH)$"
    r"|(CODEX_HOME|.*JAVA_(TOOL_)?OPTIONS)$",
    re.IGNORECASE,
)
_URL_PASSWORD = re.compile(r"(?<=://)([^/@:]*):[^/@]*@")
_ADDRESSES = ("database_url", ".base_url", ".url")


def masked(name: str, value: str) -> str:
    """The value as it may be shown: of a secret only its first and last letters, if it is long."""
    if len(value) >= 16:
        short = f"{value[:3]}…{value[-3:]}"
    else:
        short = "***"
    return short if looks_secret(name) else value


def shown(key: str, value: Any) -> Any:
    """A setting's value as it may be shown."""
    if key.endswith(_ADDRESSES) and value:
        return _URL_PASSWORD.sub(r"\1:***@", str(value))
    *_, table, name = ["", *names_in(key)]
    # What a server is sent in headers is mostly a token, whatever the header is called.
    if table == "headers":
        return masked("TOKEN", str(value))
    if table in {"env", "set"}:
        return masked(name, str(value))
    return value


SettingScope = Literal["user", "repository"]
Tree = Mapping[str, Any]


def validate(values: Tree, where: str, scope: SettingScope = "user") -> Settings:
    """The settings these values make; raises InvalidInput naming where they stand."""
    foreign = (set(values) & set(Settings.model_fields)) - REPOSITORY_KEYS
    if scope == "repository" and foreign:
        key = min(foreign)
        raise InvalidInput(f"{where}: {key} cannot be set here, only in your own config.toml.")
    if scope == "repository":
        _refuse_foreign(values, where)
    try:
        return Settings.model_validate(values, by_alias=True, by_name=False)
    except ValidationError as error:
        first: dict[str, Any] = {**error.errors(include_url=False)[0]}
    keys = [str(part) for part in first["loc"] if part != "[key]"]
    if first["type"] == "extra_forbidden":
        raise _unknown(where, keys)
    dotted = ".".join(keys)
    given = first.pop("input")
    if isinstance(given, str | int | float):
        value = f" (it is {shown(dotted, given)!r})"
    else:
        value = ""
    raise InvalidInput(f"{where}: {problem(first)}{value}.")


def _refuse_foreign(values: Tree, where: str) -> None:
    """Whoever is trusted to run commands may still not choose where your keys go, what every
    program loads first, or which of your secrets it sees."""
    for key, value in leaves(values):
        parts = key.split(".")
        address = parts[0] == "agents" and parts[2:] == ["base_url"]
        variable = parts[-2:-1] in (["env"], ["set"]) and _FOREIGN.match(parts[-1])
        if address or variable:
            raise InvalidInput(f"{where}: {key} cannot be set here, only in your own config.toml.")
        for name in value if key == "environment.pass" and isinstance(value, list) else ():
            if isinstance(name, str) and (looks_secret(name) or name.endswith("*")):
                raise InvalidInput(
                    f"{where}: environment.pass cannot have {name} here: it may be a secret.",
                    hint="Name variables that are none, or pass it in your own config.toml.",
                )


def _unknown(where: str, keys: list[str]) -> InvalidInput:
    known = children_of(annotation_of(keys[:-1], where))
    prefix = "".join(f"{key}." for key in keys[:-1])
    problem = f"{where}: there is no setting {prefix}{keys[-1]}"
    near = difflib.get_close_matches(keys[-1].lower(), known, 1, 0.5)
    if near:
        return InvalidInput(f"{problem}; did you mean {prefix}{near[0]}?")
    # The names of models have dots.
    if keys[0] == "prices":
        hint = f'In quotes: prices."{".".join(keys[1:])}"'
    else:
        hint = None
    return InvalidInput(f"{problem}; known are {', '.join(sorted(known))}.", hint=hint)


def children_of(annotation: Any) -> dict[str, Any]:
    fields = getattr(annotation, "model_fields", {})
    return {field.alias or name: field.annotation for name, field in fields.items()}


def annotation_of(keys: list[str], where: str) -> Any:
    """The type of the setting of this dotted key."""
    annotation: Any = Settings
    for depth, key in enumerate(keys):
        if get_origin(annotation) in {dict, list} and key:
            annotation = get_args(annotation)[-1]
        elif key in (children := children_of(annotation)):
            annotation = children[key]
        elif children:
            raise _unknown(where, keys[: depth + 1])
        else:
            raise InvalidInput(f"{where}: {'.'.join(keys[:depth])} has no {key!r} inside it.")
    return annotation


def value_of(annotation: Any, text: str) -> Any:
    """Text as a TOML value if it is one that the setting may take, else as a string."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    value = parsed.get("value")
    if len(parsed) > 1 or (_is_text(annotation) and type(value) is not str):
        return text
    return value


def _is_text(annotation: Any) -> bool:
    origin = get_origin(annotation)
    inside = () if origin in {list, dict} else get_args(annotation)
    return annotation is str or origin is Literal or any(_is_text(part) for part in inside)


@dataclass(frozen=True)
class LoadedSettings:
    """Settings, where each leaf came from by its dotted key, and what a repository sets that
    does not hold because it is not trusted."""

    settings: Settings
    origin: dict[str, str]
    held_back: Sequence[str] = ()

    def show(self) -> Iterator[tuple[str, Any, str]]:
        """Each leaf's dotted key, its value with secrets masked, and its origin."""
        for key, value in leaves(self.settings.model_dump(mode="json", by_alias=True)):
            yield key, shown(key, value), self.origin[key]


def load(home: Home, directory: Path | None, environ: Mapping[str, str]) -> LoadedSettings:
    """The settings that hold in a directory; raises InvalidInput for anything not understood."""
    if directory:
        found = trust.executable(home, directory)
    else:
        found = None
    trusted = found is not None and trust.standing(home, found, environ) == "trusted"
    return combined(home, found, trusted, environ)


def combined(
    home: Home, found: trust.Executable | None, trusted: bool, environ: Mapping[str, str]
) -> LoadedSettings:
    """The settings of a person, of the environment and, trusted or not, of what was found."""
    own = _read(home.config, stamp(home.config))
    layers: dict[str, Tree] = {f"user config {home.config}": own}
    held_back: list[str] = []
    if found and found.config:
        validate(found.settings, str(found.config), "repository")
        holds = trust.keeps_proof(found.settings, own)
        if not trusted:
            holds = trust.harmless(found.settings, own, TasksSettings())
            held_back = sorted(dict(leaves(found.settings)).keys() - dict(leaves(holds)).keys())
        layers[f"repository config {found.config}"] = holds
    merged: dict[str, Any] = {}
    for values in layers.values():
        merged = _merged(merged, values)
    for name, values in _from_environment(environ, merged):
        layers[f"environment {name}"] = values
        merged = _merged(merged, values)
    settings = validate(merged, "the configuration")
    docker = settings.workspace.docker
    # The engine may be a person's own choice, for whichever repository has an image.
    if not docker.wanted and (lost := sorted(docker.model_fields_set - {"engine"})):
        raise InvalidInput(
            f"workspace.docker.{lost[0]} is set, but neither an image nor a service: commands would"
            " run outside of any container.",
            hint='Write `image = "…"` or `service = "…"` under [workspace.docker], or drop it.',
        )
    origin = {key: source for source, values in layers.items() for key, _ in leaves(values)}
    if found and found.config:
        lying_there = f"repository config {found.config}"
        place = found.config.parent.parent
        keys = [key for key, source in origin.items() if source == lying_there]
        settings = settings.with_places(dict.fromkeys(keys, place))
    known = leaves(settings.model_dump(mode="json", by_alias=True))
    return LoadedSettings(
        settings, {key: origin.get(key, "default") for key, _ in known}, held_back
    )


@lru_cache(maxsize=16)
def _read(path: Path, _version: Stamp | None) -> dict[str, Any]:
    values = read_toml(path)[1]
    validate(values, str(path))
    return values


def _from_environment(environ: Mapping[str, str], configured: Tree) -> Iterator[tuple[str, Tree]]:
    """Each variable that is a setting, with what it sets; an empty one counts as not set."""
    for name in sorted(environ):
        if name.startswith("KAPELLE_") and environ[name]:
            keys = _environment_keys(name, configured)
            where = f"environment variable {name}"
            values = value_of(annotation_of(keys, where), environ[name])
            for key in reversed(keys):
                values = {key: values}
            if keys:
                validate(values, where)
                yield name, values


def _environment_keys(name: str, configured: Tree) -> list[str]:
    parts = name.removeprefix("KAPELLE_").split("__")
    keys = [part.lower() for part in parts]
    if len(keys) == 1 and keys[0] not in Settings.model_fields:
        near = difflib.get_close_matches(keys[0], Settings.model_fields, 1, 0.8)
        if near:
            raise InvalidInput(f"{name} is no setting; did you mean KAPELLE_{near[0].upper()}?")
        return []  # KAPELLE_HOME and the like are for other purposes.
    if keys[0] == "agents" and len(keys) > 1:
        for agent in configured.get("agents", {}):
            if agent.lower().replace("-", "_") == keys[1]:
                keys[1] = agent
    # Below environment.set and agents.NAME.env stand names whose case counts.
    depth = {"environment": 2, "agents": 3}.get(keys[0], len(keys))
    if len(keys) > depth and keys[depth - 1] in {"set", "env"}:
        keys[depth:] = ["__".join(parts[depth:])]
    return keys


def _merged(below: Tree, above: Tree) -> dict[str, Any]:
    tables = {key: _merged(below.get(key, {}), v) for key, v in above.items() if type(v) is dict}
    return {**below, **above, **tables}


def set_value(path: Path, dotted_key: str, text: str, scope: SettingScope = "user") -> None:
    """Write one setting to a config file, keeping the rest of it as it is."""
    import tomlkit

    keys = names_in(dotted_key)
    value = value_of(annotation_of(keys, str(path)), text)
    table: Any = (document := tomlkit.parse(read_toml(path)[0]))
    while len(keys) > 1 and isinstance(table.get(keys[0]), dict):
        table = table[keys.pop(0)]
    while len(keys) > 1:
        value = {keys.pop(): value}
    if isinstance(table.get(keys[0]), dict | list):
        # A plain value in the place of a table would fall into the table before it.
        del table[keys[0]]
    table[keys[0]] = value
    _write(path, dotted_key, document, scope)


def reset_value(path: Path, dotted_key: str, scope: SettingScope = "user") -> None:
    """Remove one setting from a config file; one that is not in it is no error."""
    import tomlkit

    keys = names_in(dotted_key)
    annotation_of(keys, str(path))
    table: Any = (document := tomlkit.parse(read_toml(path)[0]))
    for key in keys[:-1]:
        table = table.get(key)
        if not isinstance(table, dict):
            return
    if keys[-1] in table:
        del table[keys[-1]]
        _write(path, dotted_key, document, scope)


def _write(path: Path, key: str, document: Any, scope: SettingScope) -> None:
    text = document.as_string()
    wanted = validate(document.unwrap(), str(path), scope)
    try:
        kept = Settings.model_validate(tomllib.loads(text)) == wanted
    except ValueError:
        kept = False
    if not kept:
        raise InvalidInput(f"{path} is laid out so that only you can change {key}; edit it.")
    write_private(path, text.encode())
