"""What `kapelle init` proposes for a repository: set-up and checks that look at the worktree.

One table; the first tool of a family that is found counts, and frameworks only add to it.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

_MOST_READ = 1_000_000


@dataclass(frozen=True)
class Tool:
    """A tool or framework, by a file and perhaps a word in it; {run} is how it calls a program."""

    name: str
    family: str
    file: str
    word: str = ""
    setup: str = ""
    check: str = ""
    run: str = ""
    copy: tuple[str, ...] = ()


_VENV = "python3 -m venv .venv && .venv/bin/pip install -q pytest "
_PYTEST = "{run}pytest -q"
_ENV = (".env", ".env.local")
TOOLS = (
    Tool("submodules", "git", ".gitmodules", setup="git submodule update --init --recursive"),
    Tool("uv", "python", "uv.lock", setup="uv sync", run="uv run "),
    Tool(
        "poetry", "python", "poetry.lock", run="poetry run ",
        setup="POETRY_VIRTUALENVS_IN_PROJECT=true poetry install",
    ),
    Tool(
        "pip", "python", "pyproject.toml", r"(?m)^\[(project|build-system)\]",
        setup=_VENV + "-e .", run=".venv/bin/python -m ",
    ),
    Tool("pip", "python", "setup.py", setup=_VENV + "-e .", run=".venv/bin/python -m "),
    Tool(
        "pip", "python", "requirements.txt", setup=_VENV + "-r requirements.txt",
        run=".venv/bin/python -m ",
    ),
    Tool("pnpm", "node", "pnpm-lock.yaml", setup="pnpm install --frozen-lockfile", run="pnpm run "),
    Tool("yarn", "node", "yarn.lock", setup="yarn install", run="yarn run "),
    Tool("npm", "node", "package-lock.json", setup="npm ci", run="npm run "),
    Tool("npm", "node", "package.json", setup="npm install", run="npm run "),
    Tool("cargo", "rust", "Cargo.toml", setup="cargo fetch", check="cargo test"),
    Tool("go", "go", "go.mod", setup="go mod download", check="go test ./..."),
    Tool("bundler", "ruby", "Gemfile", setup="bundle install", run="bundle exec "),
    Tool("composer", "php", "composer.json", setup="composer install --no-interaction"),
    Tool("maven", "java", "mvnw", check="./mvnw -q verify"),
    Tool("maven", "java", "pom.xml", check="mvn -q verify"),
    Tool("gradle", "java", "gradlew", check="./gradlew test"),
    Tool("gradle", "java", "build.gradle*", check="gradle test"),
)  # fmt: skip
# The frameworks of a family in the order of their claim; {script} is one of package.json.
FRAMEWORKS = (
    Tool("Django", "python", "manage.py", r"django", check="{python}manage.py test", copy=_ENV),
    Tool("Flask", "python", "*.t*", r"(?im)(^|[\"'])flask\b", check=_PYTEST, copy=_ENV),
    Tool("FastAPI", "python", "*.t*", r"(?im)(^|[\"'])fastapi\b", check=_PYTEST, copy=_ENV),
    Tool("pytest", "python", "test*", check=_PYTEST),
    Tool("pytest", "python", "pyproject.toml", r"pytest", check=_PYTEST),
    Tool("Next.js", "node", "package.json", r'"next"\s*:', check="test build lint", copy=_ENV),
    Tool("Nuxt", "node", "package.json", r'"nuxt"\s*:', check="test build", copy=_ENV),
    Tool("SvelteKit", "node", "package.json", r'"@sveltejs/kit"\s*:', check="test check build",
         copy=_ENV),
    Tool("Vue", "node", "package.json", r'"vue"\s*:', check="test test:unit build", copy=_ENV),
    Tool("React", "node", "package.json", r'"react"\s*:', check="test build", copy=_ENV),
    Tool("Express", "node", "package.json", r'"express"\s*:', check="test", copy=_ENV),
    Tool("scripts", "node", "package.json", check="test build"),
    Tool("RSpec", "ruby", "spec", check="{run}rspec"),
    Tool("Rails", "ruby", "bin/rails", check="bin/rails test", copy=(*_ENV, "config/master.key")),
    Tool("rake", "ruby", "Rakefile", check="{run}rake test"),
    Tool("Laravel", "php", "artisan", check="php artisan test", copy=_ENV),
    Tool("PHPUnit", "php", "phpunit.xml*", check="vendor/bin/phpunit"),
)  # fmt: skip


@dataclass
class Proposal:
    """What was found, and the settings that follow from it; filters need a word of the user's."""

    found: list[str] = field(default_factory=list)
    setup: list[str] = field(default_factory=list)
    checks: list[str] = field(default_factory=list)
    copy: list[str] = field(default_factory=list)
    filters: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "setup": " && ".join(self.setup) or None}

    def as_toml(self) -> dict[str, str]:
        """What is proposed by the name of its setting, as it is written in a config file."""
        given = {"checks": self.checks, "copy": self.copy, "setup": " && ".join(self.setup)}
        # JSON writes texts and lists of them as TOML does.
        return {name: json.dumps(one, ensure_ascii=False) for name, one in given.items() if one}


