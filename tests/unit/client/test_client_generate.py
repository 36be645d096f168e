"""One definition, two flavours: what is committed is what the generator makes."""

import inspect
from types import ModuleType

import pytest

from kapelle.client.asynchronous import client as async_client
from kapelle.client.asynchronous import connection as async_connection
from kapelle.client.asynchronous import runs as async_runs
from kapelle.client.asynchronous import schedules as async_schedules
from kapelle.client.asynchronous import tasks as async_tasks
from kapelle.client.generate import SOURCE, TARGET, modules, synchronous
from kapelle.client.synchronous import client, connection, runs, schedules, tasks


def test_the_committed_files_are_the_generated_ones() -> None:
    made = dict(modules())
    assert {path.name for path in made} == {path.name for path in SOURCE.glob("*.py")}
    assert {path.name for path in made} == {path.name for path in TARGET.glob("*.py")}
    for path, text in made.items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run `make docs`"


def test_async_and_await_go_and_names_change() -> None:
    source = (
        "from contextlib import aclosing\n"
        "class AsyncThing:\n"
        "    async def __aenter__(self) -> 'Self':\n"
        "        async with aclosing(self.things()) as found:\n"
        "            return [await   (await x).aread() async for x in found]\n"
        "    def things(self) -> AsyncStream[int]: ...\n"
    )
    assert synchronous(source) == (
        "from contextlib import closing\n"
        "class Thing:\n"
        "    def __enter__(self) -> 'Self':\n"
        "        with closing(self.things()) as found:\n"
        "            return [(x).read() for x in found]\n"
        "    def things(self) -> Stream[int]: ...\n"
    )


def test_words_in_texts_and_comments_stay() -> None:
    source = '"""An async def for AsyncThing."""\n# await nothing\nname = f"await {async_name}"\n'
    assert synchronous('"""await Async"""  # async\n') == '"""await Async"""  # async\n'
    assert synchronous(source).startswith('"""An async def for AsyncThing."""\n# await nothing\n')


PAIRS = [
    (async_client, client, "Client"),
    (async_tasks, tasks, "Tasks"),
    (async_runs, runs, "Runs"),
    (async_schedules, schedules, "Schedules"),
    (async_connection, connection, "Connection"),
]


@pytest.mark.parametrize(("one", "other", "name"), PAIRS, ids=[name for _, _, name in PAIRS])
def test_both_flavours_offer_the_same(one: ModuleType, other: ModuleType, name: str) -> None:
    first, second = getattr(one, f"Async{name}"), getattr(other, name)
    names = {key for key, value in vars(first).items() if inspect.isfunction(value)}
    renamed = {"__aenter__": "__enter__", "__aexit__": "__exit__"}
    for key in names:
        theirs = getattr(second, renamed.get(key, key))
        assert not inspect.iscoroutinefunction(theirs)
        assert not inspect.isasyncgenfunction(theirs)
        assert list(inspect.signature(theirs).parameters) == list(
            inspect.signature(getattr(first, key)).parameters
        )
        assert inspect.getdoc(theirs) == inspect.getdoc(getattr(first, key))
    own = {key for key, value in vars(second).items() if inspect.isfunction(value)}
    assert own == {renamed.get(key, key) for key in names}
