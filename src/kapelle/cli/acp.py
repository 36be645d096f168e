"""`kapelle acp`: Kapelle as an agent of the Agent Client Protocol, for editors.

A prompt starts a task, and the next prompt continues it; `/command` is any command of this command
line. A process of its own executes each command, so the server only remembers which task or run a
conversation is about.
"""

import json
import re
import shlex
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from kapelle import __version__
from kapelle.cli.commands import command_help
from kapelle.cli.parser import command, option
from kapelle.cli.passages import timed_event_passage, transcript_passage
from kapelle.cli.schedules import STARTING
from kapelle.cli.states import describe_end, is_settled
from kapelle.cli.usage_errors import find_similar, suggest
from kapelle.client.protocol import ServerEvent
from kapelle.domain.errors import InvalidInput, KapelleError, NotFound

if TYPE_CHECKING:
    from kapelle.client.records import WorkJson

AcpParams: TypeAlias = Mapping[str, object]
"""The parameters of a request, which may be anything that JSON can hold."""

_PROTOCOL_VERSION = 1
# The commands that editors offer; people may type any other behind a slash as well.
_OFFERED_COMMANDS = (*STARTING, "list", "status", "diff", "merge", "retry", "agents", "usage")
# Without an id, these commands are about the task or the run of the conversation.
_COMMANDS_ON_WORK = {"status", "diff", "merge", "retry", "logs", "archive", "cancel"}
# A slash and a word: paths have another slash behind it.
_SLASH_COMMAND = re.compile(r"/([a-z][a-z-]*)?(?:\s+(.*))?", re.S)
_MOST_REMEMBERED = 20_000
_NOT_JSON = -32700
_UNKNOWN_METHOD = -32601
_INVALID_PARAMS = -32602


@dataclass
class EditorSession:
    """A conversation of the editor: its directory, its task or run, its running command."""

    id: str
    cwd: str
    work: "WorkJson | None" = None
    process: subprocess.Popen[str] | None = None
    is_cancelled: bool = False
    # The end of what the agent said, so that a result that repeats it is left out.
    recent_text: str = ""


