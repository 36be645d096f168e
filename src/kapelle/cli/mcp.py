"""`kapelle mcp`: the daemon's MCP server over stdin and stdout, and its entry in the configuration
of a client."""

import json
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer

from kapelle.cli.command import argument, command_group, flag
from kapelle.cli.output import data, say
from kapelle.cli.values import choice
from kapelle.client.environment import with_shell
from kapelle.client.http import Cancellation, DaemonConnection, RequestCancelled
from kapelle.client.protocol import ConnectionLost
from kapelle.domain.errors import Conflict, InvalidInput, KapelleError
from kapelle.home import write_private

_VERSION = "mcp-protocol-version"
_TOOLS = "x-kapelle-tools"
_CHOICES = ("core", "all")
_VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
# Longer than any call takes: `wait` answers within a minute.
_SILENCE_S = 90.0
_CALL_S = 120
_INTERNAL_ERROR = -32603
# The tool that calls others, and tools that look at a directory.
_TOOL_CALL = "tool_call"
_PLACED = frozenset({"pattern_list", "pattern_get", "agent_list", "agent_check", "doctor"})
# The tools that look for programs: on the PATH of the client, as work that it asks for does.
_ON_PATH = frozenset({"agent_list", "agent_check", "doctor"})
# The tools that change nothing.
READS = re.compile(r"(^|_)(get|list|logs|tail|steps|diff|search|wait|watch|query|doctor)$")


class Bridge:
    """Hands each message on to the daemon's /mcp, several at once, and its answers back."""

    def __init__(self, tools: str = "core") -> None:
        self._tools = tools
        self._connection = DaemonConnection()
        self._lock = threading.Lock()
        self._version: str | None = None
        self._open: dict[str, Cancellation] = {}
        self._work: list[threading.Thread] = []

    def run(self) -> None:
        """Until the client has closed its end and what it asked for is answered."""
        for line in sys.stdin.buffer:
            if not line.strip():
                continue
            try:
                message = json.loads(line)
            except ValueError:
                self._answer({"jsonrpc": "2.0", "id": None, "error": _error(-32700, "no JSON")})
                continue
            self._take(message)
        deadline = time.monotonic() + _CALL_S
        for work in self._work:
            work.join(max(0.0, deadline - time.monotonic()))

    def _take(self, message: Any) -> None:
        if isinstance(message, dict):
            fields = message
        else:
            fields = {}
        if fields.get("method") == "notifications/cancelled":
            # The daemon notices that nobody waits for the answer any more.
            if scope := self._open.get(_key(_object(fields.get("params")).get("requestId"))):
                scope.request()
            return
        scope = self._open[_key(fields.get("id"))] = Cancellation()
        work = threading.Thread(target=self._forward, args=(message, fields, scope), daemon=True)
        work.start()
        self._work = [*filter(threading.Thread.is_alive, self._work), work]
        if fields.get("method") == "initialize":
            work.join()  # what comes next depends on the version that is agreed upon

    def _forward(self, message: Any, fields: dict[str, Any], scope: Cancellation) -> None:
        try:
            for answer in self._exchange(message, fields, scope):
                agreed = answer.get("result", {}).get("protocolVersion")
                self._version = agreed or self._version
                self._answer(answer)
        except RequestCancelled:
            pass
        except Exception as error:
            # Whatever it is: a client that is not answered waits for ever.
            if isinstance(error, KapelleError):
                text = error.with_hint
            else:
                text = repr(error)
            if "id" in fields:
                told = _error(_INTERNAL_ERROR, text)
                self._answer({"jsonrpc": "2.0", "id": fields["id"], "error": told})
        finally:
            self._open.pop(_key(fields.get("id")), None)

    def _exchange(
        self, message: Any, fields: dict[str, Any], scope: Cancellation
    ) -> Iterator[dict[str, Any]]:
        """The daemon's answers; asked again once if it died, unless that might do a thing twice."""
        asked = (_located(self._connection, message), self._headers(fields), _SILENCE_S, scope)
        try:
            yield from self._connection.exchange("/mcp", *asked)
        except ConnectionLost:
            name, _ = _called(_object(fields.get("params")))
            if fields.get("method") == "tools/call" and not READS.search(name):
                raise
            self._connection.wait_for_return(scope)
            yield from self._connection.exchange("/mcp", *asked)

    def _headers(self, fields: dict[str, Any]) -> dict[str, str]:
        """What newer revisions of the protocol want to be said before the message."""
        headers = {"Accept": "application/json, text/event-stream", _TOOLS: self._tools}
        params = _object(fields.get("params"))
        version = _object(params.get("_meta")).get(_VERSION_KEY)
        if version:
            headers |= {_VERSION: str(version), "mcp-method": str(fields.get("method"))}
            if name := params.get("name") or params.get("uri"):
                headers["mcp-name"] = str(name)
        elif self._version and fields.get("method") != "initialize":
            headers[_VERSION] = self._version
        return headers

    def _answer(self, message: dict[str, Any]) -> None:
        with self._lock:
            sys.stdout.write(json.dumps(message) + "\n")
            sys.stdout.flush()


