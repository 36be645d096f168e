"""Load the effective settings from files and the environment, and change them in a file.

Errors name the file or variable with the invalid value. A change keeps comments and layout of the
file.
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
from kapelle.domain.errors import InvalidInput, format_problem
from kapelle.home import Home, write_private
from kapelle.settings import trust
from kapelle.settings.files import Stamp, leaves, read_toml, split_key, stamp
from kapelle.settings.models import REPOSITORY_KEYS, DockerSettings, Settings, TasksSettings

# Variables that redirect a program: to another server, another configuration or other code.
_FOREIGN = re.compile(
    r"PATH$|HOME$|ENV$|BASH_ENV$|SHELL$|(LD|DYLD|PYTHON|GIT|XDG|KAPELLE|SSL_CERT|PERL5|RUBY)|NODE_"
    r"|(.*_)?(PROXY|BASE_URL|API_BASE|API_URL|API_HOST|CA_BUNDLE)$"
    r"|(.*_)?(ENDPOINT(_URL.*)?|CONFIG(_DIR|_FILE|_PATH|_CONTENT)?|SETTINGS_PATH)$"
    r"|(CODEX_HOME|.*JAVA_(TOOL_)?OPTIONS)$",
    re.IGNORECASE,
)
_URL_PASSWORD = re.compile(r"(?<=://)([^/@:]*):[^/@]*@")
_ADDRESSES = ("database_url", ".base_url", ".url")


def mask_value(name: str, value: str) -> str:
    """Return a variable's value for display: of a secret only its first and last characters.

    A short secret is hidden completely.
    """
    if len(value) >= 16:
        shortened = f"{value[:3]}…{value[-3:]}"
    else:
        shortened = "***"
    return shortened if looks_secret(name) else value


def mask_setting(key: str, value: Any) -> Any:
    """Return a setting's value for display, with secrets masked."""
    if key.endswith(_ADDRESSES) and value:
        return _URL_PASSWORD.sub(r"\1:***@", str(value))
    *_, table, name = ["", *split_key(key)]
    # A header mostly carries a token, whatever its name is.
    if table == "headers":
        return mask_value("TOKEN", str(value))
    if table in {"env", "set"}:
        return mask_value(name, str(value))
    return value


SettingScope = Literal["user", "repository"]
Tree = Mapping[str, Any]


def validate(values: Tree, where: str, scope: SettingScope = "user") -> Settings:
    """Return validated settings; raises InvalidInput with their source and the invalid key."""
    # Unknown keys are left to pydantic, so that the error can suggest a valid one.
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
        raise _make_unknown_error(where, keys)
    dotted_key = ".".join(keys)
    value = first.pop("input")
    if isinstance(value, str | int | float):
        suffix = f" (it is {mask_setting(dotted_key, value)!r})"
    else:
        suffix = ""
    raise InvalidInput(f"{where}: {format_problem(first)}{suffix}.")


def _refuse_foreign(values: Tree, where: str) -> None:
    """Refuse settings of a repository that would redirect keys, programs or secrets.

    A person who trusts a repository to run commands does not thereby let it choose where API keys
    are sent, what every program loads first, or which secrets it receives.
    """
    for key, value in leaves(values):
        parts = key.split(".")
        address = parts[0] == "agents" and parts[2:] == ["base_url"]
        variable = parts[-2:-1] in (["env"], ["set"]) and _FOREIGN.match(parts[-1])
        if address or variable:
            raise InvalidInput(f"{where}: {key} cannot be set here, only in your own config.toml.")
        for name in value if key == "environment.pass" and isinstance(value, list) else ():
            if isinstance(name, str) and (looks_secret(name) or name.endswith("*")):
                raise InvalidInput(
                    f"{where}: environment.pass cannot contain {name} here: it may be a secret.",
                    hint="Pass it in your own config.toml, or pass only variables without secrets.",
                )


def _make_unknown_error(where: str, keys: list[str]) -> InvalidInput:
    """Return the error for an unknown setting, with the nearest valid name."""
    names = list_children(find_annotation(keys[:-1], where))
    prefix = "".join(f"{key}." for key in keys[:-1])
    problem = f"{where}: there is no setting {prefix}{keys[-1]}"
    near = difflib.get_close_matches(keys[-1].lower(), names, 1, 0.5)
    if near:
        return InvalidInput(f"{problem}; did you mean {prefix}{near[0]}?")
    # Names of models contain dots, so they need quotes.
    if keys[0] == "prices":
        hint = f'In quotes: prices."{".".join(keys[1:])}"'
    else:
        hint = None
    return InvalidInput(f"{problem}; valid names are {', '.join(sorted(names))}.", hint=hint)


