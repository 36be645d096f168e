"""aider: takes one message, and edits files.

aider has no tools: it edits the files that the model names, and never runs the commands that the
model proposes. It ends after at most four answers to one prompt: the first and three corrections.
"""

import sys

from kapelle.agents.base import Access, AgentAdapter, AgentCommand, AgentRequest, Capabilities

_UNATTENDED = (
    "--yes-always",
    "--no-auto-commits",
    "--no-dirty-commits",
    "--no-gitignore",
    "--no-suggest-shell-commands",
    # Otherwise aider loads every URL in the prompt with a browser, which it installs for that.
    "--no-detect-urls",
    "--no-check-update",
    "--no-show-release-notes",
    "--no-show-model-warnings",
    "--no-analytics",
    "--no-pretty",
    "--no-stream",
    "--no-fancy-input",
)
_ENVIRONMENT = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    # aider opens the URLs in error messages.
    "BROWSER": "true",
    # Otherwise aider wraps its lines.
    "COLUMNS": "100000",
    "PYTHONUNBUFFERED": "1",
    "PYTHONUTF8": "1",
}
# Providers of models by the beginning of a name without a provider.
_PROVIDERS = {
    ("claude", "sonnet", "opus", "haiku"): "anthropic",
    ("gemini", "flash"): "gemini",
    ("deepseek", "r1"): "deepseek",
    ("grok",): "xai",
}


class AiderAgent(AgentAdapter):
    """Runs aider behind a bridge that prints Kapelle's events; a session is a chat history."""

    program = "aider"
    state = (".aider",)
    package = "pipx install aider-chat"
    tested = "0.86.2"
    restraint = None  # it edits what its model names, and runs no commands
    capabilities = Capabilities(
        resume=True, fork=True, model=True, system_prompt=True, usage=True, cost=True,
        terminal=True,
    )  # fmt: skip
    access = Access(
        variables=(
            "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "DEEPSEEK_API_KEY",
            "OPENROUTER_API_KEY", "XAI_API_KEY", "GROQ_API_KEY", "MISTRAL_API_KEY",
        ),
        login_files=("~/.aider/oauth-keys.env",),
        needed=False,
    )  # fmt: skip
    passes = (
        "AIDER_*", "LITELLM_*", "OPENAI_*", "ANTHROPIC_*", "GEMINI_*", "GOOGLE_*", "VERTEXAI_*",
        "DEEPSEEK_*", "OPENROUTER_*", "XAI_*", "GROQ_*", "MISTRAL_*", "COHERE_*", "AZURE_*",
        "AWS_*", "OLLAMA_*", "LM_STUDIO_*", "FIREWORKS_*", "GITHUB_COPILOT_TOKEN",
    )  # fmt: skip

    def command(self, request: AgentRequest) -> AgentCommand:
        files = {}
        argv = [self.executable()]
        if not request.interactive:
            argv += _UNATTENDED
        argv += self.options({"--model": self._model(request)})
        if request.system_prompt:
            files["conventions.md"] = f"{request.system_prompt}\n"
            argv += ["--read", str(request.beside("conventions.md"))]
        if request.interactive:
            self.refuse_prompt(request)
            env = self.environment(request) | {"COLUMNS": ""}
            return AgentCommand(argv + request.settings.extra_args, env, files=files)
        message = request.prompt_file
        if request.prompt.startswith(("/", "!")):
            # aider would execute such a prompt as a command of its own, such as /run.
            message = request.beside("aider.message")
            files[message.name] = f"\n{request.prompt}"
        argv += ["--message-file", str(message), *request.settings.extra_args]
        session = request.session_id
        if session is None or request.fork:
            session = str(request.beside("aider.chat.md"))
        options = {"--session": session, "--logs": message.parent, "--from": request.session_id}
        bridge = [sys.executable, "-I", "-m", "kapelle.agents.bridges.aider"]
        argv = [*bridge, *self.options(options), "--", *argv]
        return AgentCommand(argv, self.environment(request), files=files)

    def environment(self, request: AgentRequest) -> dict[str, str]:
        provider = _provider(self._model(request) or "")
        env = dict(_ENVIRONMENT)
        if request.settings.base_url:
            env[f"{provider}_API_BASE"] = request.settings.base_url
        if request.credential:
            env[f"{provider}_API_KEY"] = request.credential
        return env | request.settings.env

    def _model(self, request: AgentRequest) -> str | None:
        """Return the model with its provider, as aider expects it for a server at base_url."""
        model = request.chosen_model
        if model and request.settings.base_url and "/" not in model:
            return f"openai/{model}"
        return model


def _provider(model: str) -> str:
    """Return the prefix of the provider's variables; OPENAI if the provider is unknown."""
    if "/" in model:
        return model.split("/")[0].upper().replace("-", "_")
    for prefixes, provider in _PROVIDERS.items():
        if model.startswith(prefixes):
            return provider.upper()
    return "OPENAI"
