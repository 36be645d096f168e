"""Gemini CLI: `gemini -o stream-json`, with the prompt by stdin."""

import glob
import json
import os
import re
import stat
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from kapelle.agents.base import (
    Access,
    AgentAdapter,
    AgentCommand,
    AgentRequest,
    AgentVerdict,
    Capabilities,
    Summary,
)
from kapelle.agents.events import AgentEvent, JsonObject, error, json_object, usage
from kapelle.agents.failures import choose_type, classify
from kapelle.domain.errors import AgentMisconfigured
from kapelle.domain.failures import Failure, FailureClass
from kapelle.domain.task import Exit

_API_ERROR = re.compile(r"\[API Error: (\{.*\})\]", re.DOTALL)
_CHOICES = frozenset({"pro", "flash", "flash-lite"})
_NO_QUOTA = re.compile(r"\blimit: 0(?![\d.])|requires billing to be enabled")
# Gemini's own name for the strongest model that the user has access to. Its default, "auto", asks
# another model first which one to take.
_DEFAULT_MODEL = "pro"
_SETTINGS = "gemini-settings.json"
_NO_METHOD = (
    "Gemini knows no way to log in. With a base_url it needs"
    ' {"security": {"auth": {"selectedType": "gemini-api-key"}}} in ~/.gemini/settings.json.'
)
# The exit code of a refused request is its HTTP status modulo 256.
_STATUSES = {
    status % 256: status
    for status in (400, 401, 402, 403, 404, 408, 413, 429, 499, 500, 502, 503, 504, 529)
}
# Kapelle itself tries again, and knows when.
_ATTEMPTS = 3
_WRITING = "write_file|replace|run_shell_command"
_QUOTE = 300
_LOG = "gemini.log"
# Without the first it runs as a child of itself, which signals do not reach.
_VARIABLES = {"GEMINI_CLI_NO_RELAUNCH": "true", "GEMINI_CLI_TRUST_WORKSPACE": "true"}
# What it says of a request that it makes again.
_RETRIED = re.compile(r"Attempt \d+ failed(?: with status (\d{3}))?\b.*?Retrying")


