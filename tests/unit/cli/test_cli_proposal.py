"""What `kapelle init` proposes for the usual kinds of repositories."""

import json
import tomllib
from pathlib import Path

import pytest

from kapelle.cli.init import _config, _container, _tables, _tracks
from kapelle.cli.pattern_file import read_pattern_file
from kapelle.cli.proposal import FRAMEWORKS, TOOLS, propose
from kapelle.patterns.tracks import TracksSpec

VENV = "python3 -m venv .venv && .venv/bin/pip install -q pytest "
SCRIPTS = '{"scripts": {"test": "jest", "build": "x"}, "dependencies": {"%s": "1"}}'

# By files and what stands in them: what is found, the set-up, the checks.
CASES = [
    ({"uv.lock": "", "tests/x": ""}, "uv pytest", "uv sync", "uv run pytest -q"),
    (
        {"poetry.lock": "", "pyproject.toml": "[tool.poetry]\npytest = 1"},
        "poetry pytest",
        "POETRY_VIRTUALENVS_IN_PROJECT=true poetry install",
        "poetry run pytest -q",
    ),
    (
        {"pyproject.toml": "[project]\nname = 'x'\n", "tests/x": ""},
        "pip pytest",
        VENV + "-e .",
        ".venv/bin/python -m pytest -q",
    ),
    ({"setup.py": ""}, "pip", VENV + "-e .", ""),
    (
        {"requirements.txt": "Django>5\n", "manage.py": "import django"},
        "pip Django",
        VENV + "-r requirements.txt",
        ".venv/bin/python manage.py test",
    ),
    (
        {"uv.lock": "", "manage.py": "import django"},
        "uv Django",
        "uv sync",
        "uv run python manage.py test",
    ),
    (
        {"requirements.txt": "flask\n"},
        "pip Flask",
        VENV + "-r requirements.txt",
        ".venv/bin/python -m pytest -q",
    ),
    (
        {"uv.lock": "", "pyproject.toml": 'dependencies = ["fastapi[all]"]'},
        "uv FastAPI",
        "uv sync",
        "uv run pytest -q",
    ),
    (
        {"package-lock.json": "", "package.json": SCRIPTS % "next"},
        "npm Next.js",
        "npm ci",
        "CI=true npm run test",
    ),
    ({"package.json": SCRIPTS % "nuxt"}, "npm Nuxt", "npm install", "CI=true npm run test"),
    (
        {"pnpm-lock.yaml": "", "package.json": SCRIPTS % "@sveltejs/kit"},
        "pnpm SvelteKit",
        "pnpm install --frozen-lockfile",
        "CI=true pnpm run test",
    ),
    (
        {"yarn.lock": "", "package.json": '{"scripts": {"test:unit": "x"}, "x": {"vue": "3"}}'},
        "yarn Vue",
        "yarn install",
        "CI=true yarn run test:unit",
    ),
    ({"package.json": SCRIPTS % "react"}, "npm React", "npm install", "CI=true npm run test"),
    ({"package.json": SCRIPTS % "express"}, "npm Express", "npm install", "CI=true npm run test"),
    (
        {"package.json": '{"scripts": {"test": "echo \\"Error: no test specified\\" && exit 1"}}'},
        "npm",
        "npm install",
        "",
    ),
    ({"Cargo.toml": ""}, "cargo", "cargo fetch", "cargo test"),
    ({"go.mod": ""}, "go", "go mod download", "go test ./..."),
    ({"Gemfile": "", "bin/rails": ""}, "bundler Rails", "bundle install", "bin/rails test"),
    ({"Gemfile": "", "spec/x": ""}, "bundler RSpec", "bundle install", "bundle exec rspec"),
    (
        {"composer.json": "", "artisan": ""},
        "composer Laravel",
        "composer install --no-interaction",
        "php artisan test",
    ),
    ({"pom.xml": "", "mvnw": ""}, "maven", "", "./mvnw -q verify"),
    ({"build.gradle.kts": ""}, "gradle", "", "gradle test"),
    (
        {".gitmodules": "", "go.mod": ""},
        "submodules go",
        "git submodule update --init --recursive && go mod download",
        "go test ./...",
    ),
    ({"Makefile": "all:\n\ntest: all\n"}, "", "", "make test"),
    ({".pre-commit-config.yaml": ""}, ".pre-commit-config.yaml", "", "pre-commit run --all-files"),
    ({"README.md": ""}, "", "", ""),
    ({"package.json": "[broken"}, "npm", "npm install", ""),
]


