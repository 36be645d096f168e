"""The same agents spoken to over the Agent Client Protocol, which has no place for an address.

Provider and model therefore come with each agent's own variables and files.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tests.agents import recipes
from tests.agents.recipes import KEY, Recipe


def acp_claude(own: Path, url: str) -> Recipe:
    plain = recipes.claude(own, url)
    env = {**plain.env, "ANTHROPIC_BASE_URL": url, "ANTHROPIC_MODEL": plain.model}
    settings = {"mode": "bypassPermissions"}
    return replace(plain, program="claude-acp", env=env, settings=settings)


def acp_codex(own: Path, url: str) -> Recipe:
    plain = recipes.codex(own, url)
    config = f"""\
model = "{plain.model}"
model_provider = "scripted"
{plain.files["config.toml"]}
[model_providers.scripted]
name = "scripted"
base_url = "{url}/v1"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
"""
    return replace(
        plain,
        program="codex-acp",
        files={"config.toml": config},
        settings={"mode": "agent-full-access"},
    )


def acp_gemini(own: Path, url: str) -> Recipe:
    plain = recipes.gemini(own, url)
    env = {**plain.env, "GOOGLE_GEMINI_BASE_URL": url}
    arguments = ("--acp", "-m", plain.model)
    return replace(plain, env=env, arguments=arguments, settings={"mode": "yolo"})


def acp_opencode(own: Path, url: str) -> Recipe:
    plain = recipes.opencode(own, url)
    model = f"scripted/{plain.model}"
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{url}/v1", "apiKey": KEY},
        "models": {
            plain.model: {
                "tool_call": True,
                "limit": {"context": 200_000, "output": 8_000},
                "cost": {"input": 3, "output": 15},
            }
        },
    }
    config = {
        "permission": "allow",
        "model": model,
        "small_model": model,
        "autoupdate": False,
        "share": "disabled",
        "provider": {"scripted": provider},
    }
    env = {**plain.env, "OPENCODE_CONFIG_CONTENT": json.dumps(config)}
    return replace(plain, env=env, arguments=("acp",))


def acp_qwen(own: Path, url: str) -> Recipe:
    plain = recipes.qwen(own, url)
    arguments = ("--acp", "--auth-type", "openai", "-m", plain.model)
    env = {**plain.env, "OPENAI_BASE_URL": f"{url}/v1"}
    return replace(plain, env=env, arguments=arguments, settings={"mode": "yolo"})


def acp_copilot(own: Path, url: str) -> Recipe:
    plain = recipes.copilot(own, url)
    env = {**plain.env, "COPILOT_PROVIDER_BASE_URL": f"{url}/v1"}
    arguments = ("--acp", "--allow-all-tools")
    return replace(plain, env=env, arguments=arguments, settings={"model": plain.model})


ACP_RECIPES: dict[str, Callable[[Path, str], Recipe]] = {
    recipe.__name__.replace("_", "-"): recipe
    for recipe in (acp_claude, acp_codex, acp_gemini, acp_opencode, acp_qwen, acp_copilot)
}