def list_children(annotation: Any) -> dict[str, Any]:
    """Return the settings directly below one, by key; none below a plain value."""
    fields = getattr(annotation, "model_fields", {})
    return {field.alias or name: field.annotation for name, field in fields.items()}


def find_annotation(keys: list[str], where: str) -> Any:
    """Return the type of the setting with this dotted key; raises InvalidInput if unknown."""
    annotation: Any = Settings
    for depth, key in enumerate(keys):
        if get_origin(annotation) in {dict, list} and key:
            annotation = get_args(annotation)[-1]
        elif key in (children := list_children(annotation)):
            annotation = children[key]
        elif children:
            raise _make_unknown_error(where, keys[: depth + 1])
        else:
            raise InvalidInput(f"{where}: {'.'.join(keys[:depth])} has no {key!r} inside it.")
    return annotation


def parse_value(annotation: Any, text: str) -> Any:
    """Parse text as TOML if the setting accepts such a value; else return it as a string."""
    try:
        document = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    value = document.get("value")
    # More than one key: the text itself contained further TOML.
    if len(document) > 1 or (_is_text(annotation) and type(value) is not str):
        return text
    return value


def _is_text(annotation: Any) -> bool:
    origin = get_origin(annotation)
    inside = () if origin in {list, dict} else get_args(annotation)
    return annotation is str or origin is Literal or any(_is_text(part) for part in inside)


@dataclass(frozen=True)
class LoadedSettings:
    """The effective settings, and the source of each one by its dotted key.

    `by_repository` holds the keys that the repository sets; `held_back` names those that are
    ignored because it is not trusted.
    """

    settings: Settings
    origin: dict[str, str]
    held_back: Sequence[str] = ()
    by_repository: frozenset[str] = frozenset()

    def show(self) -> Iterator[tuple[str, Any, str]]:
        """Yield the dotted key, the value with secrets masked, and the source of each setting."""
        for key, value in leaves(self.settings.model_dump(mode="json", by_alias=True)):
            yield key, mask_setting(key, value), self.origin[key]


def load(home: Home, directory: Path | None, environ: Mapping[str, str]) -> LoadedSettings:
    """Return the effective settings for a directory; raises InvalidInput for invalid ones."""
    if directory:
        repository = trust.find_executable(home, directory)
    else:
        repository = None
    is_trusted = (
        repository is not None and trust.determine_standing(home, repository, environ) == "trusted"
    )
    return combine_layers(home, repository, is_trusted, environ)


def combine_layers(
    home: Home, repository: trust.Executable | None, is_trusted: bool, environ: Mapping[str, str]
) -> LoadedSettings:
    """Combine the settings of the person, of the repository and of the environment.

    An untrusted repository contributes harmless settings only.
    """
    own = _read(home.config, stamp(home.config))
    layers: dict[str, Tree] = {f"user config {home.config}": own}
    held_back: list[str] = []
    if repository and repository.config:
        validate(repository.settings, str(repository.config), "repository")
        holds = trust.drop_lower_proof(repository.settings, own)
        if not is_trusted:
            holds = trust.select_harmless(repository.settings, own, TasksSettings())
            held_back = sorted(
                dict(leaves(repository.settings)).keys() - dict(leaves(holds)).keys()
            )
        layers[f"repository config {repository.config}"] = holds
    tree: dict[str, Any] = {}
    for values in layers.values():
        tree = _merge_trees(tree, values)
    for name, values in _read_environment(environ, tree):
        layers[f"environment {name}"] = values
        tree = _merge_trees(tree, values)
    settings = validate(tree, "the configuration")
    _require_container(settings.workspace.docker)
    origin: dict[str, str] = {}
    for source, values in layers.items():
        origin.update(dict.fromkeys(dict(leaves(values)), source))
    by_repository = frozenset[str]()
    if repository and repository.config:
        # Commands from the repository's configuration run where its .kapelle lies.
        its_source = f"repository config {repository.config}"
        place = repository.config.parent.parent
        by_repository = frozenset(key for key, source in origin.items() if source == its_source)
        settings = settings.with_places(dict.fromkeys(by_repository, place))
    effective = dict(leaves(settings.model_dump(mode="json", by_alias=True)))
    sources = {key: origin.get(key, "default") for key in effective}
    return LoadedSettings(settings, sources, held_back, by_repository)


