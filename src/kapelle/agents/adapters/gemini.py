"""Gemini CLI: `gemini -o stream-json`, with the prompt by stdin."""

import glob
import os
import uuid
from dataclasses import replace

from kapelle.agents.adapters.gemini_events import has_answer, parse_line
from kapelle.agents.adapters.gemini_settings import are_read_in, settings_of
from kapelle.agents.base import (
    Access,
    AgentEvent,
    AgentRequest,
    Capabilities,
    Command,
    Summary,
    Verdict,
)
from kapelle.agents.endings import failure, how_it_ended, judge_report
from kapelle.agents.failures import classify
from kapelle.agents.program import ProgramAgent
from kapelle.domain.errors import AgentMisconfigured
from kapelle.domain.failures import Failure, FailureClass
from kapelle.domain.task import Exit

# Gemini's own name for the strongest model that the user has access to. Its default, "auto", asks
# another model first which one to take.
_DEFAULT_MODEL = "pro"
_SETTINGS = "gemini-settings.json"
_EXITS = {
    41: FailureClass.AUTHENTICATION,
    42: FailureClass.SESSION_LOST,  # bad input; at the start that is the session
    44: FailureClass.ENVIRONMENT,  # its sandbox
    52: FailureClass.ENVIRONMENT,  # its settings
}
_NO_METHOD = (
    "Gemini knows no way to log in. With a base_url it needs"
    ' {"security": {"auth": {"selectedType": "gemini-api-key"}}} in ~/.gemini/settings.json.'
)
# The exit code of a refused request is its HTTP status modulo 256.
_STATUSES = {
    status % 256: status
    for status in (400, 401, 402, 403, 404, 408, 413, 429, 499, 500, 502, 503, 504, 529)
}


class GeminiAgent(ProgramAgent):
    """Success is exit code 0 after an answer and a result, with nothing that stopped it before.

    Gemini puts the file in place of @path in a prompt, which cannot be turned off. Nothing can be
    added to its system prompt, so the task's stands before the prompt.
    """

    program = "gemini"
    package = "npm install -g @google/gemini-cli"
    tested = "0.61.0"
    capabilities = Capabilities(
        resume=True,
        fork=True,
        model=True,
        system_prompt=True,
        mcp=True,
        acp=True,
        usage=True,
    )
    access = Access(
        variables=("GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_APPLICATION_CREDENTIALS"),
        login_files=("~/.gemini/oauth_creds.json", "~/.gemini/gemini-credentials.json"),
    )
    passes = ("GEMINI_*", "GOOGLE_*", "CLOUDSDK_*", "CODE_ASSIST_*")
    # Marks of a session around the daemon, and of the editor in which it runs.
    drops = (
        "GEMINI_CLI", "GEMINI_PTY_INFO", "GEMINI_CLI_IDE_*", "GEMINI_CLI_WORKTREE_HANDLED",
        "GEMINI_CLI_ACTIVITY_LOG_TARGET",
    )  # fmt: skip

    def command(self, request: AgentRequest) -> Command:
        model = request.model or request.settings.model or _DEFAULT_MODEL
        argv = [self.executable(), "-o", "stream-json", "--approval-mode", "yolo", "-m", model]
        env = self.environment(request)
        # Otherwise it runs as a child of itself, which signals do not reach.
        env |= {"GEMINI_CLI_NO_RELAUNCH": "true", "GEMINI_CLI_TRUST_WORKSPACE": "true"}
        if request.settings.base_url:
            env["GOOGLE_GEMINI_BASE_URL"] = request.settings.base_url
        session, side_log = _session(request, env)
        files = self._settings(request, env)
        if files:
            path = request.prompt_file.parent / _SETTINGS
            env["GEMINI_CLI_SYSTEM_DEFAULTS_PATH"] = str(path)
        return Command(
            argv + session + request.settings.extra_args, env, _stdin(request), files, side_log
        )

    def parse(self, line: str) -> list[AgentEvent]:
        return parse_line(line)

    def judge(self, summary: Summary, exit: Exit, tail: str) -> Verdict:
        verdict = judge_report(summary, exit, tail)
        if not verdict.success:
            found = _unable(summary, exit, tail)
            if found:
                return Verdict(False, found.evidence, failure=found)
            return replace(verdict, failure=_refused(summary, exit, tail))
        if summary.error:
            return failure(summary.error.text, summary.result, "failure")
        if not summary.result or not has_answer(tail):
            reason = "It ended without an answer, as it does when its context is full."
            full = Failure(FailureClass.CONTEXT_OVERFLOW, reason)
            return Verdict(False, reason, summary.result, "success", failure=full)
        return verdict

    def _settings(self, request: AgentRequest, env: dict[str, str]) -> dict[str, str]:
        if are_read_in(request.prompt_file.parent):
            return {_SETTINGS: settings_of(request, env)}
        if request.mcp_servers:
            raise AgentMisconfigured(
                f"The agent {self.name} takes MCP servers only from files that nobody but root can"
                f" change, which {request.prompt_file.parent} is not.",
                hint="""Over ACP it takes them: kapelle config set agents.gemini-acp.type acp, and \
kapelle config set agents.gemini-acp.command '["gemini", "--acp"]'""",
            )
        return {}


def _stdin(request: AgentRequest) -> bytes:
    prompt = request.prompt
    if request.system_prompt:
        prompt = f"<instructions>\n{request.system_prompt}\n</instructions>\n\n{prompt}"
    # What begins with a slash it would take for a command of its own.
    return ("\n" * prompt.startswith("/") + prompt).encode("utf-8", "replace")


def _session(request: AgentRequest, env: dict[str, str]) -> tuple[list[str], str | None]:
    """The options that name the session, and the log in which it is kept, if that is known."""
    session = request.session_id or str(uuid.uuid4())
    home = {**os.environ, **env}.get("GEMINI_CLI_HOME") or env.get("HOME") or "~"
    chats = f"{glob.escape(os.path.expanduser(home))}/.gemini/tmp/*/chats"
    pattern = f"{chats}/session-*-{glob.escape(session[:8])}.jsonl"
    if request.session_id is None:
        return ["--session-id", session], pattern
    # Each time that it is resumed Gemini begins another file, and then goes on in the first.
    first = min(glob.glob(pattern), default=None)
    if request.fork:
        # Its id is not known before.
        return ["--session-file", first or session], None
    return ["--resume", session], glob.escape(first) if first else pattern


def _unable(summary: Summary, exit: Exit, tail: str) -> Failure | None:
    """Why it did not even begin, which only its exit code and standard error tell."""
    if exit.kind != "exited" or summary.session_id:
        return None
    kind = _EXITS.get(exit.code or 0)
    if kind is None:
        return None
    if "Invalid auth method selected" in tail:
        return Failure(kind, _NO_METHOD)
    errors = [line for line in tail.splitlines() if line.startswith("Error ")]
    return Failure(kind, errors[-1] if errors else how_it_ended(exit, tail))


def _refused(summary: Summary, exit: Exit, tail: str) -> Failure | None:
    """What the exit code says of the error that ended it."""
    error = summary.error
    if error is None or error.name or exit.kind != "exited":
        return None
    status = _STATUSES.get(exit.code or 0)
    if exit.code == 1 and "ModelNotFoundError" in tail:
        error = replace(error, name=FailureClass.CAPABILITY)
    elif status:
        # That a quota is exceeded its provider says of any limit, the one per minute included.
        name = FailureClass.RATE_LIMIT if status == 429 else ""
        error = replace(error, name=name, data={**error.data, "status": status})
    else:
        return None
    return classify(replace(summary, error=error), exit, tail)
