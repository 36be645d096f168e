"""Any model behind an OpenAI-compatible chat endpoint: OpenAI, Ollama, vLLM, LM Studio and more."""

from kapelle.agents.adapters.plain import PlainModel
from kapelle.agents.base import Access
from kapelle.settings import AgentSettings


class OpenaiAgent(PlainModel):
    package = "pip install kapelle"
    bridge = "kapelle.agents.bridges.openai"
    address = "OPENAI_BASE_URL"
    passes = ("OPENAI_API_KEY", "OPENAI_BASE_URL")

    def __init__(self, name: str, settings: AgentSettings) -> None:
        super().__init__(name, settings)
        # A server of one's own usually wants no key.
        own = settings.base_url or settings.env.get(self.address)
        self.access = Access(("OPENAI_API_KEY",), needed=not own)