class GeminiAgent(AgentAdapter):
    """Success is exit code 0 after an answer and a result, with nothing that stopped it before.

    Gemini puts the file in place of @path in a prompt, which cannot be turned off. Nothing can be
    added to its system prompt, so the task's stands before the prompt.
    """

    program = "gemini"
    package = "npm install -g @google/gemini-cli"
    tested = "0.61.0"
    restraint = (["--approval-mode", "yolo"], ["--approval-mode", "auto_edit"])
    capabilities = Capabilities(
        resume=True, fork=True, model=True, system_prompt=True, mcp=True, acp=True, usage=True,
        tools=True, terminal=True,
    )  # fmt: skip
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

    home = ("GEMINI_CLI_HOME", "")
    last_words = ((r"Error resuming session: .*", FailureClass.SESSION_LOST),)
    exits: ClassVar = {
        41: FailureClass.AUTHENTICATION,
        42: FailureClass.SESSION_LOST,  # bad input; without a word about it, that is the session
        44: FailureClass.ENVIRONMENT,  # its sandbox
        52: FailureClass.ENVIRONMENT,  # its settings
    }
    # It cannot make new files through a client's file system.
    beside_acp = ("daemon",)
    url_variable = "GOOGLE_GEMINI_BASE_URL"

    def over_acp(self, request: AgentRequest) -> AgentCommand:
        # Over ACP it keeps standard error to itself until it ends.
        log = str(request.beside(_LOG))
        env = {**_VARIABLES, "GEMINI_DEBUG_LOG_FILE": log}
        return AgentCommand([], env, side_log=glob.escape(log))

    def command(self, request: AgentRequest) -> AgentCommand:
        model = request.chosen_model or _DEFAULT_MODEL
        if request.interactive:
            unattended = []
        else:
            unattended = ["-o", "stream-json", "--approval-mode", "yolo"]
        argv = [self.executable(), *unattended, "-m", model]
        env = self.environment(request) | _VARIABLES
        session, side_log = _session(request, self.home_in(request.environ, env))
        argv += session + request.settings.extra_args
        files = self._settings(request, env)
        if files:
            env["GEMINI_CLI_SYSTEM_DEFAULTS_PATH"] = str(request.beside(_SETTINGS))
        if request.interactive:
            # It has no place for a system prompt but before the prompt.
            told = replace(request, prompt=_stdin(request).decode())
            return AgentCommand(argv + told.first_words("-i"), env, files=files)
        return AgentCommand(argv, env, _stdin(request), files, side_log)

    def parse(self, line: str) -> list[AgentEvent]:
        """The events of one line; what is no JSON object is at most one of its log."""
        value = json_object(line)
        if not value:
            return self.parse_stderr(line)
        match value.get("type"):
            case "init":
                session = value.text("session_id")
                model = value.text("model")
                # The name of a choice of models has no price; which one it came to is told later.
                named = model not in _CHOICES and not model.startswith("auto")
                events = [AgentEvent("session", session)]
                if named:
                    return [*events, AgentEvent("model", model)]
                return events
            case "message" if value.get("role") == "assistant":
                return [AgentEvent("text", value.text("content"), data={"delta": True})]
            case "tool_use":
                name = value.text("tool_name")
                return [AgentEvent("tool_call", name=name, data=value.mapping("parameters"))]
            case "tool_result":
                # The id of a call begins with the name of its tool.
                name = value.text("tool_id").rpartition("__")[0]
                said = value.text("output") or value.text("error", "message")
                return [AgentEvent("tool_result", said, name)]
            case "error":
                return [_problem(value)]
            case "result":
                return _result(value)
            case "gemini":
                return _answer(value)
        return []

    def parse_stderr(self, line: str) -> list[AgentEvent]:
        found = _RETRIED.search(line[:_QUOTE])
        if found and found[1]:
            name = ""
        else:
            name = FailureClass.OVERLOADED
        status = int(found[1] or 0) if found else 0
        if found:
            return [error(line.strip()[:_QUOTE], name, "notice", status=status)]
        return []

    def judge(self, summary: Summary, exit: Exit, tail: str) -> AgentVerdict:
        verdict = super().judge(summary, exit, tail)
        if not verdict.success:
            if "Invalid auth method selected" in tail and not summary.claimed:
                no_method = Failure(FailureClass.AUTHENTICATION, _NO_METHOD)
                return AgentVerdict(False, _NO_METHOD, failure=no_method)
            return replace(verdict, failure=verdict.failure or _refused(summary, exit, tail))
        if summary.error:
            return AgentVerdict(False, summary.error.text, summary.result, "failure")
        # Where the next request would not fit any more it just ends, and calls that a success.
        if not summary.result or not summary.answered:
            reason = "It ended without an answer, as it does when its context is full."
            full = Failure(FailureClass.CONTEXT_OVERFLOW, reason)
            return AgentVerdict(False, reason, summary.result, "success", failure=full)
        return verdict

    def _settings(self, request: AgentRequest, env: dict[str, str]) -> dict[str, str]:
        if are_read_in(request.prompt_file.parent):
            return {_SETTINGS: settings_of(request, env), **request.daemon_file}
        if request.mcp_servers or request.tools:
            if request.mcp_servers:
                what = "MCP servers"
            else:
                what = "a list of tools"
            text = f"The agent {self.name} takes {what} only from files that nobody but root can"
            text += f" change, which {request.prompt_file.parent} is not."
            hint = "Over ACP it takes them: kapelle config set agents.gemini-acp.type acp, and "
            hint += """kapelle config set agents.gemini-acp.command '["gemini", "--acp"]'"""
            raise AgentMisconfigured(text, hint=hint)
        return {}


def _stdin(request: AgentRequest) -> bytes:
    prompt = request.prompt
    if request.system_prompt:
        prompt = f"<instructions>\n{request.system_prompt}\n</instructions>\n\n{prompt}"
    # What begins with a slash it would take for a command of its own.
    return ("\n" * prompt.startswith("/") + prompt).encode("utf-8", "replace")


def _session(request: AgentRequest, home: str) -> tuple[list[str], str | None]:
    """The options that name the session, and the log in which it is kept, if that is known."""
    session = request.session_id or str(uuid.uuid4())
    pattern = f"{glob.escape(home)}/.gemini/tmp/*/chats/session-*-{glob.escape(session[:8])}.jsonl"
    if request.session_id is None:
        return ["--session-id", session], pattern
    # Each time that it is resumed Gemini begins another file, and then goes on in the first.
    first = min(glob.glob(pattern), default=None)
    if request.fork:
        # Its id is not known before.
        return ["--session-file", first or session], None
    return ["--resume", session], glob.escape(first) if first else pattern


def _refused(summary: Summary, exit: Exit, tail: str) -> Failure | None:
    """What the exit code says of the error that ended it."""
    cause = summary.error
    if cause is None or exit.kind != "exited":
        return None
    name = ""
    status = _STATUSES.get(exit.code or 0)
    if exit.code == 1 and "ModelNotFoundError" in tail:
        name = FailureClass.CAPABILITY
    elif status == 429 and not _NO_QUOTA.search(cause.text):
        # That a quota is exceeded its provider says of any limit, the one per minute included.
        name = FailureClass.RATE_LIMIT
    if not name and not status:
        return None
    cause = replace(cause, name=name, data={**cause.data, "status": status})
    return classify(replace(summary, error=cause), exit, tail)


