"""A Claude model without tools, by Anthropic's Messages API."""

from kapelle.agents.adapters.openai import PlainModel
from kapelle.agents.base import Access


class AnthropicAgent(PlainModel):
    bridge = "kapelle.agents.bridges.anthropic"
    access = Access(("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"))
    url_variable = "ANTHROPIC_BASE_URL"
    passes = ("ANTHROPIC_*",)
