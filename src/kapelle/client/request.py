"""How a method of the client is made: its signature is the request, and it blocks or is awaited.

In a client for asyncio each call blocks a thread of its own. A call that is cancelled, or a stream
that is left early, has its socket shut, so that no thread stays behind.
"""

import asyncio
import inspect
import os
import re
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping
from concurrent.futures import Future
from functools import cache, partial, wraps
from queue import SimpleQueue
from typing import (
    Any,
    ClassVar,
    Concatenate,
    Generic,
    ParamSpec,
    TypeAlias,
    TypeVar,
    get_args,
    get_origin,
    overload,
)
from urllib.parse import quote

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from kapelle.client.http import Cancellation, DaemonConnection, cancellation
from kapelle.domain.errors import InvalidInput, KapelleError, sentence

P = ParamSpec("P")
T = TypeVar("T")
Each = TypeVar("Each")

DirectoryPath: TypeAlias = str | os.PathLike[str]
ItemStream: TypeAlias = Generator[T, None, None]
_MORE_S = 30  # for the way there and back, beyond what the daemon waits


class Resources:
    """What a daemon has, asked for and read as what it is."""

    _noun: ClassVar[str] = ""
    _kind: Any = None

    def __init__(self, connection: DaemonConnection) -> None:
        self._connection = connection

    def _place(self, path: str, given: dict[str, Any]) -> str:
        """A path with what it names in braces, which is taken out of what is given."""

        def named(match: re.Match[str]) -> str:
            text = str(given.pop(match[1])).strip()
            noun = whole.split("/")[1]
            if not text:
                raise InvalidInput(f"An empty text is not the {match[1]} of one of the {noun}.")
            return quote(text, safe="")

        whole = path.replace("{noun}", self._noun)
        return re.sub(r"\{(\w+)\}", named, whole)

    def _read(self, answer: object) -> Any:
        return read(self._kind, answer, f"/{self._noun}")


class Awaited(Resources):
    """The same for asyncio."""


class Method(Generic[P, T]):
    """A method that blocks, or an iterator; of what is Awaited a coroutine, or an asynchronous
    iterator."""

    def __init__(self, function: Callable[Concatenate[Any, P], T]) -> None:
        self._function: Any = function

    @overload
    def __get__(
        self: "Method[P, ItemStream[Each]]", one: Awaited, kind: type
    ) -> Callable[P, AsyncGenerator[Each, None]]: ...
    @overload
    def __get__(self, one: Awaited, kind: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, one: Resources | None, kind: type) -> Callable[P, T]: ...
    def __get__(self, one: Resources | None, kind: type) -> Any:
        function = self._function.__get__(one, kind)

        @wraps(function)
        async def call(*args: P.args, **kwargs: P.kwargs) -> Any:
            with _Worker() as worker:
                return await worker.call(partial(function, *args, **kwargs))

        @wraps(function)
        async def iterate(*args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[Any, None]:
            items = function(*args, **kwargs)
            end = object()
            with _Worker(items.close) as worker:
                while (item := await worker.call(partial(next, items, end))) is not end:
                    yield item

        if not isinstance(one, Awaited):
            return function
        returned = inspect.signature(function).return_annotation
        if get_origin(returned) is Generator:
            return iterate
        return call


class _Worker:
    """A thread that makes one blocking call after another for a coroutine, and then a last one."""

    def __init__(self, last: Callable[[], None] = lambda: None) -> None:
        self._cancellation = Cancellation()
        self._last = last
        self._calls = SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]()
        # A program that ends does not wait for what it has broken off.
        threading.Thread(target=self._work, name="kapelle-client", daemon=True).start()

    def __enter__(self) -> "_Worker":
        return self

    async def call(self, function: Callable[[], T]) -> T:
        future: Future[T] = Future()
        self._calls.put((future, function))
        return await asyncio.wrap_future(future)

    def __exit__(self, *_: object) -> None:
        """Break off what is under way."""
        self._cancellation.request()
        self._calls.put((Future(), self._last))
        self._calls.put(None)

    def _work(self) -> None:
        cancellation.set(self._cancellation)
        while (call := self._calls.get()) is not None:
            future, function = call
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)


def request(
    method: str, path: str, **options: Any
) -> Callable[[Callable[Concatenate[Any, P], T]], Method[P, T]]:
    """A method without a body: what it is given stands in the path, or else in the query or the
    body of the request, and the answer is read as what it returns; a stream asks for the pages of a
    list as they are needed."""

    def made(function: Callable[Concatenate[Any, P], T]) -> Method[P, T]:
        signature = inspect.signature(function)
        returned = signature.return_annotation

        @wraps(function)
        def perform(self: Resources, /, *args: P.args, **kwargs: P.kwargs) -> Any:
            given = _given(signature, self, *args, **kwargs)
            where = self._place(path, given)
            if get_origin(returned) is Generator:
                kind = get_args(returned)[0]
                items = self._connection.pages(where, given)
                return (read(kind, item, where) for item in items)
            if "timeout_s" in given:
                more = {"timeout": given["timeout_s"] + _MORE_S}
            else:
                more = options
            answer = getattr(self._connection, method)(where, given, **more)
            return read(self._kind if isinstance(returned, TypeVar) else returned, answer, where)

        return Method(perform)

    return made


def _given(signature: inspect.Signature, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """What a method is called with, by its names, as it is sent."""
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    (_self, *given) = bound.arguments.items()
    found = dict(given)
    for name, parameter in signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            found |= found.pop(name)
    if found.get("directory") is not None:
        found["directory"] = absolute(found["directory"])
    return as_json(found)


def absolute(directory: DirectoryPath) -> str:
    """A directory of this process as the daemon is told it."""
    try:
        return os.path.abspath(directory)
    except FileNotFoundError:
        raise InvalidInput(
            f"The current directory is gone, so {os.fspath(directory)!r} is nowhere.",
            hint="Name an absolute directory.",
        ) from None


def as_json(given: Mapping[str, Any]) -> dict[str, Any]:
    try:
        found: dict[str, Any] = to_jsonable_python(dict(given))
    except (PydanticSerializationError, TypeError) as error:
        raise InvalidInput(f"This cannot be sent: {error}.") from None
    return found


def read(kind: type[T], answer: object, place: str) -> T:
    """An answer as what it is; a daemon of another version may tell what is not understood."""
    wanted: Any = kind
    try:
        found: T = _adapter(wanted).validate_python(answer)
    except ValidationError as error:
        raise KapelleError(
            f"{place} was answered with what cannot be read: {sentence(error, 1)}.",
            hint="Is the daemon of the same version as this program, and is it Kapelle at all?",
        ) from None
    return found


_adapter = cache(TypeAdapter)
