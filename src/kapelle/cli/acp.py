"""`kapelle acp`: Kapelle as an agent of the Agent Client Protocol, so that an editor conducts.

A prompt is a task, what is said next goes on with it, and `/command` is any command of this command
line. Each is done by a process of its own, so nothing is kept here but what a session works on.
"""

import json
import re
import shlex
import subprocess
import sys
import threading
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kapelle import __version__
from kapelle.cli.commands import command_help
from kapelle.cli.events import line
from kapelle.cli.follow import verdict
from kapelle.cli.format import settled
from kapelle.cli.logs import passage
from kapelle.cli.parser import command, option
from kapelle.cli.schedules import STARTING
from kapelle.cli.usage_errors import find_similar, suggest
from kapelle.client.protocol import ServerEvent
from kapelle.domain.errors import InvalidInput, KapelleError, NotFound

_PROTOCOL = 1
# What a person wants at hand; whatever else is typed after a slash is tried all the same.
_OFFERED = (*STARTING, "list", "status", "diff", "merge", "retry", "agents", "usage")
_ON_WORK = {"status", "diff", "merge", "retry", "logs", "archive", "cancel"}
# Whatever begins with a slash and a word, as commands do and paths do not.
_TYPED = re.compile(r"/([a-z][a-z-]*)?(?:\s+(.*))?", re.S)
_KEPT = 20_000
_UNKNOWN_METHOD = -32601
_BAD_PARAMS = -32602


@dataclass
class EditorSession:
    """A conversation of the editor: where it is, what it works on, and what is being done."""

    id: str
    cwd: str
    work: dict[str, Any] | None = None
    process: subprocess.Popen[str] | None = None
    cancelled: bool = False
    said: str = ""  # the end of it, so that a result is not told twice


