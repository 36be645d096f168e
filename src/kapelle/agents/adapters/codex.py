"""Codex CLI: `codex exec --json`, with the prompt by stdin."""

import glob
import os
import re
from collections.abc import Mapping

from kapelle.agents.adapters.codex_config import mcp_files, mcp_variables, overrides
from kapelle.agents.adapters.codex_events import parse_line
from kapelle.agents.base import (
    Access,
    AgentEvent,
    AgentRequest,
    Capabilities,
    Command,
    Summary,
    Verdict,
)
from kapelle.agents.program import LONGEST_ARGUMENT, ProgramAgent
from kapelle.domain.errors import AgentMisconfigured
from kapelle.domain.failures import Failure, FailureClass
from kapelle.domain.task import Exit
from kapelle.settings import AgentSettings

_KEYS = ("CODEX_API_KEY", "OPENAI_API_KEY")
_SANDBOXES = ("-s", "--sandbox", "--approve-for-me", "--dangerously-bypass-approvals-and-sandbox")
# What it says on stderr, and only there, when it cannot begin at all.
_LOST_SESSION = re.compile(
    r"thread/(?:resume|fork) failed: (no rollout found\b.*|failed to read thread\b.*)"
)
_MCP_FAILED = re.compile(r"required MCP servers failed to initialize: (.*)")
_QUOTE = 300


class CodexAgent(ProgramAgent):
    """Success is exit code 0 after turn.completed; usage is in its rollout file alone.

    What turn.completed tells of usage is the session's, less what a killed run had used.
    """

    program = "codex"
    package = "npm install -g @openai/codex"
    tested = "0.166.0"
    capabilities = Capabilities(
        resume=True,
        fork=True,
        model=True,
        system_prompt=True,
        mcp=True,
        hooks=True,
        usage=True,
    )
    passes = (
        *_KEYS, "CODEX_HOME", "CODEX_SQLITE_HOME", "CODEX_CA_CERTIFICATE",
        "CODEX_OSS_BASE_URL", "CODEX_OSS_PORT", "OPENAI_ORGANIZATION", "OPENAI_PROJECT",
        "AZURE_OPENAI_API_KEY",
    )  # fmt: skip
    drops = (
        "CODEX_THREAD_ID", "CODEX_SESSION_ID", "CODEX_TOOL_CALL_ID", "CODEX_CI", "CODEX_VERSION",
        "CODEX_SANDBOX*", "CODEX_NETWORK_*", "CODEX_SNAPSHOT_*", "CODEX_PERMISSION_PROFILE",
        "CODEX_INTERNAL_*", "CODEX_MANAGED_*",
    )  # fmt: skip

    def __init__(self, name: str, settings: AgentSettings) -> None:
        super().__init__(name, settings)
        if settings.base_url:
            self.access = Access(_KEYS, needed=False)
        else:
            # Its own provider takes no key from OPENAI_API_KEY.
            login = os.path.join(_home({**os.environ, **settings.env}), "auth.json")
            self.access = Access(("CODEX_API_KEY",), (login,))

    def command(self, request: AgentRequest) -> Command:
        env = self.environment(request)
        argv = [self.executable(), "exec", "--json", "--skip-git-repo-check"]
        extra = request.settings.extra_args
        if not any(argument.split("=")[0] in _SANDBOXES for argument in extra):
            argv.append("--dangerously-bypass-approvals-and-sandbox")
        if model := request.model or request.settings.model:
            argv += ["-m", model]
        places = (env, request.environ, os.environ)
        for override in overrides(request, _key_variable(*places)):
            argv += ["-c", self._fitting(override)]
        argv += extra
        # Options are not known any more after the subcommand.
        if request.session_id:
            argv += ["fork" if request.fork else "resume", request.session_id]
        home = glob.escape(
            os.path.join(request.workspace, _home({**os.environ, **request.environ, **env}))
        )
        return Command(
            [*argv, "-"],
            mcp_variables(request) | env,
            _prompt(request).encode("utf-8", "replace"),
            mcp_files(request),
            f"{home}/sessions/**/rollout-*-{{session}}.jsonl",
        )

    def parse(self, line: str) -> list[AgentEvent]:
        return parse_line(line)

    def judge(self, summary: Summary, exit: Exit, tail: str) -> Verdict:
        verdict = super().judge(summary, exit, tail)
        if verdict.success or summary.session_id is not None or exit.kind != "exited":
            return verdict
        if found := _MCP_FAILED.search(tail):
            said = f"An MCP server did not start: {found[1][:_QUOTE]}"
            return Verdict(False, said, failure=Failure(FailureClass.TOOL, said))
        if found := _LOST_SESSION.search(tail):
            lost = Failure(FailureClass.SESSION_LOST, f"it said: {found[1][:_QUOTE]}")
            return Verdict(False, "Codex does not have the session any more.", failure=lost)
        return verdict

    def _fitting(self, override: str) -> str:
        size = len(override.encode("utf-8", "replace"))
        if size > LONGEST_ARGUMENT:
            key = override.partition("=")[0]
            raise AgentMisconfigured(
                f"{self.name} takes {key} as one argument, and {size:,} bytes are too many for it:"
                f" more than {LONGEST_ARGUMENT:,} do not fit on a command line.",
                hint="Move the longer part of the system prompt into the prompt.",
            )
        return override


def _prompt(request: AgentRequest) -> str:
    """A session keeps the instructions it began with: those of another task's follow-up go here."""
    if request.system_prompt and request.session_id and request.fork:
        return f"{request.system_prompt}\n\n{request.prompt}"
    return request.prompt


def _home(env: Mapping[str, str]) -> str:
    """Where it keeps its sessions and its login."""
    return env.get("CODEX_HOME") or os.path.join(
        env.get("HOME") or os.path.expanduser("~"), ".codex"
    )


def _key_variable(*places: Mapping[str, str]) -> str | None:
    """The variable that holds the key for a server of the user's own, if it wants one."""
    return next((name for place in places for name in _KEYS if place.get(name)), None)