def _located(connection: DaemonConnection, message: Any) -> Any:
    """A call that concerns a directory, with that of the client; one that starts work, with its
    environment as well; one that looks for programs, with its PATH."""
    if not isinstance(message, dict) or message.get("method") != "tools/call":
        return message
    params = _object(message.get("params"))
    name, given = _called(params)
    here = {"directory": os.getcwd()}
    path = ""
    if name in {"run_start", "schedule_create"} and isinstance(given.get("spec"), dict):
        given = {**given, "spec": {**here, **given["spec"]}}
        path = "/runs"
    elif name == "task_create" or (name.endswith("_start") and name != "run_start"):
        # a spec, of whatever it starts
        given = {**here, **given}
        path = "/tasks"
    elif name in _PLACED or name.startswith(("lock_", "learning_")):
        given = {**here, **given}
    if connection.address.url is None:
        given = with_shell(connection.address.home, path, given)
        if name in _ON_PATH and "PATH" in os.environ:
            given = {"path": os.environ["PATH"], **given}
    if params.get("name") == _TOOL_CALL:
        given = {**_object(params.get("arguments")), "arguments": given}
    return {**message, "params": {**params, "arguments": given}}


def _called(params: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The tool that a call is about, also through the tool that calls others, and its arguments."""
    name = str(params.get("name"))
    arguments = _object(params.get("arguments"))
    if name == _TOOL_CALL:
        return str(arguments.get("name")), _object(arguments.get("arguments"))
    return name, arguments


def _object(found: Any) -> dict[str, Any]:
    """What was sent where the protocol has an object; nothing if it is something else."""
    if isinstance(found, dict):
        return found
    return {}


def _key(some_id: Any) -> str:
    return json.dumps(some_id)


def _error(code: int, message: str) -> dict[str, Any]:
    return {"code": code, "message": message}


mcp = command_group("Serve Kapelle's tools to an agent or editor over stdin and stdout.")

ToolsOption = typer.Option(
    "core", "--tools", metavar="core|all",
    help="Tools that the client lists; the others are called through tool_call.",
)  # fmt: skip


@mcp.callback(invoke_without_command=True)
def serve(ctx: typer.Context, tools: str = ToolsOption) -> None:
    if ctx.invoked_subcommand is None:
        choice("--tools", tools, _CHOICES)
        Bridge(tools).run()


if sys.platform == "darwin":
    _EXTENSIONS = "~/Library/Application Support/Code/User/globalStorage"
else:
    _EXTENSIONS = "~/.config/Code/User/globalStorage"
_CLINE = "saoudrizwan.claude-dev/settings/cline_mcp_settings.json"
_FOR_CLINE = {"timeout": _CALL_S, "disabled": False}

# Where each client keeps its servers, under which key, and what an entry of it looks like.
_CLIENTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "claude": ("~/.claude.json", "mcpServers", {"type": "stdio", "timeout": _CALL_S * 1000}),
    # The extension of VS Code, and the command line of its own.
    "cline": (f"{_EXTENSIONS}/{_CLINE}", "mcpServers", _FOR_CLINE),
    "cline-cli": ("~/.cline/data/settings/cline_mcp_settings.json", "mcpServers", _FOR_CLINE),
    "codex": (
        "~/.codex/config.toml",
        "mcp_servers",
        {"startup_timeout_sec": 30, "tool_timeout_sec": _CALL_S},
    ),
    "copilot": ("~/.copilot/mcp-config.json", "mcpServers", {"type": "local", "tools": ["*"]}),
    "cursor": ("~/.cursor/mcp.json", "mcpServers", {}),
    "gemini": ("~/.gemini/settings.json", "mcpServers", {"timeout": _CALL_S * 1000}),
    "opencode": (
        "~/.config/opencode/opencode.json",
        "mcp",
        {"type": "local", "enabled": True, "timeout": 30_000},
    ),
    "qwen": ("~/.qwen/settings.json", "mcpServers", {"timeout": _CALL_S * 1000}),
    "vscode": (".vscode/mcp.json", "servers", {"type": "stdio"}),
    "windsurf": ("~/.codeium/windsurf/mcp_config.json", "mcpServers", {}),
    "project": (".mcp.json", "mcpServers", {"type": "stdio", "timeout": _CALL_S * 1000}),
}
_SHARED = ("vscode", "project")


@mcp.command()
def install(
    client: str = argument("|".join(_CLIENTS), ""),
    tools: str = ToolsOption,
    show: bool = flag("Only print what would be written, and where.", "--print"),
) -> None:
    """Tell a client about Kapelle's tools, in its own configuration; project is .mcp.json here."""
    if client not in _CLIENTS:
        raise InvalidInput(f"{client!r} is none of {', '.join(_CLIENTS)}.")
    choice("--tools", tools, _CHOICES)
    place, key, entry = _CLIENTS[client]
    path = Path(place).expanduser().absolute()
    # Editors do not have the PATH of a shell; what is in a project is shared with other machines.
    is_shared = client in _SHARED
    if is_shared:
        program = "kapelle"
    else:
        program = shutil.which("kapelle") or os.path.abspath(sys.argv[0])
    if tools == "core":
        arguments = ["mcp"]
    else:
        arguments = ["mcp", "--tools", tools]
    command: dict[str, Any] = {"command": program, "args": arguments}
    if client == "opencode":
        command = {"command": [program, *arguments]}
    entry = {**entry, **command}
    if not is_shared and (home := os.environ.get("KAPELLE_HOME")):
        if client == "opencode":
            named = "environment"
        else:
            named = "env"
        entry[named] = {"KAPELLE_HOME": os.path.abspath(home)}
    text = _added(path, key, entry)
    if show:
        say(str(path))
        data(text.rstrip("\n"))
        return
    if text == _read(path):
        say(f"{path} has it already.")
        return
    if path.exists():
        mode = path.stat().st_mode & 0o777
    else:
        mode = 0o644
    write_private(path, text.encode())
    path.chmod(mode)
    if client == "project":
        what = "what reads it"
    else:
        what = client
    say(f"{path} names kapelle now; start {what} again.")


def configured_clients() -> list[Path]:
    """Return the files of clients that name this home's Kapelle; not those in repositories."""
    found = []
    for client, (place, key, _) in _CLIENTS.items():
        path = Path(place).expanduser()
        if client in _SHARED or not path.exists():
            continue
        with suppress(ValueError, InvalidInput):
            servers = _parsed(_read(path), path.suffix)[0].get(key, {})
            if "kapelle" in servers and _is_of_this_home(servers["kapelle"]):
                found.append(path)
    return found


def _is_of_this_home(entry: Any) -> bool:
    named = entry.get("env", entry.get("environment", {})).get("KAPELLE_HOME")
    home = os.environ.get("KAPELLE_HOME")
    return bool(named == (os.path.abspath(home) if home else None))


def remove_entry(path: Path) -> None:
    """Take Kapelle out of a client's file, and leave all else as it is."""
    keys = {Path(place).expanduser(): key for place, key, _ in _CLIENTS.values()}
    found, _, dump = _parsed(_read(path), path.suffix)
    del found[keys[path]]["kapelle"]
    mode = path.stat().st_mode & 0o777
    write_private(path, dump(found).encode())
    path.chmod(mode)


def _added(path: Path, key: str, entry: dict[str, Any]) -> str:
    """A configuration with the entry in it and all else as it is."""
    text = _read(path)
    try:
        found, empty, dump = _parsed(text, path.suffix)
        if not isinstance(found, dict):
            raise ValueError("it holds no object at its top")
        servers = found.setdefault(key, empty)
        if not isinstance(servers, dict):
            raise ValueError(f"its {key} is no object")
        if servers.get("kapelle") == entry:
            return text
        if "kapelle" in servers:
            raise Conflict(
                f"{path} has another server named kapelle, which is left as it is.",
                hint="Take that one out first, or look with --print.",
            )
        servers["kapelle"] = entry
        return dump(found)
    except ValueError as error:
        wanted = json.dumps({key: {"kapelle": entry}}, indent=2)
        raise InvalidInput(
            f"{path} cannot be read as plain {path.suffix[1:].upper()}: {error}",
            hint=f"It is left as it is. Put this into it by hand:\n{wanted}",
        ) from None


def _parsed(text: str, suffix: str) -> tuple[Any, Any, Callable[[Any], str]]:
    """What a configuration holds, a table without servers, and how it is written."""
    if suffix != ".toml":
        return (
            json.loads(text or "{}"),
            {},
            lambda found: json.dumps(found, indent=2, ensure_ascii=False) + "\n",
        )
    import tomlkit

    return tomlkit.parse(text), tomlkit.table(is_super_table=True), tomlkit.dumps


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} cannot be read: {error}") from error
