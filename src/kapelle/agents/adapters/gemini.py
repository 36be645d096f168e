"""Gemini CLI: `gemini -o stream-json`, with the prompt on stdin."""

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
# Gemini's name for the strongest model that the user may use. Its default "auto" first asks another
# model which one to use.
_DEFAULT_MODEL = "pro"
_SETTINGS = "gemini-settings.json"
_NO_METHOD = (
    "Gemini has no login method. With a base_url it needs"
    ' {"security": {"auth": {"selectedType": "gemini-api-key"}}} in ~/.gemini/settings.json.'
)
# The exit code of a refused request is its HTTP status modulo 256.
_STATUSES = {
    status % 256: status
    for status in (400, 401, 402, 403, 404, 408, 413, 429, 499, 500, 502, 503, 504, 529)
}
# Kapelle itself retries, at the announced time.
_ATTEMPTS = 3
_WRITING = "write_file|replace|run_shell_command"
_QUOTE = 300
_LOG = "gemini.log"
# Without NO_RELAUNCH Gemini runs as a child of itself, which signals do not reach.
_VARIABLES = {"GEMINI_CLI_NO_RELAUNCH": "true", "GEMINI_CLI_TRUST_WORKSPACE": "true"}
# The line in its log about a request that it retries.
_RETRIED = re.compile(r"Attempt \d+ failed(?: with status (\d{3}))?\b.*?Retrying")