class EditorServer:
    """Answers the editor; each prompt in a thread of its own."""

    def __init__(self, options: list[str]) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._sessions: dict[str, EditorSession] = {}

    def run(self) -> None:
        """Until the editor closes its end; what was started goes on in the background."""
        for text in sys.stdin:
            try:
                message = json.loads(text)
            except ValueError:
                self._send(id=None, error={"code": -32700, "message": "no JSON"})
                continue
            if isinstance(message, dict) and "method" in message:
                threading.Thread(target=self._handle, args=(message,), daemon=True).start()

    def _handle(self, message: dict[str, Any]) -> None:
        method = str(message["method"])
        params = message.get("params")
        try:
            answer = self._answer(method, params if isinstance(params, dict) else {})
            told = {"result": answer}
        except KapelleError as refused:
            if isinstance(refused, NotFound):
                code = _UNKNOWN_METHOD
            else:
                code = _BAD_PARAMS
            told = {"error": {"code": code, "message": refused.message}}
        if "id" in message:
            self._send(id=message["id"], **told)
        if method == "session/new" and "result" in told:
            self._offer(told["result"]["sessionId"])

    def _answer(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        match method:
            case "initialize":
                return {
                    "protocolVersion": _PROTOCOL,
                    "agentCapabilities": {"promptCapabilities": {"embeddedContext": True}},
                    "agentInfo": {"name": "kapelle", "title": "Kapelle", "version": __version__},
                    "authMethods": [],
                }
            case "session/new":
                return {"sessionId": self._new(params).id}
            case "session/prompt":
                return {"stopReason": self._prompt(self._session(params), params)}
            case "session/cancel":
                self._cancel(self._session(params))
                return {}
        raise NotFound(f"There is no method {method!r}.")

    def _new(self, params: dict[str, Any]) -> EditorSession:
        cwd = str(params.get("cwd", ""))
        if not Path(cwd).is_absolute() or not Path(cwd).is_dir():
            raise InvalidInput(f"cwd must be a directory that exists, not {cwd!r}.")
        session = EditorSession(uuid.uuid4().hex, cwd)
        self._sessions[session.id] = session
        return session

    def _session(self, params: dict[str, Any]) -> EditorSession:
        try:
            return self._sessions[params["sessionId"]]
        except (KeyError, TypeError):
            raise InvalidInput("There is no such session.") from None

    def _prompt(self, session: EditorSession, params: dict[str, Any]) -> str:
        if session.process is not None:
            raise InvalidInput("The prompt before is still being worked on: cancel it first.")
        said = _text(params.get("prompt")).strip()
        if not said:
            raise InvalidInput("The prompt is empty.")
        session.cancelled = False
        words = self._words(session, said)
        if words[0] in {*STARTING, "continue", "answer"}:
            self._follow(session, words)
        else:
            self._show(session, words)
        if session.cancelled:
            return "cancelled"
        return "end_turn"

    def _words(self, session: EditorSession, said: str) -> list[str]:
        """The command that a prompt stands for."""
        if typed := _TYPED.fullmatch(said):
            return self._typed(session, typed[1] or "", (typed[2] or "").strip())
        if session.work is not None and "spent" not in session.work:
            return ["continue", session.work["id"], said]
        if session.work is not None and session.work["status"] == "waiting":
            return ["answer", session.work["id"], said]
        return ["run", *self._options, "--", said]

    def _typed(self, session: EditorSession, name: str, rest: str) -> list[str]:
        """A command after a slash; of one that starts work, what is not quoted is the prompt."""
        if name not in command_help():
            similar = [f"/{one}" for one in find_similar(name, command_help())]
            raise InvalidInput(f"There is no command /{name}. {suggest(similar)}".rstrip())
        is_plain = not {'"', "'"} & set(rest) and " --" not in rest
        try:
            whole = bool(rest) and is_plain and name in {*STARTING, "continue"}
            given = [rest] if whole else shlex.split(rest)
        except ValueError as error:
            raise InvalidInput(f"/{name}: {error}.") from None
        if session.work is not None and not given and name in _ON_WORK:
            given = [session.work["id"]]
        return [name, *(self._options if name in STARTING else ()), *given]

    def _follow(self, session: EditorSession, words: list[str]) -> None:
        """Start work, or go on with it, and tell the editor what happens until it rests."""
        name, *rest = words
        if name == "answer":
            self._show(session, words)
            name = "logs"
            rest = words[1:2]
        for text in self._output(session, [name, "--follow", "--json", *rest]):
            try:
                event = json.loads(text)
            except ValueError:
                self._tell(session, text)
                continue
            if event.get("event") == "end":
                session.work = ended = event.get("task") or event["run"]
                self._tell(session, f"\n{verdict(ended)}\n{_next(ended)}")
            elif "event" in event:
                self._event(session, ServerEvent(event.pop("event"), event, None))
            elif "seq" in event:
                shown = line(event)
                self._tell(session, f"{shown.text}\n" if shown else "")
            elif "id" in event:
                session.work = event
            elif "error" in event:
                told = event["error"]
                self._tell(session, f"{told['message']} {told.get('hint') or ''}\n")

    def _event(self, session: EditorSession, event: ServerEvent) -> None:
        """What a task's agent did: a tool as a tool, the rest as text."""
        if event.kind == "tool_call":
            name = str(event.data.get("name") or "tool")
            call = {"toolCallId": uuid.uuid4().hex, "title": name, "status": "completed"}
            self._update(
                session, sessionUpdate="tool_call", rawInput=event.data.get("data"), **call
            )
            return
        delta = (event.data.get("data") or {}).get("delta") is True
        if event.kind == "tool_result":
            shown = None
        else:
            shown = passage(event)
        said = str(event.data.get("text") or "").strip()
        if shown and not (event.kind == "result" and said and said in session.said):
            self._tell(session, event.data["text"] if delta else f"{shown.text}\n")
        session.said = (session.said + said)[-_KEPT:]

    def _show(self, session: EditorSession, words: list[str]) -> None:
        for text in self._output(session, words):
            self._tell(session, text)

    def _output(self, session: EditorSession, words: list[str]) -> Any:
        """The lines that a command prints, as they come."""
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
        """End what is being done, and the work with it if it has not come to rest."""
        session.cancelled = True
        if session.process is not None:
            session.process.terminate()
        if session.work is not None and not settled(session.work):
            cancel = [sys.executable, "-P", "-m", "kapelle", "cancel", session.work["id"]]
            subprocess.run(cancel, cwd=session.cwd, capture_output=True, check=False)

    def _offer(self, session_id: str) -> None:
        known = command_help()
        hint = {"hint": "as on the command line"}
        offered = [
            {"name": name, "description": known[name][1], "input": hint} for name in _OFFERED
        ]
        update = {"sessionUpdate": "available_commands_update", "availableCommands": offered}
        self._send(method="session/update", params={"sessionId": session_id, "update": update})

    def _tell(self, session: EditorSession, text: str) -> None:
        if text:
            content = {"type": "text", "text": text}
            self._update(session, sessionUpdate="agent_message_chunk", content=content)

    def _update(self, session: EditorSession, **update: Any) -> None:
        self._send(method="session/update", params={"sessionId": session.id, "update": update})

    def _send(self, **message: Any) -> None:
        with self._lock:
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
            sys.stdout.flush()


def _text(blocks: Any) -> str:
    """What the blocks of a prompt say; a linked file is named, an embedded one quoted."""
    said = []
    for block in blocks if isinstance(blocks, list) else ():
        match block:
            case {"type": "text", "text": str(text)}:
                said.append(text)
            case {"type": "resource_link", "uri": str(uri)}:
                said.append(uri.removeprefix("file://"))
            case {"type": "resource", "resource": {"uri": str(uri), "text": str(text)}}:
                said.append(f"\n{uri.removeprefix('file://')}:\n{text}\n")
    return " ".join(said)


def _next(item: dict[str, Any]) -> str:
    if item["status"] == "completed" and (item.get("workspace") or {}).get("branch"):
        return "/diff shows what changed, /merge brings it into your branch; or say what is next."
    if item["status"] in {"waiting", "failed", "completed"}:
        return "Say how to go on."
    return ""


@command("acp", "kapelle acp --agent claude")
@option("--agent", "-a", metavar="NAME", help="Agent of the tasks.")
@option("--model", "-m", metavar="NAME", help="Model of the agent.")
def acp(agent: str | None, model: str | None) -> None:
    """Serve as an agent for an editor that speaks the Agent Client Protocol."""
    given = {"--agent": agent, "--model": model}
    EditorServer([word for pair in given.items() if pair[1] for word in pair if word]).run()
