"""A private place to run one agent against the scripted model, through Kapelle or by hand."""

import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomlkit

from tests.agents.acp_recipes import ACP_RECIPES
from tests.agents.model import ModelServer, Scripts
from tests.agents.programs import cache, program
from tests.agents.recipes import RECIPES, Recipe
from tests.e2e.support.instance import Instance

AGENTS = (*RECIPES, *ACP_RECIPES)


class Unavailable(Exception):
    """Why an agent cannot be run here; a test skips with this sentence."""


@dataclass(frozen=True, slots=True)
class AgentSetup:
    """One agent's place: config is the text of config.toml, environment what the user exports."""

    agent: str
    lane: str
    model: ModelServer
    recipe: Recipe
    root: Path
    settings: Mapping[str, Any]

    @property
    def scripts(self) -> Scripts:
        return self.model.scripts

    @property
    def home(self) -> Path:
        """Kapelle's own directory."""
        return self.root / "home"

    @property
    def own(self) -> Path:
        """The agent's own directory."""
        return self.root / "agent"

    @property
    def config(self) -> str:
        return tomlkit.dumps(
            {"default_agent": self.agent, "agents": {self.agent: dict(self.settings)}}
        )

    @property
    def environment(self) -> dict[str, str]:
        return dict(self.recipe.secrets)

    def instance(self, **extra: str) -> Instance:
        """A daemon, not yet started, that knows this agent; the caller destroys it."""
        self.home.mkdir(exist_ok=True)
        (self.home / "config.toml").write_text(self.config, encoding="utf-8")
        return Instance(self.home, **(self.environment | extra))


@contextmanager
def agent_setup(
    agent: str, server: ModelServer, lane: str | None = None, **settings: Any
) -> Iterator[AgentSetup]:
    """A setup that is gone after the block; settings replace those of the agent, None removes one.

    Raises Unavailable when the agent's program is not installed.
    """
    lane = lane or _own_lane(agent)
    with private_root() as root:
        recipe = (RECIPES | ACP_RECIPES)[agent](root / "agent", server.url(lane))
        (root / "agent").mkdir()
        for name, content in recipe.files.items():
            path = root / "agent" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
        known = _settings(agent, recipe, server.url(lane, recipe.suffix))
        asked = {key: value for key, value in (known | settings).items() if value is not None}
        yield AgentSetup(agent, lane, server, recipe, root, asked)


@contextmanager
def private_root() -> Iterator[Path]:
    """A new directory with no world-writable parent: below one, Gemini ignores its settings."""
    homes = cache() / "homes"
    homes.mkdir(parents=True, exist_ok=True)
    root = homes / secrets.token_hex(4)
    root.mkdir(mode=0o700)
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _settings(agent: str, recipe: Recipe, base_url: str) -> dict[str, Any]:
    found = program(recipe.program) if recipe.program else None
    if isinstance(found, str):
        raise Unavailable(found)
    if agent in ACP_RECIPES:
        # Kapelle cannot know which variable holds the key of any program that speaks ACP.
        env = {**recipe.env, **recipe.secrets}
        command = [str(found), *recipe.arguments]
        return {"type": "acp", "command": command, "env": env, **recipe.settings}
    settings: dict[str, Any] = {"type": agent, "base_url": base_url, "model": recipe.model}
    if found:
        settings |= {"program": str(found), "env": dict(recipe.env)}
    return settings


def _own_lane(agent: str) -> str:
    # Requests of plain models offer no tools; only such a lane gives them steps.
    kind = "plain-" if agent in {"openai", "anthropic"} else ""
    return f"{kind}{agent}-{secrets.token_hex(3)}"
