"""`kapelle mcp`: the daemon's MCP server on stdin and stdout, and its entry in configurations of
clients."""

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

import click

from kapelle.cli.output import data, say
from kapelle.cli.parser import CliGroup, argument, complete_choice, flag, option
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
# No call takes longer: `wait` answers within a minute.
_SILENCE_S = 90.0
_CALL_S = 120
_INTERNAL_ERROR = -32603
# The tool that calls other tools, and tools that need a directory.
_TOOL_CALL = "tool_call"
_PLACED = frozenset({"pattern_list", "pattern_get", "agent_list", "agent_check", "doctor"})
# Tools that look for programs: on the PATH of the client, as its work does.
_ON_PATH = frozenset({"agent_list", "agent_check", "doctor"})
# Tools without effects.
READS = re.compile(r"(^|_)(get|list|logs|tail|steps|diff|search|wait|watch|query|doctor)$")


class Bridge:
    """Forwards messages of a client to the daemon's /mcp, several at once, and the answers back."""

    def __init__(self, tools: str = "core") -> None:
        self._tools = tools
        self._connection = DaemonConnection()
        self._lock = threading.Lock()
        self._version: str | None = None
        self._cancellations: dict[str, Cancellation] = {}
        self._threads: list[threading.Thread] = []

    def run(self) -> None:
        """Forward messages until the client has closed its end and all are answered."""
        for line in sys.stdin.buffer:
            if not line.strip():
                continue
            try:
                message = json.loads(line)
            except ValueError:
                self._answer({"jsonrpc": "2.0", "id": None, "error": _error(-32700, "no JSON")})
                continue
            self._start(message)
        deadline = time.monotonic() + _CALL_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _start(self, message: Any) -> None:
        """Forward a message in a thread of its own, or cancel an earlier one."""
        fields = _as_object(message)
        if fields.get("method") == "notifications/cancelled":
            # The daemon notices that nobody waits for the answer any more.
            request_id = _as_object(fields.get("params")).get("requestId")
            earlier = self._cancellations.get(_key(request_id))
            if earlier is not None:
                earlier.request()
            return
        cancellation = Cancellation()
        self._cancellations[_key(fields.get("id"))] = cancellation
        arguments = (message, fields, cancellation)
        thread = threading.Thread(target=self._forward, args=arguments, daemon=True)
        thread.start()
        self._threads = [*(one for one in self._threads if one.is_alive()), thread]
        if fields.get("method") == "initialize":
            thread.join()  # later messages depend on the version that both sides agree on

    def _forward(self, message: Any, fields: dict[str, Any], cancellation: Cancellation) -> None:
        """Send a message to the daemon and its answers to the client."""
        try:
            for answer in self._exchange(message, fields, cancellation):
                version = answer.get("result", {}).get("protocolVersion")
                self._version = version or self._version
                self._answer(answer)
        except RequestCancelled:
            pass
        except Exception as error:
            # Of any kind: a client that gets no answer waits for ever.
            text = error.with_hint if isinstance(error, KapelleError) else repr(error)
            if "id" in fields:
                failure = _error(_INTERNAL_ERROR, text)
                self._answer({"jsonrpc": "2.0", "id": fields["id"], "error": failure})
        finally:
            self._cancellations.pop(_key(fields.get("id")), None)

    def _exchange(
        self, message: Any, fields: dict[str, Any], cancellation: Cancellation
    ) -> Iterator[dict[str, Any]]:
        """Return the daemon's answers; ask again once if it died, unless a call has effects."""
        body = _add_context(self._connection, message)
        request = (body, self._headers(fields), _SILENCE_S, cancellation)
        try:
            yield from self._connection.exchange("/mcp", *request)
        except ConnectionLost:
            name, _ = _read_call(_as_object(fields.get("params")))
            if fields.get("method") == "tools/call" and not READS.search(name):
                raise
            self._connection.wait_for_return(cancellation)
            yield from self._connection.exchange("/mcp", *request)

    def _headers(self, fields: dict[str, Any]) -> dict[str, str]:
        """Return the headers that the protocol requires; they depend on its version."""
        headers = {"Accept": "application/json, text/event-stream", _TOOLS: self._tools}
        params = _as_object(fields.get("params"))
        version = _as_object(params.get("_meta")).get(_VERSION_KEY)
        if version:
            headers |= {_VERSION: str(version), "mcp-method": str(fields.get("method"))}
            name = params.get("name") or params.get("uri")
            if name:
                headers["mcp-name"] = str(name)
        elif self._version and fields.get("method") != "initialize":
            headers[_VERSION] = self._version
        return headers

    def _answer(self, message: dict[str, Any]) -> None:
        with self._lock:
            sys.stdout.write(json.dumps(message) + "\n")
            sys.stdout.flush()


