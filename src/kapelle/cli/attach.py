"""`kapelle attach`: the terminal of an interactive task in the person's terminal."""

import json
import os
import select
import signal
import sys
import termios
import threading
import tty
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from queue import Empty, Queue
from typing import TYPE_CHECKING, Any

from kapelle.cli.follow import follow
from kapelle.cli.ids import newest_task_argument, task_path, work_id
from kapelle.cli.output import say
from kapelle.cli.parser import command
from kapelle.cli.states import exit_code
from kapelle.cli.text import one_line
from kapelle.client.http import DaemonConnection
from kapelle.client.protocol import ConnectionLost
from kapelle.domain.errors import Conflict, InvalidInput
from kapelle.domain.states import FINAL

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

    from kapelle.client.records import TaskJson

_LEAVE = b"\x1d"
_LEAVE_KEY = "Ctrl-]"
# So many messages may wait to be shown.
_MOST_WAITING = 16
# What a program may leave behind: another screen, a hidden cursor, reports of mouse, focus, paste
# and keys, colours.
_RESTORED = (
    b"\x1b[?1049l\x1b[?25h\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?1004l\x1b[?2004l"
    b"\x1b[<u\x1b[>4m\x1b[?1l\x1b>\x1b[0m\r\n"
)


@command("attach", "kapelle attach 4f2xq")
@newest_task_argument
def attach(task_id: str | None) -> int:
    """Attach to the terminal of an interactive task; Ctrl-] detaches."""
    client = DaemonConnection()
    task = client.get(task_path(work_id(client, task_id, "tasks")))
    if task.get("interactive") and task["status"] in FINAL:
        raise Conflict(
            f"{task['id']} is {task['status']}: its terminal has ended.",
            hint=f"`kapelle logs {task['id']}` shows what was in it, "
            f"`kapelle resume {task['id']}` goes on in a new one.",
        )
    return attach_to(client, task)


def attach_to(client: DaemonConnection, task: "TaskJson") -> int:
    """Attach to the terminal of a task, then follow its checks; return the exit code."""
    if not is_at_terminal():
        raise InvalidInput(
            "Standard input and output are no terminal.",
            hint=f"`kapelle logs -f {task['id']}` shows what is in it.",
        )
    place: dict[str, Any] = {}
    say(f"{_LEAVE_KEY} leaves the terminal, and the agent goes on.")
    with ExitStack() as screen:
        ended = _attached(client, task_path(task["id"], "terminal"), place, screen)
    if not ended:
        say(f"`kapelle attach {task['id']}` comes back, `kapelle cancel {task['id']}` ends it.")
        return 0
    return exit_code(follow(client, task, False, after=place.get("number")))


def is_at_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _attached(
    client: DaemonConnection, path: str, place: dict[str, Any], screen: ExitStack
) -> bool:
    """Return whether the terminal has ended; else it was left. A daemon that restarts is waited
    for."""
    while True:
        try:
            query = {key: place.get(key) for key in ("attempt", "offset")}
            with client.websocket(path, {**query, **_size()}) as socket:
                return _Talk(socket, place, screen).to_end()
        except ConnectionLost:
            client.wait_for_return()