def _require_container(docker: DockerSettings) -> None:
    """Raise InvalidInput for settings of a container without an image or a service."""
    if docker.is_configured:
        return
    # A person may choose the engine alone, for whichever repository has an image.
    useless_keys = sorted(docker.model_fields_set - {"engine"})
    if useless_keys:
        raise InvalidInput(
            f"workspace.docker.{useless_keys[0]} is set, but neither an image nor a service: "
            "commands would run outside of any container.",
            hint='Write `image = "…"` or `service = "…"` under [workspace.docker], or drop it.',
        )


@lru_cache(maxsize=16)
def _read(path: Path, _version: Stamp | None) -> dict[str, Any]:
    values = read_toml(path)[1]
    validate(values, str(path))
    return values


def _read_environment(environ: Mapping[str, str], tree: Tree) -> Iterator[tuple[str, Tree]]:
    """Yield each variable that is a setting, with the settings it sets; empty ones are skipped."""
    for name in sorted(environ):
        if name.startswith("KAPELLE_") and environ[name]:
            keys = _split_variable(name, tree)
            where = f"environment variable {name}"
            values = parse_value(find_annotation(keys, where), environ[name])
            for key in reversed(keys):
                values = {key: values}
            if keys:
                validate(values, where)
                # Validated alone first, so that an error names this variable.
                yield name, values


def _split_variable(name: str, tree: Tree) -> list[str]:
    """Return the keys of the setting that a variable stands for; none for other variables."""
    parts = name.removeprefix("KAPELLE_").split("__")
    keys = [part.lower() for part in parts]
    if len(keys) == 1 and keys[0] not in Settings.model_fields:
        # Probably a misspelled setting.
        near = difflib.get_close_matches(keys[0], Settings.model_fields, 1, 0.8)
        if near:
            raise InvalidInput(f"{name} is no setting; did you mean KAPELLE_{near[0].upper()}?")
        return []  # KAPELLE_HOME and similar variables are no settings
    if keys[0] == "agents" and len(keys) > 1:
        for agent in tree.get("agents", {}):
            # Variables have neither dashes nor lower case, so the name is looked up among the
            # agents.
            if agent.lower().replace("-", "_") == keys[1]:
                keys[1] = agent
    # Names below environment.set and agents.NAME.env are case-sensitive.
    depth = {"environment": 2, "agents": 3}.get(keys[0], len(keys))
    if len(keys) > depth and keys[depth - 1] in {"set", "env"}:
        keys[depth:] = ["__".join(parts[depth:])]
    return keys


def _merge_trees(below: Tree, above: Tree) -> dict[str, Any]:
    tree = {**below, **above}
    for key, value in above.items():
        if type(value) is dict:
            tree[key] = _merge_trees(below.get(key, {}), value)
    return tree


def set_value(path: Path, dotted_key: str, text: str, scope: SettingScope = "user") -> None:
    """Write one setting to a config file; the rest of the file stays as it is."""
    import tomlkit

    keys = split_key(dotted_key)
    value = parse_value(find_annotation(keys, str(path)), text)
    table: Any = (document := tomlkit.parse(read_toml(path)[0]))
    while len(keys) > 1 and isinstance(table.get(keys[0]), dict):
        table = table[keys.pop(0)]
    while len(keys) > 1:
        # Tables that do not exist yet are written inline.
        value = {keys.pop(): value}
    if isinstance(table.get(keys[0]), dict | list):
        # tomlkit would write a plain value into the table before it.
        del table[keys[0]]
    table[keys[0]] = value
    _write(path, dotted_key, document, scope)


def reset_value(path: Path, dotted_key: str, scope: SettingScope = "user") -> None:
    """Remove one setting from a config file; a missing setting is not an error."""
    import tomlkit

    keys = split_key(dotted_key)
    find_annotation(keys, str(path))
    table: Any = (document := tomlkit.parse(read_toml(path)[0]))
    for key in keys[:-1]:
        table = table.get(key)
        if not isinstance(table, dict):
            return
    if keys[-1] in table:
        del table[keys[-1]]
        _write(path, dotted_key, document, scope)


def _write(path: Path, key: str, document: Any, scope: SettingScope) -> None:
    """Write a changed document after validating it, if the change has the intended effect."""
    text = document.as_string()
    settings = validate(document.unwrap(), str(path), scope)
    try:
        # In an unusual layout tomlkit may write a value where it means something else.
        is_unchanged = Settings.model_validate(tomllib.loads(text)) == settings
    except ValueError:
        is_unchanged = False
    if not is_unchanged:
        raise InvalidInput(
            f"{path} has a layout in which {key} cannot be changed automatically; edit the file."
        )
    write_private(path, text.encode())