def _add_context(connection: DaemonConnection, message: Any) -> Any:
    """Return a tool call with what the daemon cannot know about the client.

    A call about a directory gets the client's; one that starts work also gets its environment, and
    one that looks for programs its PATH. Other messages stay as they are.
    """
    if not isinstance(message, dict) or message.get("method") != "tools/call":
        return message
    params = _as_object(message.get("params"))
    name, arguments = _read_call(params)
    here = {"directory": os.getcwd()}
    path = ""
    starts_task = name == "task_create" or (name.endswith("_start") and name != "run_start")
    is_placed = name in _PLACED or name.startswith(("lock_", "learning_"))
    if name in {"run_start", "schedule_create"} and isinstance(arguments.get("spec"), dict):
        arguments = {**arguments, "spec": {**here, **arguments["spec"]}}
        path = "/runs"
    elif starts_task:
        arguments = {**here, **arguments}
        path = "/tasks"
    elif is_placed:
        arguments = {**here, **arguments}
    if connection.address.url is None:
        arguments = with_shell(connection.address.home, path, arguments)
        if name in _ON_PATH and "PATH" in os.environ:
            arguments = {"path": os.environ["PATH"], **arguments}
    if params.get("name") == _TOOL_CALL:
        arguments = {**_as_object(params.get("arguments")), "arguments": arguments}
    return {**message, "params": {**params, "arguments": arguments}}