def _problem(value: JsonObject) -> AgentEvent:
    """A message amid the work; some end it, and a result of success follows all the same."""
    message = value.text("message")
    ends = value.get("severity") == "error" or message.startswith("Loop detected")
    return AgentEvent("error" if ends else "notice", message)


def _result(value: JsonObject) -> list[AgentEvent]:
    events = _usage(value.mapping("stats"))
    if value.get("status") == "success":
        return [*events, AgentEvent("result")]
    if cause := value.mapping("error"):
        events.append(_error(cause.text("type"), cause.text("message")))
    return [*events, AgentEvent("result", data={"is_error": True})]


def _error(kind: str, message: str) -> AgentEvent:
    """The error that ended it, out of the JSON that the provider answered with, if it is there."""
    found = _API_ERROR.match(message)
    answer = json_object(found[1] if found else "").mapping("error")
    text = answer.text("message") or message
    status = answer.count("code")
    return error(text, status=status, type=choose_type(kind, answer.text("status") or kind))


def _usage(stats: JsonObject) -> list[AgentEvent]:
    """The sums of this attempt, helper models included, and the model that did most."""
    if not stats:
        return []
    sent = stats.count("input_tokens")
    total = stats.count("total_tokens")
    # Thinking is paid for as output, and only in the total.
    received = max(stats.count("output_tokens"), total - sent)
    used = usage(sent, received, stats.count("cached"), total=True)
    models = stats.mapping("models")
    totals = {name: models.count(name, "total_tokens") for name in models}
    most = max(totals, key=totals.__getitem__, default="")
    if most:
        return [used, AgentEvent("model", most)]
    return [used]


def _answer(value: JsonObject) -> list[AgentEvent]:
    """An answer of the model as the chat log has it, again whenever a tool has added to it."""
    tokens = value.mapping("tokens")
    if not tokens:
        return []
    sent = tokens.count("input") + tokens.count("tool")
    received = tokens.count("output") + tokens.count("thoughts")
    used = usage(sent, received, tokens.count("cached"), turns=1, id=value.text("id"))
    return [used, AgentEvent("model", value.text("model"))]


def settings_of(request: AgentRequest, env: dict[str, str]) -> str:
    """The file's content for one attempt."""
    settings: dict[str, Any] = {
        "general": {
            "maxAttempts": _ATTEMPTS,
            "enableAutoUpdate": False,
            # Its clean-up takes sessions that were resumed for broken ones, and deletes them.
            "sessionRetention": {"enabled": False},
        },
        "privacy": {"usageStatisticsEnabled": False},
        # Otherwise every @word of a prompt is searched for in the whole workspace.
        "context": {"fileFiltering": {"enableRecursiveFileSearch": False}},
        **request.mcp_config(
            {"trust": True},
            {"type": "http", "trust": True},
            literal=_literal,
            # These are expanded again when the server is started.
            secret=lambda text: _literal(text, "\\$"),
        ),
    }
    if hooks := request.hooks("BeforeTool", _WRITING, "gemini"):
        settings["hooks"] = hooks
    if request.tools or request.read_only:
        if request.tools:
            core = {"core": list(request.tools)}
        else:
            core = {}
        if request.read_only:
            exclude = {"exclude": ["write_file", "replace"]}
        else:
            exclude = {}
        settings["tools"] = core | exclude
    if request.max_turns is not None:
        settings["model"] = {"maxSessionTurns": request.max_turns}
    # With an address and no login of the user's choice it takes a way to log in that it refuses.
    if "GOOGLE_GEMINI_BASE_URL" in env and (env | os.environ).get("GEMINI_API_KEY"):
        settings["security"] = {"auth": {"selectedType": "gemini-api-key"}}
    return json.dumps(settings)


def are_read_in(directory: Path) -> bool:
    """Whether Gemini trusts a file there: nobody but root may be able to change it."""
    try:
        places = [directory.resolve(strict=True), *directory.resolve().parents]
        found = [place.stat() for place in places]
    except OSError:
        return False
    writable = stat.S_IWGRP | stat.S_IWOTH
    return os.geteuid() == 0 and all(not (at.st_uid or at.st_mode & writable) for at in found)


def _literal(text: str, dollar: str = "$") -> str:
    """Text in which Gemini finds no variable to replace: every $ is one's default value."""
    return text.replace("$", f"${{KAPELLE_NOT_SET:-{dollar}}}")