class EditorServer:
    """Answers the editor; each request is handled in a thread of its own."""

    def __init__(self, options: Sequence[str]) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._sessions: dict[str, EditorSession] = {}

    def run(self) -> None:
        """Answer requests until the editor closes its end; work goes on in the background."""
        for text in sys.stdin:
            try:
                message = json.loads(text)
            except ValueError:
                self._send(id=None, error={"code": _NOT_JSON, "message": "The message is no JSON."})
                continue
            if isinstance(message, dict) and "method" in message:
                threading.Thread(target=self._handle, args=(message,), daemon=True).start()

    def _handle(self, message: AcpParams) -> None:
        """Answer a request, or act on a notification, which has no id."""
        method = str(message["method"])
        params = message.get("params")
        if not isinstance(params, dict):
            params = {}
        session_id = None
        answer: dict[str, object]
        try:
            result = self._call(method, params)
            answer = {"result": result}
            session_id = result.get("sessionId")
        except KapelleError as error:
            code = _INVALID_PARAMS
            if isinstance(error, NotFound):
                code = _UNKNOWN_METHOD
            answer = {"error": {"code": code, "message": error.message}}
        if "id" in message:
            self._send(id=message["id"], **answer)
        if method == "session/new" and session_id:
            self._offer_commands(str(session_id))

    def _call(self, method: str, params: AcpParams) -> dict[str, object]:
        """Return the result of a method."""
        match method:
            case "initialize":
                return {
                    "protocolVersion": _PROTOCOL_VERSION,
                    "agentCapabilities": {"promptCapabilities": {"embeddedContext": True}},
                    "agentInfo": {"name": "kapelle", "title": "Kapelle", "version": __version__},
                    "authMethods": [],
                }
            case "session/new":
                return {"sessionId": self._create_session(params).id}
            case "session/prompt":
                return {"stopReason": self._prompt(self._find_session(params), params)}
            case "session/cancel":
                self._cancel(self._find_session(params))
                return {}
        raise NotFound(f"There is no method {method!r}.")

    def _create_session(self, params: AcpParams) -> EditorSession:
        cwd = str(params.get("cwd", ""))
        if not Path(cwd).is_absolute() or not Path(cwd).is_dir():
            raise InvalidInput(f"cwd must be an absolute path of a directory, not {cwd!r}.")
        session = EditorSession(uuid.uuid4().hex, cwd)
        self._sessions[session.id] = session
        return session

    def _find_session(self, params: AcpParams) -> EditorSession:
        session = self._sessions.get(str(params.get("sessionId")))
        if session is None:
            raise InvalidInput("There is no such session.")
        return session

    def _prompt(self, session: EditorSession, params: AcpParams) -> str:
        """Execute the command that a prompt stands for; return the reason why it ended."""
        if session.process is not None:
            raise InvalidInput("The previous prompt is still at work: cancel it first.")
        prompt = _read_text(params.get("prompt")).strip()
        if not prompt:
            raise InvalidInput("The prompt is empty.")
        session.is_cancelled = False
        words = self._command_of(session, prompt)
        if words[0] in {*STARTING, "continue", "answer"}:
            self._follow(session, words)
        else:
            self._show_output(session, words)
        if session.is_cancelled:
            return "cancelled"
        return "end_turn"

    def _command_of(self, session: EditorSession, prompt: str) -> list[str]:
        """Return the words of the command that a prompt stands for."""
        slash_command = _SLASH_COMMAND.fullmatch(prompt)
        if slash_command:
            name = slash_command[1] or ""
            return self._parse_slash_command(session, name, (slash_command[2] or "").strip())
        work = session.work
        if work is not None and "pattern" not in work:
            return ["continue", work["id"], prompt]
        if work is not None and work["status"] == "waiting":
            return ["answer", work["id"], prompt]
        return ["run", *self._options, "--", prompt]

    def _parse_slash_command(self, session: EditorSession, name: str, rest: str) -> list[str]:
        """Return the words of a command behind a slash.

        Where work starts, a text without quotation marks and options is the prompt as a whole.
        """
        if name not in command_help():
            similar = [f"/{one}" for one in find_similar(name, command_help())]
            raise InvalidInput(f"There is no command /{name}. {suggest(similar)}".rstrip())
        has_syntax = '"' in rest or "'" in rest or " --" in rest
        if rest and not has_syntax and name in {*STARTING, "continue"}:
            arguments = [rest]
        else:
            try:
                arguments = shlex.split(rest)
            except ValueError as error:
                raise InvalidInput(f"/{name}: {error}.") from None
        if session.work is not None and not arguments and name in _COMMANDS_ON_WORK:
            arguments = [session.work["id"]]
        if name in STARTING:
            return [name, *self._options, *arguments]
        return [name, *arguments]

    def _follow(self, session: EditorSession, words: list[str]) -> None:
        """Start or continue work, and send the editor what happens until it is settled."""
        name, *arguments = words
        if name == "answer":
            self._show_output(session, words)
            name = "logs"
            arguments = arguments[:1]
        for line in self._execute(session, [name, "--follow", "--json", *arguments]):
            try:
                message = json.loads(line)
            except ValueError:
                self._send_text(session, line)
            else:
                self._send_message(session, message)

    def _send_message(self, session: EditorSession, message: Any) -> None:
        """Send the editor one line of JSON that a followed command printed."""
        if message.get("event") == "end":
            work: WorkJson = message.get("task") or message["run"]
            session.work = work
            self._send_text(session, f"\n{describe_end(work)}\n{_next_step(work)}")
        elif "event" in message:
            self._send_event(session, ServerEvent(message.pop("event"), message, None))
        elif "seq" in message:
            passage = timed_event_passage(message)
            if passage:
                self._send_text(session, f"{passage.text}\n")
        elif "id" in message:
            session.work = message
        elif "error" in message:
            error = message["error"]
            self._send_text(session, f"{error['message']} {error.get('hint') or ''}\n")

    def _send_event(self, session: EditorSession, event: ServerEvent) -> None:
        """Send an event of a task's transcript: a tool call as such, any other as text."""
        details = event.data.get("data")
        if event.kind == "tool_call":
            self._send_update(
                session,
                sessionUpdate="tool_call",
                toolCallId=uuid.uuid4().hex,
                title=str(event.data.get("name") or "tool"),
                status="completed",
                rawInput=details,
            )
            return
        text = str(event.data.get("text") or "").strip()
        is_repeated = event.kind == "result" and text and text in session.recent_text
        passage = transcript_passage(event)
        if passage and event.kind != "tool_result" and not is_repeated:
            if isinstance(details, dict) and details.get("delta") is True:
                self._send_text(session, event.data["text"])
            else:
                self._send_text(session, f"{passage.text}\n")
        session.recent_text = (session.recent_text + text)[-_MOST_REMEMBERED:]

    def _show_output(self, session: EditorSession, words: list[str]) -> None:
        for line in self._execute(session, words):
            self._send_text(session, line)

    def _execute(self, session: EditorSession, words: list[str]) -> Iterator[str]:
        """Execute a command, and yield the lines that it prints."""
        with subprocess.Popen(
            [sys.executable, "-P", "-m", "kapelle", *words],
            cwd=session.cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            session.process = process
            try:
                assert process.stdout is not None
                yield from process.stdout
            finally:
                session.process = None

    def _cancel(self, session: EditorSession) -> None:
        """End the running command, and cancel the task or the run unless it is settled."""
        session.is_cancelled = True
        if session.process is not None:
            session.process.terminate()
        if session.work is not None and not is_settled(session.work):
            cancel = [sys.executable, "-P", "-m", "kapelle", "cancel", session.work["id"]]
            subprocess.run(cancel, cwd=session.cwd, capture_output=True, check=False)

    def _offer_commands(self, session_id: str) -> None:
        """Send the commands that the editor may offer while a person types."""
        table = command_help()
        offers = []
        for name in _OFFERED_COMMANDS:
            hint = {"hint": "as on the command line"}
            offers.append({"name": name, "description": table[name][1], "input": hint})
        update = {"sessionUpdate": "available_commands_update", "availableCommands": offers}
        self._send(method="session/update", params={"sessionId": session_id, "update": update})

    def _send_text(self, session: EditorSession, text: str) -> None:
        if text:
            content = {"type": "text", "text": text}
            self._send_update(session, sessionUpdate="agent_message_chunk", content=content)

    def _send_update(self, session: EditorSession, **update: object) -> None:
        self._send(method="session/update", params={"sessionId": session.id, "update": update})

    def _send(self, **message: object) -> None:
        with self._lock:
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
            sys.stdout.flush()


def _read_text(blocks: object) -> str:
    """Return the text of a prompt; a linked file is named, an embedded file is quoted."""
    parts = []
    if isinstance(blocks, list):
        for block in blocks:
            match block:
                case {"type": "text", "text": str(text)}:
                    parts.append(text)
                case {"type": "resource_link", "uri": str(uri)}:
                    parts.append(uri.removeprefix("file://"))
                case {"type": "resource", "resource": {"uri": str(uri), "text": str(text)}}:
                    parts.append(f"\n{uri.removeprefix('file://')}:\n{text}\n")
    return " ".join(parts)


def _next_step(item: "WorkJson") -> str:
    """Return a sentence about what to type next; empty if there is nothing to type."""
    if item["status"] == "completed" and item["workspace"]["branch"]:
        return "/diff shows the changes, /merge merges them; or type the next message."
    if item["status"] in {"waiting", "failed", "completed"}:
        return "Type the next message to continue."
    return ""


@command("acp", "kapelle acp --agent claude")
@option("--agent", "-a", metavar="NAME", help="Agent of the tasks.")
@option("--model", "-m", metavar="NAME", help="Model of the agent.")
def acp(agent: str | None, model: str | None) -> None:
    """Serve as an agent for an editor that speaks the Agent Client Protocol."""
    options = []
    if agent:
        options += ["--agent", agent]
    if model:
        options += ["--model", model]
    EditorServer(options).run()