def propose(top: Path) -> Proposal:
    """Look at the top of a repository, or one level below it where nothing is built at the top."""
    filters = re.findall(r"(?m)^[^#\n]*\bfilter=(\S+)", _text(top / ".gitattributes"))
    proposal = Proposal(filters=sorted({*filters}))
    if not _look(top, "", proposal):
        for place in sorted(path for path in top.iterdir() if not path.name.startswith(".")):
            if place.is_dir() and re.fullmatch(r"[\w.-]+", place.name):
                _look(place, f"{place.name}/", proposal)
    if not proposal.checks and re.search(r"(?m)^test\s*:", _text(top / "Makefile")):
        proposal.checks.append("make test")
    return proposal


def _look(place: Path, prefix: str, proposal: Proposal) -> bool:
    """Add what one directory asks for; whether something is built there."""
    families: dict[str, Tool] = {}
    for tool in TOOLS:
        if tool.family not in families and _is_there(tool, place):
            families[tool.family] = tool
            proposal.found.append(prefix + tool.name)
            proposal.setup += [_inside(prefix, tool.setup)] if tool.setup else []
            proposal.checks += [_inside(prefix, tool.check)] if tool.check else []
    for family, tool in families.items():
        for framework in FRAMEWORKS:
            check = _check(framework, tool, place) if framework.family == family else ""
            if check and _is_there(framework, place):
                proposal.found.append(prefix + framework.name)
                proposal.checks.append(_inside(prefix, check))
                proposal.copy += [prefix + name for name in _private(framework, place)]
                break
    return bool(families.keys() - {"git"})


def _is_there(tool: Tool, place: Path) -> bool:
    found = [*place.glob(tool.file)]
    return any(not tool.word or re.search(tool.word, _text(path)) for path in found)


def _check(framework: Tool, tool: Tool, place: Path) -> str:
    if framework.family != "node":
        is_python = tool.run.endswith("python -m ")
        python = tool.run.removesuffix("-m ") if is_python else f"{tool.run}python "
        return framework.check.format(run=tool.run, python=python)
    try:
        scripts = json.loads(_text(place / "package.json")).get("scripts", {})
    except (ValueError, AttributeError):
        return ""
    # What `npm init` writes is no test.
    real = [name for name, text in scripts.items() if "no test specified" not in str(text)]
    return next(
        (f"CI=true {tool.run}{name}" for name in framework.check.split() if name in real), ""
    )


def _private(tool: Tool, place: Path) -> Iterator[str]:
    """Files that are there and ignored, so that a worktree has none."""
    ignored = [line.strip().strip("/") for line in _text(place / ".gitignore").splitlines()]
    for name in tool.copy:
        names = (name, name.rpartition("/")[2])
        if (place / name).is_file() and any(fnmatch(n, p) for n in names for p in ignored):
            yield name


def _inside(prefix: str, command: str) -> str:
    return f"(cd {prefix.rstrip('/')} && {command})" if prefix else command


def _text(path: Path) -> str:
    if not path.is_file():
        return ""  # a pipe would be waited for
    with path.open(encoding="utf-8", errors="replace") as stream:
        return stream.read(_MOST_READ)
