"""Where every command that starts something sends it, so that a schedule can keep it instead."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from kapelle.cli.spec_file import SpecFile
from kapelle.cli.spec_options import Option
from kapelle.client.http import Connection
from kapelle.domain.errors import KapelleError


@dataclass(frozen=True)
class Order:
    """What would have been sent: the path of the API, the body, and the options that made it."""

    path: str
    body: dict[str, Any]
    options: Sequence[Option] = ()


class _Collected(BaseException):
    """Ends a command whose order was taken; not an Exception, so that nobody catches it."""


_orders: ContextVar[list[Order] | None] = ContextVar("orders", default=None)


def begin(
    client: Connection, path: str, body: dict[str, Any], options: Sequence[Option] = ()
) -> dict[str, Any]:
    """Start a task or a run, and return it; while orders are collected, keep it and go no further.

    The client is not asked for anything in the latter case, so no daemon is needed.
    """
    orders = _orders.get()
    if orders is not None:
        orders.append(Order(path, body, options))
        raise _Collected
    try:
        started: dict[str, Any] = client.create(path, body)
    except KapelleError as error:
        spec = body.get("spec")
        if isinstance(spec, SpecFile):
            spec.locate(error)
        raise
    return started


def is_collecting() -> bool:
    """Whether what a command would start is kept, to be started by a schedule."""
    return _orders.get() is not None


@contextmanager
def collecting() -> Iterator[list[Order]]:
    """Take the order of the command that is run inside instead of sending it."""
    orders: list[Order] = []
    token = _orders.set(orders)
    try:
        yield orders
    except _Collected:
        pass
    finally:
        _orders.reset(token)