def _read_call(params: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the tool of a call and its arguments, also of a call through the tool that calls
    others."""
    name = str(params.get("name"))
    arguments = _as_object(params.get("arguments"))
    if name == _TOOL_CALL:
        return str(arguments.get("name")), _as_object(arguments.get("arguments"))
    return name, arguments


def _as_object(value: Any) -> dict[str, Any]:
    """Return a value that should be an object; anything else becomes an empty one."""
    if isinstance(value, dict):
        return value
    return {}


def _key(message_id: Any) -> str:
    return json.dumps(message_id)


def _error(code: int, message: str) -> dict[str, Any]:
    return {"code": code, "message": message}


tools_option = option(
    "--tools",
    metavar="core|all",
    default="core",
    help="Tools that the client lists; the others are called through tool_call.",
    shell_complete=complete_choice(_CHOICES),
)


@click.group(
    "mcp",
    cls=CliGroup,
    invoke_without_command=True,
    examples=["kapelle mcp install claude", "kapelle mcp install project --print"],
)
@tools_option
@click.pass_context
def mcp(ctx: click.Context, tools: str) -> None:
    """Serve Kapelle's tools to an agent or editor over stdin and stdout."""
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


@mcp.command("install", examples=["kapelle mcp install claude", "kapelle mcp install project"])
@argument(
    "client",
    metavar="CLIENT",
    help=f"Name of the client: {', '.join(_CLIENTS)}; project is .mcp.json here.",
    shell_complete=complete_choice(_CLIENTS),
)
@tools_option
@flag("--print", "show", help="What would be written, and where, without a change.")
def install(client: str, tools: str, show: bool) -> None:
    """Add Kapelle's tools to the configuration of a client."""
    if client not in _CLIENTS:
        raise InvalidInput(
            f"There is no client {client!r}.", hint=f"Use one of {', '.join(_CLIENTS)}."
        )
    choice("--tools", tools, _CHOICES)
    place, key, _ = _CLIENTS[client]
    path = Path(place).expanduser().absolute()
    text = _with_entry(path, key, _entry(client, tools))
    if show:
        say(str(path))
        data(text.rstrip("\n"))
        return
    if text == _read(path):
        say(f"{path} has it already.")
        return
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o644
    write_private(path, text.encode())
    path.chmod(mode)
    reader = "what reads it" if client == "project" else client
    say(f"{path} names kapelle now; start {reader} again.")


def _entry(client: str, tools: str) -> dict[str, Any]:
    """Return the entry of Kapelle in the configuration of a client."""
    is_shared = client in _SHARED
    # Editors do not have the PATH of a shell; what is in a project is shared with other machines.
    program = "kapelle"
    if not is_shared:
        program = shutil.which("kapelle") or os.path.abspath(sys.argv[0])
    arguments = ["mcp"]
    if tools != "core":
        arguments += ["--tools", tools]
    entry = dict(_CLIENTS[client][2])
    if client == "opencode":
        entry["command"] = [program, *arguments]
    else:
        entry |= {"command": program, "args": arguments}
    home = os.environ.get("KAPELLE_HOME")
    if home and not is_shared:
        key = "environment" if client == "opencode" else "env"
        entry[key] = {"KAPELLE_HOME": os.path.abspath(home)}
    return entry


def configured_clients() -> list[Path]:
    """Return the files of clients that name this home's Kapelle; not those in repositories."""
    paths = []
    for client, (place, key, _) in _CLIENTS.items():
        path = Path(place).expanduser()
        if client in _SHARED or not path.exists():
            continue
        with suppress(ValueError, InvalidInput):
            servers = _parse(_read(path), path.suffix)[0].get(key, {})
            if "kapelle" in servers and _is_of_this_home(servers["kapelle"]):
                paths.append(path)
    return paths


def _is_of_this_home(entry: Any) -> bool:
    named_home = entry.get("env", entry.get("environment", {})).get("KAPELLE_HOME")
    home = os.environ.get("KAPELLE_HOME")
    return bool(named_home == (os.path.abspath(home) if home else None))


def remove_entry(path: Path) -> None:
    """Remove Kapelle from a client's file, and leave everything else as it is."""
    keys = {Path(place).expanduser(): key for place, key, _ in _CLIENTS.values()}
    configuration, _, dump = _parse(_read(path), path.suffix)
    del configuration[keys[path]]["kapelle"]
    mode = path.stat().st_mode & 0o777
    write_private(path, dump(configuration).encode())
    path.chmod(mode)


def _with_entry(path: Path, key: str, entry: dict[str, Any]) -> str:
    """Return a client's configuration with the entry, and everything else as it is."""
    text = _read(path)
    try:
        configuration, empty, dump = _parse(text, path.suffix)
        if not isinstance(configuration, dict):
            raise ValueError("it holds no object at its top")
        servers = configuration.setdefault(key, empty)
        if not isinstance(servers, dict):
            raise ValueError(f"its {key} is no object")
        if servers.get("kapelle") == entry:
            return text
        if "kapelle" in servers:
            raise Conflict(
                f"{path} has another server named kapelle, which is left as it is.",
                hint="Remove that one first, or look with --print.",
            )
        servers["kapelle"] = entry
        return dump(configuration)
    except ValueError as error:
        example = json.dumps({key: {"kapelle": entry}}, indent=2)
        raise InvalidInput(
            f"{path} cannot be read as plain {path.suffix[1:].upper()}: {error}",
            hint=f"It is left as it is. Add this to it by hand:\n{example}",
        ) from None


def _parse(text: str, suffix: str) -> tuple[Any, Any, Callable[[Any], str]]:
    """Return the content of a configuration, an empty table of servers, and a function that writes
    the content."""
    if suffix != ".toml":
        return json.loads(text or "{}"), {}, _dump_json
    import tomlkit

    return tomlkit.parse(text), tomlkit.table(is_super_table=True), tomlkit.dumps


def _dump_json(configuration: Any) -> str:
    return json.dumps(configuration, indent=2, ensure_ascii=False) + "\n"


def _read(path: Path) -> str:
    """Return the text of a file; empty if there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} cannot be read: {error}") from error
