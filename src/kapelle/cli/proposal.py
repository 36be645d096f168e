"""What `kapelle init` proposes for a repository: set-up and checks that look at the worktree.

By the tables of proposal.toml: the first tool of a family counts, and a framework only adds to it.
"""

import json
import os
import re
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatch
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

_MOST_READ = 1_000_000
_LONGEST_NAME = 200
# Files that programs want and git ignores, so that a worktree has none.
_PRIVATE = (".env", ".env.local", "config/master.key")


class ProjectTool(NamedTuple):
    """A tool or framework: by a file, or a word in it after a colon; run is how it calls one."""

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
    """What was found, and the settings that follow from it; filters need a word of the user's."""

    found: list[str] = field(default_factory=list)
    setup: list[str] = field(default_factory=list)
    checks: list[str] = field(default_factory=list)
    copy: list[str] = field(default_factory=list)
    link: list[str] = field(default_factory=list)
    filters: list[str] = field(default_factory=list)
    project: str | None = None
    tracks: dict[str, Any] = field(default_factory=dict)
    # Further tables of the configuration, and what of another program's is not taken over.
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)
    # The service of a compose file that mounts the repository: it is only ever a comment, because
    # a service that publishes ports cannot run for two worktrees.
    docker: dict[str, Any] = field(default_factory=dict)
    # Texts of roles by PATTERN/ROLE, and the files that they are taken from.
    prompts: dict[str, str] = field(default_factory=dict)
    prompt_files: dict[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        values = asdict(self)
        del values["prompts"]
        return {**values, "setup": " && ".join(self.setup) or None}

    def as_toml(self) -> dict[str, str]:
        """What is proposed by the name of its setting, as it is written in a config file."""
        names = ("project", "checks", "copy", "link", "setup")
        given = [(name, self.as_json()[name]) for name in names]
        # JSON writes texts and lists of them as TOML does.
        return {name: json.dumps(one, ensure_ascii=False) for name, one in given if one}


# The keys of .orchestrator/config.json that have a counterpart, and Kapelle's names for some.
_DOCKER = {"dockerService": "service", "dockerWorkDir": "workdir"}
_BROWSER = {
    "enabled": "enabled", "mcpPackage": "package", "mcpArgs": "args", "mcpServerName": "server",
}  # fmt: skip
_ROLES = {
    "implementation.md": "tracks/implement",
    "verification.md": "tracks/verify",
    "fix.md": "tracks/fix",
}
_PLACEHOLDER = re.compile(r"\{\{[^{}\n]{1,60}\}\}|\$\{\w{1,60}\}")
# In the order of the engine.
_COMPOSE = ("compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml")
_TAKEN_OVER: dict[str, set[str] | None] = {
    **dict.fromkeys(
        ("tracks", "featuresFile", "instructionsFile", "progressFile", "baseBranch",
         "criticalPatterns", "projectName")
    ),
    "worktree": {"symlinkDirs", "copyFiles", *_DOCKER},
    "agent": {
        "preferred", "fallbackAgents", "maxTurnsImplementation", "maxTurnsVerification",
        "allowedToolsVerification",
    },
    "verification": {"maxAttempts", "disabled"},
    "browser": set(_BROWSER),
}  # fmt: skip


def _left_over(given: dict[str, Any]) -> Iterator[str]:
    """The keys that have no counterpart."""
    for name, value in given.items():
        inner = _TAKEN_OVER.get(name)
        if name not in _TAKEN_OVER:
            yield name
        elif inner is not None and isinstance(value, dict):
            yield from (f"{name}.{key}" for key in value if key not in inner)


def propose(top: Path) -> Proposal:
    """Look at the top of a repository, or one level below it where nothing is built at the top."""
    filters = re.findall(r"(?m)^[^#\n]*\bfilter=(\w[\w-]*)", _text(top / ".gitattributes"))
    proposal = Proposal(filters=sorted({*filters}))
    if not _look(top, "", proposal):
        for place in sorted(top.iterdir()):
            if place.is_dir() and re.fullmatch(r"[\w-][\w.-]*", place.name):
                _look(place, f"{place.name}/", proposal)
    if not proposal.checks and re.search(r"(?m)^test\s*:", _text(top / "Makefile")):
        proposal.checks.append("make test")
    if os.path.isfile(top / ".pre-commit-config.yaml"):
        proposal.found.append(".pre-commit-config.yaml")
        proposal.checks.append("pre-commit run --all-files")
    _understand(top / ".orchestrator" / "config.json", proposal)
    _take_over_prompts(top / ".orchestrator", proposal)
    if "workspace.docker" not in proposal.tables:
        proposal.docker = _compose_service(top)
    return proposal


def _compose_service(top: Path) -> dict[str, Any]:
    """Return the settings for the first service of a compose file that mounts the repository."""
    for name in _COMPOSE:
        text = _text(top / name)
        if text:
            break
    else:
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


def _mount_of_repository(volume: Any) -> str | None:
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


def _take_over_prompts(directory: Path, proposal: Proposal) -> None:
    """Add the prompts of an orchestrator of features whose text says everything by itself."""
    if directory.is_symlink() or not directory.is_dir():
        return
    for path in sorted(directory.glob("*.md")):
        name = f".orchestrator/{path.name}"
        role = _ROLES.get(path.name)
        # A stranger's link could lead to any file of this person.
        text = "" if path.is_symlink() else _text(path)
        if role is None or not text.strip():
            proposal.dropped.append(name)
        elif placeholders := sorted(set(_PLACEHOLDER.findall(text))):
            proposal.dropped.append(f"{name} (it holds {', '.join(placeholders[:3])})")
        else:
            proposal.prompts[role] = text
            proposal.prompt_files[role] = name


def _understand(path: Path, proposal: Proposal) -> None:
    """Add what the configuration of an orchestrator of features asks for."""
    try:
        given = json.loads(_text(path) or "{}")
        told = {name: given.get(name) or {} for name in ("worktree", "agent", "verification")}
        rows = [{"name": "all"}, *given.get("tracks", [])][1 if given.get("tracks") else 0 :]
        tracks = {row["name"]: ",".join(row.get("categories", [])) for row in rows}
    except (ValueError, AttributeError, TypeError, KeyError):
        return
    if not given:
        return
    proposal.found.append(".orchestrator/config.json")
    _take_over_tables(given, proposal)
    dropped = [*_left_over(given)]
    name = given.get("projectName")
    if isinstance(name, str) and name.isprintable() and 0 < len(name) <= _LONGEST_NAME:
        proposal.project = name
    elif name is not None:
        dropped.append("projectName")
    proposal.dropped += [f"{name} of .orchestrator/config.json" for name in dropped]
    proposal.copy += [
        name for name in told["worktree"].get("copyFiles", []) if name not in proposal.copy
    ]
    proposal.link += told["worktree"].get("symlinkDirs", [])
    agent = told["agent"]
    verification = told["verification"]
    names = agent.get("allowedToolsVerification") or []
    spec = {
        "features": given.get("featuresFile"),
        "instructions": given.get("instructionsFile"),
        "progress_file": given.get("progressFile"),
        "base": given.get("baseBranch"),
        "agent": agent.get("preferred"),
        "fallback_agents": agent.get("fallbackAgents"),
        "worker_turns": agent.get("maxTurnsImplementation"),
        "verifier_turns": agent.get("maxTurnsVerification"),
        "verifier_tools": names.split(",") if isinstance(names, str) else names,
        "max_attempts": verification.get("maxAttempts"),
        "verify": False if verification.get("disabled") else None,
        "checks": proposal.checks,
        "tracks": tracks,
    }
    proposal.tracks = {name: value for name, value in spec.items() if value not in (None, [])}


def _take_over_tables(given: dict[str, Any], proposal: Proposal) -> None:
    """Add the failures of the environment, the container and the browser that it names."""
    patterns = given.get("criticalPatterns")
    if isinstance(patterns, list) and all(isinstance(one, str) for one in patterns):
        proposal.tables["failures"] = {"environment": patterns}
    docker = _renamed(given.get("worktree") or {}, _DOCKER)
    if "service" in docker:
        proposal.tables["workspace.docker"] = docker
    if browser := _renamed(given.get("browser") or {}, _BROWSER):
        proposal.tables["browser"] = browser


def _renamed(given: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """The values that are set, by the names of Kapelle's settings."""
    return {new: given[old] for old, new in names.items() if given.get(old) not in (None, "", [])}


def _look(place: Path, prefix: str, proposal: Proposal) -> bool:
    """Add what one directory asks for; whether something is built there."""
    families: dict[str, ProjectTool] = {}
    for tool in TOOLS:
        if tool.family not in families and _is_there(tool, place):
            families[tool.family] = tool
            _add(proposal, prefix, tool.name, tool.check, tool.setup)
    for tool in families.values():
        for framework in (one for one in FRAMEWORKS if one.family == tool.family):
            check = _is_there(framework, place) and _check(framework, tool, place)
            if check:
                _add(proposal, prefix, framework.name, check)
                break
    is_built = bool(families.keys() - {"git"})
    proposal.copy += [f"{prefix}{name}" for name in _private(place) if is_built]
    return is_built


def _add(proposal: Proposal, prefix: str, name: str, check: str, setup: str = "") -> None:
    proposal.found.append(f"{prefix}{name}")
    for commands, command in ((proposal.checks, check), (proposal.setup, setup)):
        if command:
            commands.append(f"(cd {prefix[:-1]} && {command})" if prefix else command)


def _is_there(tool: ProjectTool, place: Path) -> bool:
    file, _, word = tool.file.partition(":")
    return any(not word or re.search(word, _text(path)) for path in place.glob(file))


def _check(framework: ProjectTool, tool: ProjectTool, place: Path) -> str:
    if framework.family != "node":
        runs = tool.run.endswith("python -m")
        if runs:
            python = tool.run.removesuffix(" -m")
        else:
            python = f"{tool.run} python"
        return framework.check.format(run=tool.run, python=python)
    try:
        scripts = json.loads(_text(place / "package.json")).get("scripts", {})
    except (ValueError, AttributeError):
        return ""
    # What `npm init` writes is no test.
    real = [name for name, text in scripts.items() if "no test specified" not in str(text)]
    names = (name for name in framework.check.split() if name in real)
    return next((f"CI=true {tool.run} {name}" for name in names), "")


def _private(place: Path) -> Iterator[str]:
    """Files that are there and ignored."""
    ignored = [line.strip().strip("/") for line in _text(place / ".gitignore").splitlines()]
    for name in _PRIVATE:
        names = (name, name.rpartition("/")[2])
        if (place / name).is_file() and any(fnmatch(n, p) for n in names for p in ignored):
            yield name


def _text(path: Path) -> str:
    if not path.is_file():
        return ""  # a pipe would be waited for
    with path.open(encoding="utf-8", errors="replace") as stream:
        return stream.read(_MOST_READ)
