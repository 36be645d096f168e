"""A Claude model through Anthropic's SDK, which is an optional extra."""

from importlib.util import find_spec

from kapelle.agents.adapters.openai import PlainModel
from kapelle.agents.base import Access, AgentRequest, Command
from kapelle.domain.errors import AgentMisconfigured
from kapelle.settings import AgentSettings


class AnthropicAgent(PlainModel):
    package = "pip install 'kapelle[anthropic]'"
    bridge = "kapelle.agents.bridges.anthropic"
    url_variable = "ANTHROPIC_BASE_URL"
    passes = ("ANTHROPIC_*",)

    def __init__(self, name: str, settings: AgentSettings) -> None:
        super().__init__(name, settings)
        self.access = Access(
            ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
            # What the login of Anthropic's own tools leaves for the SDK.
            ("~/.config/anthropic/credentials/default.json", "~/.config/anthropic/active_config"),
            needed=not (settings.base_url or settings.env.get(self.url_variable)),
        )

    def installed(self) -> str | None:
        found = find_spec("anthropic")
        return found.origin if found else None

    def command(self, request: AgentRequest) -> Command:
        if self.installed() is None:
            raise AgentMisconfigured(
                f"The agent {self.name} needs the package anthropic, which is not installed.",
                hint=self.package,
            )
        return super().command(request)