class GeminiAgent(AgentAdapter):
    """Success is exit code 0 after an answer and a result, without an error before.

    Gemini replaces @path in a prompt by the file, which cannot be turned off. It takes no addition
    to its system prompt, so the task's system prompt stands before the prompt.
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
    # Variables of a Gemini session in which the daemon was started, and of the editor around it.
    drops = (
        "GEMINI_CLI", "GEMINI_PTY_INFO", "GEMINI_CLI_IDE_*", "GEMINI_CLI_WORKTREE_HANDLED",
        "GEMINI_CLI_ACTIVITY_LOG_TARGET",
    )  # fmt: skip

    home = ("GEMINI_CLI_HOME", "")
    state = (".gemini",)
    pinned = (
        ".gemini/settings.json", ".gemini/GEMINI.md", ".gemini/commands/", ".gemini/extensions/",
        ".gemini/policies/", ".gemini/skills/",
    )  # fmt: skip
    last_words = ((r"Error resuming session: .*", FailureClass.SESSION_LOST),)
    exits: ClassVar = {
        41: FailureClass.AUTHENTICATION,
        42: FailureClass.SESSION_LOST,  # bad input; without a message it is the session id
        44: FailureClass.ENVIRONMENT,  # its sandbox
        52: FailureClass.ENVIRONMENT,  # its settings
    }
    # Gemini cannot create files through the client's file system.
    beside_acp = ("daemon",)
    url_variable = "GOOGLE_GEMINI_BASE_URL"

    def over_acp(self, request: AgentRequest) -> AgentCommand:
        # Over ACP Gemini holds back its standard error until it ends, so its log is read.
        log = str(request.beside(_LOG))
        env = {**_VARIABLES, "GEMINI_DEBUG_LOG_FILE": log}
        return AgentCommand([], env, side_log=glob.escape(log))

    def command(self, request: AgentRequest) -> AgentCommand:
        model = request.chosen_model or _DEFAULT_MODEL
        argv = [self.executable()]
        if not request.interactive:
            argv += ["-o", "stream-json", "--approval-mode", "yolo"]
        argv += ["-m", model]
        env = self.environment(request) | _VARIABLES
        session, side_log = _session(request, self.home_in(request.environ, env))
        argv += session + request.settings.extra_args
        files = self._settings(request, env)
        if files:
            env["GEMINI_CLI_SYSTEM_DEFAULTS_PATH"] = str(request.beside(_SETTINGS))
        if request.interactive:
            whole = replace(request, prompt=_stdin(request).decode())
            return AgentCommand(argv + whole.first_words("-i"), env, files=files)
        return AgentCommand(argv, env, _stdin(request), files, side_log)

    def parse(self, line: str) -> list[AgentEvent]:
        """Return the events of one line, which is a JSON object or a line of the log."""
        value = json_object(line)
        if not value:
            return self.parse_stderr(line)
        match value.get("type"):
            case "init":
                session = value.text("session_id")
                model = value.text("model")
                events = [AgentEvent("session", session)]
                # "pro" or "auto" is a choice of models; a later line names the model itself.
                if model not in _CHOICES and not model.startswith("auto"):
                    events.append(AgentEvent("model", model))
                return events
            case "message" if value.get("role") == "assistant":
                return [AgentEvent("text", value.text("content"), data={"delta": True})]
            case "tool_use":
                name = value.text("tool_name")
                return [AgentEvent("tool_call", name=name, data=value.mapping("parameters"))]
            case "tool_result":
                # The id of a call begins with the name of its tool.
                name = value.text("tool_id").rpartition("__")[0]
                output = value.text("output") or value.text("error", "message")
                return [AgentEvent("tool_result", output, name)]
            case "error":
                return [_problem(value)]
            case "result":
                return _result(value)
            case "gemini":
                return _answer(value)
        return []

    def parse_stderr(self, line: str) -> list[AgentEvent]:
        retry = _RETRIED.search(line[:_QUOTE])
        if retry is None:
            return []
        text = line.strip()[:_QUOTE]
        if retry[1]:
            return [error(text, kind="notice", status=int(retry[1]))]
        return [error(text, FailureClass.OVERLOADED, "notice")]

    def judge(self, summary: Summary, exit: Exit, tail: str) -> AgentVerdict:
        verdict = super().judge(summary, exit, tail)
        if not verdict.success:
            if "Invalid auth method selected" in tail and not summary.claimed:
                no_method = Failure(FailureClass.AUTHENTICATION, _NO_METHOD)
                return AgentVerdict(False, _NO_METHOD, failure=no_method)
            return replace(verdict, failure=verdict.failure or _by_exit_code(summary, exit, tail))
        if summary.error:
            return AgentVerdict(False, summary.error.text, summary.result, "failure")
        # If the next request exceeds the context, Gemini ends without it and reports a success.
        if not summary.result or not summary.answered:
            reason = "Gemini ended without an answer, as it does when its context is full."
            full = Failure(FailureClass.CONTEXT_OVERFLOW, reason)
            return AgentVerdict(False, reason, summary.result, "success", failure=full)
        return verdict

    def _settings(self, request: AgentRequest, env: dict[str, str]) -> dict[str, str]:
        """Return the files with the settings of an attempt; raise if Gemini would ignore them."""
        if is_trusted(request.prompt_file.parent):
            return {_SETTINGS: settings_of(request, env), **request.daemon_file}
        if request.mcp_servers or request.tools:
            what = "MCP servers" if request.mcp_servers else "a list of tools"
            raise AgentMisconfigured(
                f"The agent {self.name} takes {what} only from files that nobody but root can"
                f" change. Other users can change files in {request.prompt_file.parent}.",
                hint="Over ACP it takes them: kapelle config set agents.gemini-acp.type acp, and "
                """kapelle config set agents.gemini-acp.command '["gemini", "--acp"]'""",
            )
        return {}


def _stdin(request: AgentRequest) -> bytes:
    prompt = request.prompt
    if request.system_prompt:
        prompt = f"<instructions>\n{request.system_prompt}\n</instructions>\n\n{prompt}"
    if prompt.startswith("/"):
        # Gemini would execute a prompt that begins with a slash as a command of its own.
        prompt = f"\n{prompt}"
    return prompt.encode("utf-8", "replace")


def _session(request: AgentRequest, home: str) -> tuple[list[str], str | None]:
    """Return the options that name the session, and the pattern of its chat log, if it is known."""
    session = request.session_id or str(uuid.uuid4())
    pattern = f"{glob.escape(home)}/.gemini/tmp/*/chats/session-*-{glob.escape(session[:8])}.jsonl"
    if request.session_id is None:
        return ["--session-id", session], pattern
    # At each resume Gemini creates another file, but then continues to write the first one.
    first = min(glob.glob(pattern), default=None)
    if request.fork:
        # The id of the copy is not known before.
        return ["--session-file", first or session], None
    return ["--resume", session], glob.escape(first) if first else pattern


def _by_exit_code(summary: Summary, exit: Exit, tail: str) -> Failure | None:
    """Return the failure by the exit code, which has the status of a refused request."""
    cause = summary.error
    if cause is None or exit.kind != "exited":
        return None
    name = ""
    status = _STATUSES.get(exit.code or 0)
    if exit.code == 1 and "ModelNotFoundError" in tail:
        name = FailureClass.CAPABILITY
    elif status == 429 and not _NO_QUOTA.search(cause.text):
        # The provider reports an exceeded quota at any limit, even at one per minute.
        name = FailureClass.RATE_LIMIT
    if not name and not status:
        return None
    cause = replace(cause, name=name, data={**cause.data, "status": status})
    return classify(replace(summary, error=cause), exit, tail)


def _problem(value: JsonObject) -> AgentEvent:
    """Return an error or a notice; after an error, too, Gemini prints a result of success."""
    message = value.text("message")
    if value.get("severity") == "error" or message.startswith("Loop detected"):
        return AgentEvent("error", message)
    return AgentEvent("notice", message)


def _result(value: JsonObject) -> list[AgentEvent]:
    events = _usage(value.mapping("stats"))
    if value.get("status") == "success":
        return [*events, AgentEvent("result")]
    cause = value.mapping("error")
    if cause:
        events.append(_error(cause.text("type"), cause.text("message")))
    return [*events, AgentEvent("result", data={"is_error": True})]


def _error(kind: str, message: str) -> AgentEvent:
    """Return the error event, with the fields of the provider's JSON if the message has it."""
    match = _API_ERROR.match(message)
    answer = json_object(match[1] if match else "").mapping("error")
    text = answer.text("message") or message
    status = answer.count("code")
    return error(text, status=status, type=choose_type(kind, answer.text("status") or kind))


