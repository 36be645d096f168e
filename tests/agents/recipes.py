"""How each agent is told to use the scripted model, and to keep to a directory of its own.

Nothing here does the work of an adapter: permissions and modes for root, for one, are left to it.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Long, because copilot blanks every occurrence of its key in what it prints.
KEY = "sk-scripted-0123456789abcdef0123456789abcdef"


@dataclass(frozen=True, slots=True)
class Recipe:
    """What one agent needs: its program, the API it speaks, and its surroundings.

    secrets are variables of the user's environment; env and settings go into `[agents.NAME]`, files
    into the agent's own directory; arguments follow the program in an ACP agent's command.
    """

    model: str
    program: str | None = None
    suffix: str = ""
    secrets: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)


def claude(own: Path, url: str) -> Recipe:
    return Recipe(
        model="claude-sonnet-4-5",
        program="claude",
        secrets={"ANTHROPIC_API_KEY": KEY},
        env={
            "CLAUDE_CONFIG_DIR": str(own),
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_TELEMETRY": "1",
            "DISABLE_ERROR_REPORTING": "1",
        },
    )


def codex(own: Path, url: str) -> Recipe:
    return Recipe(
        model="gpt-5.5",
        program="codex",
        suffix="/v1",
        secrets={"OPENAI_API_KEY": KEY},
        env={"CODEX_HOME": str(own)},
        files={"config.toml": "check_for_update_on_startup = false\nanalytics.enabled = false\n"},
    )


def gemini(own: Path, url: str) -> Recipe:
    settings = {
        "general": {"enableAutoUpdate": False},
        "privacy": {"usageStatisticsEnabled": False},
        "security": {"auth": {"selectedType": "gemini-api-key"}},
    }
    return Recipe(
        model="gemini-2.5-pro",
        program="gemini",
        secrets={"GEMINI_API_KEY": KEY},
        env={
            "GEMINI_CLI_HOME": str(own),
            "GEMINI_TELEMETRY_ENABLED": "false",
        },
        files={".gemini/settings.json": json.dumps(settings)},
    )


def opencode(own: Path, url: str) -> Recipe:
    kinds = ("CONFIG", "DATA", "CACHE", "STATE")
    homes = {f"XDG_{kind}_HOME": str(own / kind.lower()) for kind in kinds}
    return Recipe(
        model="m1",
        program="opencode",
        suffix="/v1",
        secrets={"OPENCODE_API_KEY": KEY},
        env={
            **homes,
            "HOME": str(own),
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
            # Where a plugin is given, it would wait for packages that it fetches beside it.
            "npm_config_offline": "true",
        },
    )


def aider(own: Path, url: str) -> Recipe:
    return Recipe(
        model="openai/m1",
        program="aider",
        suffix="/v1",
        secrets={"OPENAI_API_KEY": KEY},
        env={
            "HOME": str(own),
            "AIDER_ANALYTICS_DISABLE": "true",
            "LITELLM_LOCAL_MODEL_COST_MAP": "true",
        },
    )


def qwen(own: Path, url: str) -> Recipe:
    settings = {
        "general": {"enableAutoUpdate": False, "disableUpdateNag": True},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        # It would take steps of the script, in the background, after the last answer.
        "memory": {"enableManagedAutoMemory": False, "enableManagedAutoDream": False},
    }
    return Recipe(
        model="m1",
        program="qwen",
        suffix="/v1",
        secrets={"OPENAI_API_KEY": KEY},
        env={"HOME": str(own)},
        files={".qwen/settings.json": json.dumps(settings)},
    )


def copilot(own: Path, url: str) -> Recipe:
    return Recipe(
        model="gpt-4.1",
        program="copilot",
        suffix="/v1",
        secrets={"COPILOT_PROVIDER_API_KEY": KEY},
        env={"COPILOT_HOME": str(own), "COPILOT_OFFLINE": "true", "COPILOT_AUTO_UPDATE": "false"},
    )


def openai(own: Path, url: str) -> Recipe:
    return Recipe(model="gpt-5.5", suffix="/v1", secrets={"OPENAI_API_KEY": KEY})


def anthropic(own: Path, url: str) -> Recipe:
    return Recipe(model="claude-sonnet-4-5", secrets={"ANTHROPIC_API_KEY": KEY})


RECIPES: dict[str, Callable[[Path, str], Recipe]] = {
    recipe.__name__: recipe
    for recipe in (claude, codex, gemini, opencode, aider, qwen, copilot, openai, anthropic)
}