class _Inbox:
    """Takes messages from a WebSocket in a thread, and lets a `select` know of them."""

    def __init__(self, socket: "ClientConnection") -> None:
        self._socket = socket
        # Full, it stops the daemon from sending: whoever reads a terminal may be slow.
        self._messages: Queue[str | bytes | None] = Queue(_MOST_WAITING)
        self.descriptor, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._is_closing = False
        self._thread = threading.Thread(target=self._receive, name="attach", daemon=True)
        self._thread.start()

    def _receive(self) -> None:
        from websockets.exceptions import ConnectionClosed

        with suppress(ConnectionClosed):
            for message in self._socket:
                self._put(message)
        self._put(None)

    def _put(self, message: str | bytes | None) -> None:
        if self._is_closing:
            return
        self._messages.put(message)
        # A full pipe wakes up as well as another byte.
        with suppress(BlockingIOError):
            os.write(self._writer, b"m")

    def take(self) -> list[str | bytes | None]:
        """Return the messages that have come; None is the end of the connection."""
        os.read(self.descriptor, 65536)
        return self._drain()

    def _drain(self) -> list[str | bytes | None]:
        messages = []
        with suppress(Empty):
            while True:
                messages.append(self._messages.get_nowait())
        return messages

    def close(self) -> None:
        """Close the connection and end the thread, which may be waiting for room."""
        self._is_closing = True
        self._drain()
        self._socket.close()
        self._thread.join()
        os.close(self.descriptor)
        os.close(self._writer)


class _Talk:
    """One connection to a terminal."""

    def __init__(
        self, socket: "ClientConnection", place: dict[str, Any], screen: ExitStack
    ) -> None:
        self._socket = socket
        self._place = place
        self._screen = screen
        self._resized: int | None = None

    def to_end(self) -> bool:
        """Return whether the terminal has ended; else the person left it."""
        from websockets.exceptions import ConnectionClosed

        with closing(_Inbox(self._socket)) as inbox:
            try:
                return self._talk(inbox)
            except ConnectionClosed:
                raise ConnectionLost("The daemon closed the connection.") from None

    def _talk(self, inbox: _Inbox) -> bool:
        while True:
            # Before there is a terminal, what is typed is not for it.
            if self._resized is None:
                others = []
            else:
                others = [0, self._resized]
            ready = select.select([inbox.descriptor, *others], [], [])[0]
            if inbox.descriptor in ready:
                for message in inbox.take():
                    if self._show(message):
                        return True
            if self._resized in ready:
                os.read(self._resized or 0, 1000)
                self._socket.send(json.dumps(_size()))
            if 0 in ready and self._type():
                return False

    def _show(self, message: str | bytes | None) -> bool:
        """Show what has come; return whether that was the end of the terminal."""
        if message is None:
            raise ConnectionLost("The daemon closed the connection.")
        if isinstance(message, bytes):
            _write(message)
            self._place["offset"] += len(message)
            return False
        return self._follow(json.loads(message))

    def _follow(self, message: dict[str, Any]) -> bool:
        if message["kind"] == "waiting":
            reason = message["reason"] or "its agent is being started"
            say(f"{message['status']}: {one_line(reason)}")
        elif message["kind"] == "opened":
            self._place |= {key: message[key] for key in ("attempt", "number", "offset")}
            if "raw" not in self._place:
                self._place["raw"] = self._screen.enter_context(_raw())
            self._resized = self._place["raw"]
        return bool(message["kind"] == "ended")

    def _type(self) -> bool:
        """Send what was typed; return whether it was the key that leaves."""
        data = os.read(0, 1 << 16)
        typed, leaves, _ = data.partition(_LEAVE)
        if typed:
            self._socket.send(typed)
        return bool(leaves) or not data


@contextmanager
def _raw() -> Iterator[int]:
    """Every key goes to the program; gives a file that can be read after a change of the size."""
    before = termios.tcgetattr(0)
    changed, writer = os.pipe()
    os.set_blocking(writer, False)
    handlers = {number: signal.signal(number, _leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    handlers[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, lambda *_: None)
    old = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        tty.setraw(0)
        yield changed
    finally:
        with suppress(OSError):
            _write(_RESTORED)
        with suppress(termios.error):
            termios.tcsetattr(0, termios.TCSADRAIN, before)
        signal.set_wakeup_fd(old)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _leave(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


def _size() -> dict[str, int]:
    with suppress(OSError):
        size = os.get_terminal_size(1)
        return {"rows": max(1, min(size.lines, 1000)), "columns": max(1, min(size.columns, 1000))}
    return {}


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]
