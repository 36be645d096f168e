"""The set-up and the checks that `kapelle init` proposes for a repository, from its files.

The tables of proposal.toml name the tools. The first tool of a family counts, and a framework adds
a check to it.
"""

import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatch
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

_MOST_READ = 1_000_000
_LONGEST_NAME = 200
# Files that programs need and git usually ignores, so that a worktree lacks them.
_PRIVATE_FILES = (".env", ".env.local", "config/master.key")

JsonTable: TypeAlias = Mapping[str, Any]


class ProjectTool(NamedTuple):
    """A tool or a framework of a project.

    file is a pattern of file names; after a colon, a word that one of the files must contain. run
    is the command with which the tool calls others.
    """

    family: str
    name: str
    file: str
    check: str = ""
    setup: str = ""
    run: str = ""


_TABLES = tomllib.loads(files("kapelle.cli").joinpath("proposal.toml").read_text(encoding="utf-8"))
TOOLS = [ProjectTool(*row) for row in _TABLES["tools"]]
FRAMEWORKS = [ProjectTool(*row) for row in _TABLES["frameworks"]]


@dataclass
class Proposal:
    """The tools of a repository, and the settings that follow from them.

    A person has to decide about filters: git would execute them.
    """

    found: list[str] = field(default_factory=list)
    setup: list[str] = field(default_factory=list)
    checks: list[str] = field(default_factory=list)
    copy: list[str] = field(default_factory=list)
    link: list[str] = field(default_factory=list)
    filters: list[str] = field(default_factory=list)
    project: str | None = None
    tracks: dict[str, Any] = field(default_factory=dict)
    # Further tables of the configuration, and the settings of another program without counterpart.
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)
    # The service of a compose file that mounts the repository. It is proposed as a comment only,
    # because a service that publishes ports cannot run for two worktrees.
    docker: dict[str, Any] = field(default_factory=dict)
    # Prompts of roles by PATTERN/ROLE, and the files that contain them.
    prompts: dict[str, str] = field(default_factory=dict)
    prompt_files: dict[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        values = asdict(self)
        del values["prompts"]
        return {**values, "setup": " && ".join(self.setup) or None}

    def as_toml(self) -> dict[str, str]:
        """Return the proposed values by the names of their settings, as TOML."""
        values = self.as_json()
        lines = {}
        for name in ("project", "checks", "copy", "link", "setup"):
            if values[name]:
                # JSON writes texts and lists of texts as TOML does.
                lines[name] = json.dumps(values[name], ensure_ascii=False)
        return lines


# Names of settings in .orchestrator/config.json, and their names in Kapelle.
_DOCKER_KEYS = {"dockerService": "service", "dockerWorkDir": "workdir"}
_BROWSER_KEYS = {
    "enabled": "enabled",
    "mcpPackage": "package",
    "mcpArgs": "args",
    "mcpServerName": "server",
}
_PROMPT_FILES = {
    "implementation.md": "tracks/implement",
    "verification.md": "tracks/verify",
    "fix.md": "tracks/fix",
}
_PLACEHOLDER = re.compile(r"\{\{[^{}\n]{1,60}\}\}|\$\{\w{1,60}\}")
# The first of these files counts, as it does for the container engine.
_COMPOSE_FILES = ("compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml")
# The keys that have a counterpart in Kapelle; for some, the keys of the tables below them.
_KNOWN_KEYS: dict[str, set[str] | None] = {
    "tracks": None,
    "featuresFile": None,
    "instructionsFile": None,
    "progressFile": None,
    "baseBranch": None,
    "criticalPatterns": None,
    "projectName": None,
    "worktree": {"symlinkDirs", "copyFiles", *_DOCKER_KEYS},
    "agent": {
        "preferred",
        "fallbackAgents",
        "maxTurnsImplementation",
        "maxTurnsVerification",
        "allowedToolsVerification",
    },
    "verification": {"maxAttempts", "disabled"},
    "browser": set(_BROWSER_KEYS),
}


def propose(top: Path) -> Proposal:
    """Return a proposal for the repository with this top directory.

    If nothing is built at its top, the directories one level below are examined.
    """
    filters = re.findall(r"(?m)^[^#\n]*\bfilter=(\w[\w-]*)", _read_text(top / ".gitattributes"))
    proposal = Proposal(filters=sorted({*filters}))
    if not _add_directory(top, "", proposal):
        for path in sorted(top.iterdir()):
            if path.is_dir() and re.fullmatch(r"[\w-][\w.-]*", path.name):
                _add_directory(path, f"{path.name}/", proposal)
    if not proposal.checks and re.search(r"(?m)^test\s*:", _read_text(top / "Makefile")):
        proposal.checks.append("make test")
    if os.path.isfile(top / ".pre-commit-config.yaml"):
        proposal.found.append(".pre-commit-config.yaml")
        proposal.checks.append("pre-commit run --all-files")
    _add_orchestrator_config(top / ".orchestrator" / "config.json", proposal)
    _add_prompts(top / ".orchestrator", proposal)
    if "workspace.docker" not in proposal.tables:
        proposal.docker = _find_compose_service(top)
    return proposal


def _find_compose_service(top: Path) -> dict[str, Any]:
    """Return the settings for the first service of a compose file that mounts the repository."""
    text = ""
    for name in _COMPOSE_FILES:
        text = text or _read_text(top / name)
    if not text:
        return {}
    import yaml

    try:
        services = yaml.safe_load(text)["services"].items()
    except (yaml.YAMLError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
    for service, values in services:
        volumes = values.get("volumes") if isinstance(values, dict) else None
        for volume in volumes if isinstance(volumes, list) else []:
            target = _mount_of_repository(volume)
            if target is not None:
                return {"service": str(service), "workdir": target}
    return {}


def _mount_of_repository(volume: object) -> str | None:
    """Return where a volume of a compose file mounts the directory of that file, if it does."""
    if isinstance(volume, dict):
        source = volume.get("source")
        target = volume.get("target")
    else:
        source, _, rest = str(volume).partition(":")
        target = rest.partition(":")[0]
    is_absolute = isinstance(target, str) and target.startswith("/")
    if source in {".", "./", "${PWD}", "$PWD"} and is_absolute:
        return str(target)
    return None


def _add_prompts(directory: Path, proposal: Proposal) -> None:
    """Add the prompts of an orchestrator of features that contain no placeholders."""
    if directory.is_symlink() or not directory.is_dir():
        return
    for path in sorted(directory.glob("*.md")):
        name = f".orchestrator/{path.name}"
        role = _PROMPT_FILES.get(path.name)
        text = ""
        # A link in a stranger's repository could lead to any file of this user.
        if not path.is_symlink():
            text = _read_text(path)
        placeholders = sorted(set(_PLACEHOLDER.findall(text)))
        if role is None or not text.strip():
            proposal.dropped.append(name)
        elif placeholders:
            proposal.dropped.append(f"{name} (it holds {', '.join(placeholders[:3])})")
        else:
            proposal.prompts[role] = text
            proposal.prompt_files[role] = name


def _add_orchestrator_config(path: Path, proposal: Proposal) -> None:
    """Add the settings of an orchestrator of features; ignore a file that cannot be read."""
    try:
        config = json.loads(_read_text(path) or "{}")
        worktree = config.get("worktree") or {}
        copied_files = worktree.get("copyFiles", [])
        linked_directories = worktree.get("symlinkDirs", [])
        tracks = _read_tracks(config)
    except (ValueError, AttributeError, TypeError, KeyError):
        return
    if not config:
        return
    proposal.found.append(".orchestrator/config.json")
    _add_tables(config, proposal)
    dropped = list(_unknown_keys(config))
    name = config.get("projectName")
    if isinstance(name, str) and name.isprintable() and 0 < len(name) <= _LONGEST_NAME:
        proposal.project = name
    elif name is not None:
        dropped.append("projectName")
    proposal.dropped += [f"{key} of .orchestrator/config.json" for key in dropped]
    proposal.copy += [file for file in copied_files if file not in proposal.copy]
    proposal.link += linked_directories
    spec = _tracks_spec(config)
    spec["checks"] = proposal.checks
    spec["tracks"] = tracks
    proposal.tracks = {key: value for key, value in spec.items() if value not in (None, [])}


def _tracks_spec(config: JsonTable) -> dict[str, Any]:
    """Return the options of the pattern `tracks`, of which some may be None."""
    agent = config.get("agent") or {}
    verification = config.get("verification") or {}
    tools = agent.get("allowedToolsVerification") or []
    if isinstance(tools, str):
        tools = tools.split(",")
    return {
        "features": config.get("featuresFile"),
        "instructions": config.get("instructionsFile"),
        "progress_file": config.get("progressFile"),
        "base": config.get("baseBranch"),
        "agent": agent.get("preferred"),
        "fallback_agents": agent.get("fallbackAgents"),
        "worker_turns": agent.get("maxTurnsImplementation"),
        "verifier_turns": agent.get("maxTurnsVerification"),
        "verifier_tools": tools,
        "max_attempts": verification.get("maxAttempts"),
        "verify": False if verification.get("disabled") else None,
    }


def _read_tracks(config: JsonTable) -> dict[str, str]:
    """Return the categories of each track; without tracks, one that takes all."""
    tracks = config.get("tracks") or [{"name": "all"}]
    return {track["name"]: ",".join(track.get("categories", [])) for track in tracks}


def _unknown_keys(config: JsonTable) -> Iterator[str]:
    """Yield the keys that have no counterpart in Kapelle."""
    for key, value in config.items():
        if key not in _KNOWN_KEYS:
            yield key
            continue
        known_inner_keys = _KNOWN_KEYS[key]
        if known_inner_keys is not None and isinstance(value, dict):
            for inner_key in value:
                if inner_key not in known_inner_keys:
                    yield f"{key}.{inner_key}"


def _add_tables(config: JsonTable, proposal: Proposal) -> None:
    """Add the tables for failures of the environment, for the container and for the browser."""
    patterns = config.get("criticalPatterns")
    if isinstance(patterns, list) and all(isinstance(pattern, str) for pattern in patterns):
        proposal.tables["failures"] = {"environment": patterns}
    docker = _rename_keys(config.get("worktree") or {}, _DOCKER_KEYS)
    if "service" in docker:
        proposal.tables["workspace.docker"] = docker
    browser = _rename_keys(config.get("browser") or {}, _BROWSER_KEYS)
    if browser:
        proposal.tables["browser"] = browser


def _rename_keys(table: JsonTable, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the values that are set, by the names of Kapelle's settings."""
    return {new: table[old] for old, new in names.items() if table.get(old) not in (None, "", [])}


def _add_directory(directory: Path, prefix: str, proposal: Proposal) -> bool:
    """Add the tools of one directory; return True if something is built there."""
    families: dict[str, ProjectTool] = {}
    for tool in TOOLS:
        if tool.family not in families and _is_used(tool, directory):
            families[tool.family] = tool
            _add_tool(proposal, prefix, tool.name, tool.check, tool.setup)
    for tool in families.values():
        _add_framework(proposal, prefix, tool, directory)
    is_built = bool(families.keys() - {"git"})
    if is_built:
        proposal.copy += [f"{prefix}{name}" for name in _ignored_private_files(directory)]
    return is_built


def _add_framework(proposal: Proposal, prefix: str, tool: ProjectTool, directory: Path) -> None:
    """Add the check of the first framework of a tool that is in use."""
    for framework in FRAMEWORKS:
        if framework.family == tool.family and _is_used(framework, directory):
            check = _framework_check(framework, tool, directory)
            if check:
                _add_tool(proposal, prefix, framework.name, check)
                return


def _add_tool(proposal: Proposal, prefix: str, name: str, check: str, setup: str = "") -> None:
    proposal.found.append(f"{prefix}{name}")
    if check:
        proposal.checks.append(_in_directory(prefix, check))
    if setup:
        proposal.setup.append(_in_directory(prefix, setup))


def _in_directory(prefix: str, command: str) -> str:
    """Return a command that is executed in the directory of a prefix such as `web/`."""
    if prefix:
        return f"(cd {prefix[:-1]} && {command})"
    return command


def _is_used(tool: ProjectTool, directory: Path) -> bool:
    """Tell whether a directory has a file of the tool, with the word that the tool looks for."""
    file, _, word = tool.file.partition(":")
    return any(not word or re.search(word, _read_text(path)) for path in directory.glob(file))


def _framework_check(framework: ProjectTool, tool: ProjectTool, directory: Path) -> str:
    """Return the command of a framework's check; empty if the project has no such script."""
    if framework.family != "node":
        python = f"{tool.run} python"
        if tool.run.endswith("python -m"):
            python = tool.run.removesuffix(" -m")
        return framework.check.format(run=tool.run, python=python)
    try:
        scripts = json.loads(_read_text(directory / "package.json")).get("scripts", {})
        # `npm init` writes a script with this text, which tests nothing.
        real = {name for name, text in scripts.items() if "no test specified" not in str(text)}
    except (ValueError, AttributeError):
        return ""
    for name in framework.check.split():
        if name in real:
            return f"CI=true {tool.run} {name}"
    return ""


def _ignored_private_files(directory: Path) -> Iterator[str]:
    """Yield the private files that are there and ignored by git."""
    lines = _read_text(directory / ".gitignore").splitlines()
    patterns = [line.strip().strip("/") for line in lines]
    for name in _PRIVATE_FILES:
        if (directory / name).is_file() and _is_ignored(name, patterns):
            yield name


def _is_ignored(path: str, patterns: list[str]) -> bool:
    """Tell whether a pattern matches a path or its last part, as git ignores files."""
    base_name = path.rpartition("/")[2]
    return any(fnmatch(path, pattern) or fnmatch(base_name, pattern) for pattern in patterns)


def _read_text(path: Path) -> str:
    """Return the beginning of a regular file; empty if there is none."""
    if not path.is_file():
        return ""  # reading a pipe would block
    with path.open(encoding="utf-8", errors="replace") as stream:
        return stream.read(_MOST_READ)