def _usage(stats: JsonObject) -> list[AgentEvent]:
    """Return the usage of the attempt, helper models included, and the most used model."""
    if not stats:
        return []
    input_tokens = stats.count("input_tokens")
    total = stats.count("total_tokens")
    # Thinking is charged as output, but counted in the total only.
    output_tokens = max(stats.count("output_tokens"), total - input_tokens)
    events = [usage(input_tokens, output_tokens, stats.count("cached"), total=True)]
    models = stats.mapping("models")
    totals = {name: models.count(name, "total_tokens") for name in models}
    most_used = max(totals, key=totals.__getitem__, default="")
    if most_used:
        events.append(AgentEvent("model", most_used))
    return events


def _answer(value: JsonObject) -> list[AgentEvent]:
    """Return usage and model of an answer; the chat log repeats it when a tool adds to it."""
    tokens = value.mapping("tokens")
    if not tokens:
        return []
    input_tokens = tokens.count("input") + tokens.count("tool")
    output_tokens = tokens.count("output") + tokens.count("thoughts")
    cached_tokens = tokens.count("cached")
    answer_id = value.text("id")
    return [
        usage(input_tokens, output_tokens, cached_tokens, turns=1, id=answer_id),
        AgentEvent("model", value.text("model")),
    ]


def settings_of(request: AgentRequest, env: dict[str, str]) -> str:
    """Return the content of the settings file for one attempt."""
    settings: dict[str, Any] = {
        "general": {
            "maxAttempts": _ATTEMPTS,
            "enableAutoUpdate": False,
            # Gemini's clean-up would delete resumed sessions, which it takes for broken ones.
            "sessionRetention": {"enabled": False},
        },
        "privacy": {"usageStatisticsEnabled": False},
        # Otherwise Gemini searches the whole workspace for every @word of a prompt.
        "context": {"fileFiltering": {"enableRecursiveFileSearch": False}},
        **request.mcp_config(
            {"trust": True},
            {"type": "http", "trust": True},
            literal=_literal,
            # Gemini expands these values once more when it starts the server.
            secret=lambda text: _literal(text, "\\$"),
        ),
    }
    hooks = request.hooks("BeforeTool", _WRITING, "gemini")
    if hooks:
        settings["hooks"] = hooks
    tools = {}
    if request.tools:
        tools["core"] = list(request.tools)
    if request.read_only:
        tools["exclude"] = ["write_file", "replace"]
    if tools:
        settings["tools"] = tools
    if request.max_turns is not None:
        settings["model"] = {"maxSessionTurns": request.max_turns}
    # With a base URL and no chosen login, Gemini selects a login method that it then refuses.
    if "GOOGLE_GEMINI_BASE_URL" in env and (env | os.environ).get("GEMINI_API_KEY"):
        settings["security"] = {"auth": {"selectedType": "gemini-api-key"}}
    return json.dumps(settings)


def is_trusted(directory: Path) -> bool:
    """Tell whether Gemini trusts the files of a directory: only root may be able to change them."""
    try:
        place = directory.resolve(strict=True)
        statuses = [path.stat() for path in (place, *place.parents)]
    except OSError:
        return False
    writable = stat.S_IWGRP | stat.S_IWOTH
    if os.geteuid() != 0:
        return False
    return all(status.st_uid == 0 and not status.st_mode & writable for status in statuses)


def _literal(text: str, dollar: str = "$") -> str:
    """Return a text in which Gemini replaces no variable.

    Each `$` becomes the default value of a variable that is not set.
    """
    return text.replace("$", f"${{KAPELLE_NOT_SET:-{dollar}}}")