def fill(top: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(content)


@pytest.mark.parametrize(("files", "found", "setup", "check"), CASES)
def test_a_repository_is_known_by_its_files(
    tmp_path: Path, files: dict[str, str], found: str, setup: str, check: str
) -> None:
    fill(tmp_path, files)
    proposal = propose(tmp_path)
    assert " ".join(proposal.found) == found
    assert (proposal.as_json()["setup"] or "") == setup
    assert proposal.checks == ([check] if check else [])


def test_every_line_of_the_table_is_tried() -> None:
    named = {name for _, found, _, _ in CASES for name in found.split()}
    assert {tool.name for tool in (*TOOLS, *FRAMEWORKS)} - named <= {"rake", "PHPUnit", "scripts"}


def test_a_repository_of_several_parts_is_set_up_in_each(tmp_path: Path) -> None:
    fill(tmp_path, {"api/go.mod": "", "web/package.json": SCRIPTS % "react", ".hidden/go.mod": ""})
    proposal = propose(tmp_path)
    assert proposal.found == ["api/go", "web/npm", "web/React"]
    assert proposal.setup == ["(cd api && go mod download)", "(cd web && npm install)"]
    assert proposal.checks == ["(cd api && go test ./...)", "(cd web && CI=true npm run test)"]


def test_private_files_are_copied_only_where_git_ignores_them(tmp_path: Path) -> None:
    files = {
        "package.json": SCRIPTS % "next",
        ".env": "",
        ".env.local": "",
        ".gitignore": "/.env\n",
    }
    fill(tmp_path, files)
    assert propose(tmp_path).copy == [".env"]


def test_filters_are_found(tmp_path: Path) -> None:
    fill(
        tmp_path,
        {".gitattributes": "# filter=no\n*.psd filter=lfs -text\n*.key filter=git-crypt\n"},
    )
    assert propose(tmp_path).filters == ["git-crypt", "lfs"]


@pytest.mark.parametrize("mark", ["", "# "])
def test_what_is_proposed_is_written_as_toml(tmp_path: Path, mark: str) -> None:
    fill(tmp_path, {"uv.lock": "", "tests/x": ""})
    text = _config(propose(tmp_path).as_toml(), mark)
    accepted = {"checks": ["uv run pytest -q"], "workspace": {"setup": "uv sync"}}
    assert tomllib.loads(text) == ({} if mark else accepted)
    uncommented = [line[2:] if line.startswith(("# checks", "# [workspace]", "# setup")) else line
                   for line in text.splitlines()]  # fmt: skip
    assert tomllib.loads("\n".join(uncommented)) == accepted


def test_the_configuration_of_an_orchestrator_becomes_tracks(tmp_path: Path) -> None:
    (tmp_path / ".orchestrator").mkdir()
    told = {
        "baseBranch": "ai-develop",
        "projectName": 'The "Shop"',
        "tracks": [{"name": "core", "categories": ["auth", "db"], "color": "#3b82f6"}],
        "worktree": {
            "symlinkDirs": ["node_modules"],
            "copyFiles": [".env"],
            "dockerService": "app",
            "dockerWorkDir": "/var/www",
        },
        "agent": {"preferred": "claude", "maxTurnsVerification": 20},
        "verification": {"maxAttempts": 2, "disabled": True, "delayMs": 5000},
        "criticalPatterns": ["ECONNREFUSED"],
        "browser": {"enabled": True, "mcpArgs": ["--headless"]},
        "appUrl": "http://localhost",
    }
    prompts = {"fix": "Fix it.", "notes": "Mine.", "verification": "Look at {{feature}}."}
    for name, text in prompts.items():
        (tmp_path / ".orchestrator" / f"{name}.md").write_text(text, "utf-8")
    (tmp_path / ".orchestrator" / "config.json").write_text(json.dumps(told), "utf-8")
    proposal = propose(tmp_path)
    assert (proposal.copy, proposal.link) == ([".env"], ["node_modules"])
    written = tomllib.loads(_config(proposal.as_toml(), ""))
    assert written["project"] == 'The "Shop"'
    assert tomllib.loads(_tables(proposal.tables, "")) == {
        "failures": {"environment": ["ECONNREFUSED"]},
        "workspace": {"docker": {"service": "app", "workdir": "/var/www"}},
        "browser": {"enabled": True, "args": ["--headless"]},
    }
    assert proposal.dropped == [
        "verification.delayMs of .orchestrator/config.json",
        "appUrl of .orchestrator/config.json",
        ".orchestrator/notes.md",
        ".orchestrator/verification.md (it holds {{feature}})",
    ]
    assert proposal.prompts == {"tracks/fix": "Fix it."}
    (tmp_path / "tracks.toml").write_text(_tracks(proposal.tracks), "utf-8")
    spec = TracksSpec.model_validate(
        read_pattern_file("tracks", tmp_path / "tracks.toml", {}, {"directory": str(tmp_path)})
    )
    assert (spec.base, spec.agent, spec.verifier_turns) == ("ai-develop", "claude", 20)
    assert (spec.max_attempts, spec.verify, spec.tracks) == (2, False, {"core": "auth,db"})
    (tmp_path / ".orchestrator" / "config.json").write_text("[]", "utf-8")
    assert propose(tmp_path).tracks == {}


@pytest.mark.parametrize(
    ("volume", "workdir"),
    [
        ('".:/var/www/html"', "/var/www/html"),
        ("./:/app:cached", "/app"),
        ("{type: bind, source: ., target: /srv}", "/srv"),
    ],
)
def test_the_service_that_mounts_the_repository_is_proposed_as_a_comment(
    tmp_path: Path, volume: str, workdir: str
) -> None:
    database = "  db:\n    image: x\n    volumes: ['data:/data']\n"
    compose = f"services:\n{database}  app:\n    volumes: [{volume}]\n"
    fill(tmp_path, {"docker-compose.yml": compose})
    proposal = propose(tmp_path)
    assert proposal.docker == {"service": "app", "workdir": workdir}
    text = _container(proposal.docker)
    assert tomllib.loads(text) == {}
    rows = [line.removeprefix("# ") for line in text.splitlines()[2:]]
    assert tomllib.loads("\n".join(rows)) == {"workspace": {"docker": proposal.docker}}


@pytest.mark.parametrize(
    "compose",
    ["", "[", "services: 3", "services: {app: {volumes: 3}}", "services: {app: {image: x}}",
     "services: {app: {volumes: ['data:/app', {source: '.'}, 3]}}"],
)  # fmt: skip
def test_a_compose_file_without_such_a_service_proposes_nothing(
    tmp_path: Path, compose: str
) -> None:
    fill(tmp_path, {"compose.yaml": compose})
    assert propose(tmp_path).docker == {}


def test_prompts_that_are_links_are_not_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a key", "utf-8")
    (tmp_path / ".orchestrator").mkdir()
    (tmp_path / ".orchestrator" / "fix.md").symlink_to(secret)
    proposal = propose(tmp_path)
    assert (proposal.prompts, proposal.dropped) == ({}, [".orchestrator/fix.md"])
