"""A bare model, without tools: any OpenAI-compatible chat endpoint, such as Ollama or vLLM."""

import sys
from dataclasses import replace
from typing import ClassVar

from kapelle.agents.base import Access, AgentAdapter, AgentCommand, AgentRequest, Capabilities
from kapelle.agents.bridges.base import is_address
from kapelle.domain.errors import AgentMisconfigured
from kapelle.settings import AgentSettings

SYSTEM_FILE = "system-prompt.txt"


class PlainModel(AgentAdapter):
    """Runs a bridge with this Python, for one question and one answer.

    The bridge takes the key and the base URL from environment variables.
    """

    program = sys.executable
    package = "pip install kapelle"
    bridge: ClassVar[str]  # the module
    capabilities = Capabilities(model=True, system_prompt=True, usage=True, read_only=True)
    restraint = None  # it has no tools

    def __init__(self, name: str, settings: AgentSettings) -> None:
        super().__init__(name, settings)
        # A server of the user's own usually needs no key.
        own_server = settings.base_url or settings.env.get(self.url_variable or "")
        self.access = replace(self.access, needed=not own_server)

    def installed(self) -> str | None:
        return sys.executable

    def command(self, request: AgentRequest) -> AgentCommand:
        base_url = request.settings.base_url
        if base_url and not is_address(base_url):
            text = f"The base_url of {self.name} must be an http(s):// URL without a password."
            hint = f"kapelle agents config set {self.name} base_url http://localhost:11434/v1"
            raise AgentMisconfigured(text, hint=hint, remedy="")
        # -P keeps modules of the workspace, where the bridge runs, from replacing others.
        argv = [sys.executable, "-P", "-m", self.bridge, "--model", self.require_model(request)]
        files = {}
        if request.system_prompt:
            files[SYSTEM_FILE] = request.system_prompt
            argv += ["--system-file", str(request.beside(SYSTEM_FILE))]
        env = self.environment(request)
        return AgentCommand(argv + request.settings.extra_args, env, request.stdin, files)


class OpenaiAgent(PlainModel):
    bridge = "kapelle.agents.bridges.chat"
    access = Access(("OPENAI_API_KEY",))
    url_variable = "OPENAI_BASE_URL"
    passes = ("OPENAI_API_KEY", "OPENAI_BASE_URL")
