"""A provider on loopback that plays a test's part, and a bridge that is asked against it."""

import json
import os
import subprocess
import threading
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from kapelle.agents.adapters.anthropic import AnthropicAgent
from kapelle.agents.adapters.openai import PlainModel
from kapelle.agents.base import AgentCommand, AgentRequest, AgentVerdict, Summary
from kapelle.agents.events import AgentEvent
from kapelle.agents.failures import classify
from kapelle.agents.summary import summarise
from kapelle.domain.task import Exit

KEY = "sk-do-not-show-this"
ODD = "--help\n$& {model} Überprüfe 🎻\r\n  "


class Asked(BaseHTTPRequestHandler):
    """A request that a test's part answers."""

    server: "Server"

    def do_POST(self) -> None:
        size = int(self.headers["Content-Length"])
        self.body = json.loads(self.rfile.read(size))
        self.server.seen.append(self)
        self.server.part(self)

    def reply(self, body: object, status: int = 200, **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def stream(self, *events: object) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for event in events:
            self.event(event)

    def event(self, event: object) -> None:
        kind = f"event: {event['type']}\n" if isinstance(event, dict) and "type" in event else ""
        data = event if isinstance(event, str) else json.dumps(event)
        self.wfile.write(f"{kind}data: {data}\n\n".encode())
        self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Asked)
        self.seen: list[Asked] = []
        self.part: Callable[[Asked], None] = lambda asked: asked.reply({})
        self.free = threading.Event()

    def silence(self, asked: Asked) -> None:
        self.free.wait(30)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Told:
    """What a bridge said, from its start to its end."""

    def __init__(self, agent: PlainModel, output: str, stderr: str, code: int) -> None:
        lines = output.split("\n")
        kind = "exited" if code >= 0 else "signaled"
        self.exit = Exit(kind=kind, code=code if code >= 0 else None, signal=-code or None)
        self.events: list[AgentEvent] = [event for line in lines for event in agent.parse(line)]
        self.summary: Summary = summarise(agent, lines)
        self.verdict: AgentVerdict = agent.judge(self.summary, self.exit, self.summary.tail)
        self.output, self.stderr = output, stderr

    @property
    def failure(self) -> str:
        assert not self.verdict.success
        return classify(self.summary, self.exit, self.summary.tail).kind

    def texts(self, kind: str = "text") -> list[str]:
        return [event.text for event in self.events if event.kind == kind]


class Asking:
    """One bridge with one server, asked in a workspace of its own."""

    def __init__(self, agent: PlainModel, workspace: Path, variable: str) -> None:
        self.agent, self.workspace, self.env = agent, workspace, {variable: KEY}

    def command(self, prompt: str, **more: Any) -> AgentCommand:
        file = self.workspace.parent / "prompt"
        request = AgentRequest(prompt, self.workspace, file, self.agent.settings, **more)
        command = self.agent.command(request)
        for name, text in command.files.items():
            (file.parent / name).write_text(text, encoding="utf-8")
        home = {"PATH": os.environ["PATH"], "HOME": str(self.workspace.parent)}
        return replace(command, env=home | self.env | command.env)

    def start(self, command: AgentCommand) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            command.argv, env=command.env, cwd=self.workspace, stdin=pipe, stdout=pipe, stderr=pipe
        )
        assert process.stdin
        process.stdin.write(command.stdin or b"")
        process.stdin.close()
        process.stdin = None
        return process

    def ask(self, prompt: str = "Is it?", extra: list[str] | None = None, **more: Any) -> Told:
        command = self.command(prompt, **more)
        with self.start(replace(command, argv=command.argv + (extra or []))) as process:
            return self.end(process)

    def end(self, process: subprocess.Popen[bytes]) -> Told:
        output, stderr = process.communicate(timeout=60)
        told = Told(self.agent, output.decode(), stderr.decode(), process.returncode)
        assert KEY not in told.output + told.stderr
        return told


def pieces(*texts: str, reason: str | None = "stop", **more: object) -> list[object]:
    """What OpenAI sends for an answer."""
    start = {"id": "c", "object": "chat.completion.chunk", "model": "small-2026", **more}
    deltas = [{"index": 0, "delta": {"content": text}, "finish_reason": None} for text in texts]
    sent: list[object] = [start | {"choices": [delta]} for delta in deltas]
    if reason:
        sent.append(start | {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    return sent


USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 20,
    "prompt_tokens_details": {"cached_tokens": 60},
}


def message(*texts: str, reason: str = "end_turn") -> list[object]:
    """What Anthropic sends for an answer."""
    usage = {
        "input_tokens": 10,
        "cache_read_input_tokens": 60,
        "cache_creation_input_tokens": 30,
        "output_tokens": 1,
    }
    start: dict[str, object] = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-x-2026",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }
    block = {"type": "text", "text": ""}
    deltas = [{"type": "text_delta", "text": text} for text in texts]
    end = {"stop_reason": reason, "stop_sequence": None}
    return [
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "ping"},
        *[{"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas],
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": end, "usage": {"output_tokens": 20}},
        {"type": "message_stop"},
    ]


def play(asking: Asking, *texts: str) -> Callable[[Asked], None]:
    """The part of a server that answers with these texts."""
    before, after = halves(asking, *texts)
    return lambda asked: asked.stream(*before, *after)


def halves(asking: Asking, *texts: str) -> tuple[list[object], list[object]]:
    """An answer's events up to its first text, and the others."""
    if isinstance(asking.agent, AnthropicAgent):
        return message(*texts)[:4], message(*texts)[4:]
    sent = [*pieces(*texts), {"choices": [], "usage": USAGE}, "[DONE]"]
    return sent[:1], sent[1:]
