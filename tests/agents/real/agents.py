"""Which agents are tried at what."""

CLIS = ("claude", "codex", "gemini", "opencode", "aider", "qwen", "copilot")
ACP = ("acp-claude", "acp-codex", "acp-gemini", "acp-opencode", "acp-qwen", "acp-copilot")
ALL = (*CLIS, *ACP)
# Aider has no tools: it edits files in its answers, and runs nothing by itself.
WITH_TOOLS = tuple(name for name in ALL if name != "aider")
