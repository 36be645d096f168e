"""The HTTP server: reads a request, takes its step, and answers in the caller's dialect."""

import json
import threading
import zlib
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from tests.agents.model.aider import Edit, edit_block, form_asked_for
from tests.agents.model.dialects import DIALECTS
from tests.agents.model.dialects.answer import Event, Said, Tokens
from tests.agents.model.faults import fault
from tests.agents.model.routes import Route, counted, lane_of, models, route
from tests.agents.model.scripts import Request, Scripts, Step
from tests.agents.model.side import is_side, side_step
from tests.agents.model.tools import Tools, filled, plan


class ModelServer(ThreadingHTTPServer):
    """A running server; as a context manager it ends with the block."""

    daemon_threads = True

    def __init__(self, scripts: Scripts, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.scripts = scripts
        self.ending = threading.Event()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def url(self, lane: str, suffix: str = "") -> str:
        """The base URL of a lane; OpenAI's dialects want the suffix /v1."""
        return f"http://127.0.0.1:{self.server_port}/s/{lane}{suffix}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Agents that hang up in the middle are expected."""

    def close(self) -> None:
        self.ending.set()
        self.shutdown()
        self._thread.join()
        self.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *about: object) -> None:
        self.close()


def serve(scripts: Mapping[str, Sequence[Step]] | None = None, port: int = 0) -> ModelServer:
    """Start a server on loopback."""
    return ModelServer(Scripts(scripts), port)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ModelServer

    def log_message(self, format: str, *values: Any) -> None:
        """The scripts keep the log."""

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        if path == "/_log":
            self._send([request.to_json() for request in self.server.scripts.requests(side=True)])
        elif path.endswith("/models"):
            self._send(models())
        else:
            self._send({"error": {"message": f"There is no {path}."}}, 404)

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_PUT(self) -> None:
        """Set the script of the lane that the path ends in."""
        try:
            self.server.scripts.put(self.path.rsplit("/", 1)[-1], json.loads(self._read()))
        except ValueError as error:
            self._send({"error": {"message": str(error)}}, 400)
        else:
            self._send({"ok": True})

    def do_POST(self) -> None:
        path, text = self.path.split("?")[0], self._read().decode("utf-8", "replace")
        try:
            body = json.loads(text or "{}")
        except ValueError:
            body = None
        if (count := counted(path, text)) is not None:
            self._send(count)
        elif isinstance(body, dict) and (found := route(path, body)):
            self._answer(found, lane_of(path, text), body, text)
        else:
            self._send({"error": {"message": f"There is no {path} for such a body."}}, 404)

    def _answer(self, found: Route, lane: str, body: dict[str, Any], text: str) -> None:
        tools = DIALECTS[found.dialect].declared(body)
        side = is_side(lane, bool(tools), text)
        step = side_step(body) if side else self.server.scripts.take(lane)
        self.server.scripts.note(
            Request(
                lane=lane,
                dialect=found.dialect,
                path=self.path,
                model=found.model,
                stream=found.stream,
                side=side,
                step=step,
                tools=tuple(sorted(tools)),
                headers={name.lower(): value for name, value in self.headers.items()},
                body=body,
                text=text,
            )
        )
        if self.server.ending.wait(step.get("delay", 0) + step.get("hang", 0)) or "hang" in step:
            self.close_connection = True
        else:
            self._play(filled(step, text), found, tools, form_asked_for(text) or edit_block)

    def _play(self, step: Step, found: Route, tools: Tools, edit: Edit) -> None:
        dialect = DIALECTS[found.dialect]
        if failure := fault(step, dialect):
            if found.stream and failure.events:
                self._stream(failure.events)
            else:
                self._send(failure.body, failure.status, failure.headers)
            return
        dropped = "drop" in step
        text, call = plan({"text": ""} if dropped else step, tools, edit)
        sent, received = step.get("usage", (100, 20))
        tokens = Tokens(sent, received, step.get("cached", 0))
        answer = dialect.answer(Said(found.model, text, call, tokens))
        if dropped:
            self._stream(answer.events[:1])
        elif found.stream:
            self._stream(answer.events, step.get("headers", {}))
        else:
            self._send(answer.whole, headers=step.get("headers"))

    def _read(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            raw = self._read_chunks()
        else:
            raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        packed = self.headers.get("Content-Encoding") in {"gzip", "deflate"}
        # 32 lets zlib tell gzip from deflate by itself.
        return zlib.decompress(raw, zlib.MAX_WBITS | 32) if packed else raw

    def _read_chunks(self) -> bytes:
        chunks = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def _send(self, body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        raw = json.dumps(body).encode()
        self.send_response(status)
        fixed = {"Content-Type": "application/json", "Content-Length": str(len(raw))}
        for name, value in (fixed | dict(headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(raw)

    def _stream(self, events: list[Event], headers: Mapping[str, str] | None = None) -> None:
        """Server-sent events; the end of the connection ends the stream."""
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        for header, value in (headers or {}).items():
            self.send_header(header, value)
        self.end_headers()
        for name, payload in events:
            data = payload if isinstance(payload, str) else json.dumps(payload)
            head = f"event: {name}\n" if name else ""
            self.wfile.write(f"{head}data: {data}\n\n".encode())
            self.wfile.flush()
