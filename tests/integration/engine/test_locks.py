"""Locks against a model: never two holders, waits in order, every circle found, nothing held by
the dead; and on both databases."""

import asyncio
import itertools
import tempfile
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.integration.rows import task_row

from kapelle.domain.errors import Conflict, InvalidInput, KapelleError, LimitReached
from kapelle.domain.ids import new_id
from kapelle.domain.lock import LocksView, covers, has_conflict
from kapelle.domain.states import AttemptStatus
from kapelle.engine.locks import PATIENCE_S, PERSON, LockManager, PathClaim, real_path
from kapelle.store import attempts, events, tables
from kapelle.store.database import Connection, Database, sqlite_url
from kapelle.store.migrate import migrate

PLACE = "/checkout"


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Agents:
    """Attempts that run until they are ended, and the locks that they share."""

    def __init__(self, db: Database) -> None:
        self.db, self.clock = db, Clock()
        self.locks = LockManager(db, self.clock)

    async def add(self, count: int) -> list[str]:
        task = task_row()
        ids = [new_id("attempt") for _ in range(count)]

        def fill(connection: Connection) -> None:
            connection.execute(tables.tasks.insert().values(task))
            for number, id_ in enumerate(ids):
                attempts.insert(
                    connection, id=id_, task_id=task["id"], number=number, status="running",
                    mode="fresh", agent="x", warnings=[], started_at=datetime.now(UTC),
                )  # fmt: skip

        await self.db.write(fill)
        return ids

    async def end(self, owner: str) -> None:
        def finish(connection: Connection) -> None:
            attempts.update(
                connection, owner, status=AttemptStatus.LOST, ended_at=datetime.now(UTC)
            )
            events.append(connection, "attempt.lost")

        await self.db.write(finish)

    async def take(self, owner: str, *paths: str, timeout_s: float = 55, **more: Any) -> LocksView:
        return await self.locks.take(PathClaim(PLACE, paths, owner, **more), timeout_s)

    async def ask(self, owner: str, *paths: str) -> "asyncio.Task[LocksView]":
        """A request that waits now, or that has been answered."""
        task = asyncio.create_task(self.take(owner, *paths))
        await self.rest([(owner, task)])
        return task

    async def rest(self, asked: "Iterable[tuple[str, asyncio.Task[LocksView]]]") -> None:
        """Return when everybody who asked has a place in the queue or an answer."""
        for owner, task in asked:
            while not task.done() and owner not in self.waiting:
                await asyncio.wait([task], timeout=0.001)

    @property
    def waiting(self) -> list[str]:
        return [one.owner for one in self.locks.list_locks() if one.status == "waiting"]

    @property
    def held(self) -> dict[str, str]:
        return {one.path: one.owner for one in self.locks.list_locks() if one.status == "held"}


@pytest.fixture
def agents(db: Database) -> Agents:
    return Agents(db)


async def test_what_is_held_is_waited_for_in_order_and_renewed(agents: Agents) -> None:
    first, second, third = await agents.add(3)
    assert (await agents.take(first, "src/a.py", "lib")).held
    refused = await agents.take(second, "lib/x/y.py", timeout_s=0)
    assert [(one.path, one.owner) for one in refused.waiting_for] == [("lib", first)]
    assert len(agents.locks.list_locks()) == 2, "whoever does not wait has no place"
    wants = await agents.ask(second, "**")
    behind = await agents.ask(third, "other")
    assert not behind.done(), "nobody passes who comes later"
    agents.clock.now += 599
    assert (await agents.take(first, "lib")).held, "it has it already, so it does not wait"
    agents.clock.now += 599
    await agents.locks.sweep()
    assert agents.held == {"lib": first}
    await agents.locks.release(PLACE, [], first)
    assert (await wants).held
    await agents.locks.release(PLACE, ["**"], None)
    assert (await behind).held
    again = LockManager(agents.db, agents.clock)
    await again.load()
    assert [(one.path, one.owner) for one in again.list_locks()] == [("other", third)]
    with pytest.raises(LimitReached):
        await agents.take(third, *(f"{n}" for n in range(501)))


async def test_a_deadlock_is_found_at_once_and_named(agents: Agents) -> None:
    owners = await agents.add(3)
    for number, owner in enumerate(owners):
        await agents.take(owner, f"{number}")
    waiting = [await agents.ask(owner, f"{number + 1}") for number, owner in enumerate(owners[:2])]
    with pytest.raises(Conflict, match=r"Deadlock: .*waits for 0 after .*for 1 after .*for 2"):
        await agents.take(owners[2], "0")
    await agents.locks.release(PLACE, [], owners[2])
    assert (await waiting[1]).held
    await agents.locks.release(PLACE, [], owners[1])
    assert (await waiting[0]).held


async def test_who_holds_a_folder_has_what_is_in_it(agents: Agents) -> None:
    first, second = await agents.add(2)
    await agents.take(first, "src", "doc/*.md")
    waiting = await agents.ask(second, "src/a.py", "doc/x.md")
    assert (await agents.take(first, "src/a.py", "src/*/b", "doc/x.md", "free")).held
    await agents.locks.release(PLACE, [], first)
    assert (await waiting).held


async def test_a_child_does_not_wait_for_whoever_waits_for_it(agents: Agents) -> None:
    parent, child, other = await agents.add(3)
    await agents.take(parent, "a", task_id="task_parent")
    between = await agents.ask(other, "a", "b")
    for path in ("a", "b"):
        with pytest.raises(Conflict, match="task_parent started task_child and waits for it"):
            await agents.take(child, path, task_id="task_child", parents=frozenset({"task_parent"}))
    await agents.locks.release(PLACE, [], parent)
    assert (await between).held


async def test_what_cannot_be_renewed_is_held_still(
    agents: Agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await agents.add(2)
    await agents.take(first, "a")

    async def fail(*_: object) -> None:
        raise KapelleError("full")

    with monkeypatch.context() as patch:
        patch.setattr(agents.db, "write", fail)
        with pytest.raises(KapelleError, match="full"):
            await agents.take(first, "a", "b")
    assert agents.held == {"a": first}
    agents.clock.now += 600
    assert (await agents.take(second, "a")).held
    again = LockManager(agents.db, agents.clock)
    await again.load()
    assert [one.owner for one in again.list_locks()] == [second]


async def test_globs_are_few_and_links_before_them_are_followed(
    agents: Agents, tmp_path: Path
) -> None:
    [first] = await agents.add(1)
    await agents.take(first, *(f"{n}*" for n in range(20)))
    with pytest.raises(LimitReached, match="20 globs"):
        await agents.take(first, "x*")
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    place = str(tmp_path.resolve())
    for path in ("link/*.py", f"{place}/link/*.py"):
        assert real_path(path, place, place) == "real/*.py"
    with pytest.raises(InvalidInput):
        real_path("x*/../link/a", place, place)


async def test_the_dead_and_the_late_hold_nothing(agents: Agents) -> None:
    first, second, third = await agents.add(3)
    await agents.take(first, "a")
    await agents.take(second, "b", ttl_s=10)
    waiting = await agents.ask(third, "a", "b")
    sweeping = asyncio.create_task(agents.locks.run())
    await agents.end(first)
    with agents.db.watch("lock.released") as released:
        while first in agents.held.values():
            await released.wait(5)
    agents.clock.now += 10
    assert agents.locks.in_way_of(PLACE, ["b"], third) is None
    await agents.locks.sweep()
    assert (await waiting).held
    gone = await agents.ask(second, "a")
    gone.cancel()
    await asyncio.wait([gone])
    late = await agents.ask(PERSON, "a")
    await agents.locks.release(PLACE, [], third)
    assert not late.done(), "the one before it may ask again"
    agents.clock.now += PATIENCE_S
    await agents.locks.sweep()
    assert (await late).held
    sweeping.cancel()
    told = [
        event for event in await agents.db.read(events.list_after, 0) if event.kind[:4] == "lock"
    ]
    assert [event.data["why"] for event in told if event.kind == "lock.released"] == [
        "its attempt ended", "expired", "released",
    ]  # fmt: skip


async def test_fifty_contend_and_each_has_its_turn(agents: Agents) -> None:
    owners, order, inside = await agents.add(50), list[str](), 0

    async def work(owner: str) -> None:
        nonlocal inside
        assert (await agents.take(owner, "src/**", "doc/*.md")).held
        inside += 1
        assert inside == 1
        order.append(owner)
        await asyncio.sleep(0)
        inside -= 1
        await agents.locks.release(PLACE, [], owner)

    await asyncio.gather(*map(work, owners))
    assert sorted(order) == sorted(owners)
    assert agents.locks.list_locks() == []


NAMES = ["a", "a/b", "a/*", "c", "**"]


class Contention(RuleBasedStateMachine):
    """Agents take, release, die and are late, in any order; a plain model says who should hold."""

    @initialize()
    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()
        db = Database(sqlite_url(Path(self.folder.name) / "db"))
        migrate(db.engine)
        self.agents = Agents(db)
        self.owners = self.loop.run_until_complete(self.agents.add(4))
        self.waiting: dict[int, tuple[str, str, asyncio.Task[LocksView]]] = {}
        self.number = itertools.count()

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    @property
    def blocked(self) -> list[tuple[int, str, str]]:
        """The requests that are open, in the order in which they came."""
        return [(n, owner, path) for n, (owner, path, _) in self.waiting.items()]

    @rule(who=st.integers(0, 3), path=st.sampled_from(NAMES))
    def take(self, who: int, path: str) -> None:
        owner = self.owners[who]
        if any(owner == other for _, other, _ in self.blocked):
            return  # an agent waits for one thing at a time
        held = self.agents.held
        closes = self.closes_a_circle(owner, path, held)
        if any(owner == other and covers(text, path) for text, other in held.items()):
            closes = False
        task = self.run(self.agents.ask(owner, path))
        if closes:
            assert isinstance(task.exception(), Conflict), "every circle is found"
            return
        self.waiting[next(self.number)] = (owner, path, task)
        self.collect()

    def closes_a_circle(self, owner: str, path: str, held: dict[str, str]) -> bool:
        edges: dict[str, set[str]] = {}
        asked = [*self.blocked, (-1, owner, path)]
        for place, (_, waiter, wanted) in enumerate(asked):
            before = [(other, text) for _, other, text in asked[:place]]
            before += [(other, text) for text, other in held.items()]
            edges[waiter] = {
                other for other, text in before
                if other != waiter and has_conflict([wanted], [text])
            }  # fmt: skip
        reached, open_ = set[str](), [owner]
        while open_:
            new = edges.get(open_.pop(), set()) - reached
            reached |= new
            open_ += new
        return owner in reached

    @rule(who=st.integers(0, 3))
    def release(self, who: int) -> None:
        self.run(self.agents.locks.release(PLACE, [], self.owners[who]))
        self.collect()

    @rule(who=st.integers(0, 3))
    def die(self, who: int) -> None:
        dead = self.owners[who]
        self.run(self.agents.end(dead))
        self.run(self.agents.locks.sweep())
        for number, (owner, _, task) in list(self.waiting.items()):
            if owner == dead:
                task.cancel()
                self.run(asyncio.wait([task]))
                del self.waiting[number]
        [self.owners[who]] = self.run(self.agents.add(1))
        assert dead not in self.agents.held.values()
        self.collect()

    @rule(seconds=st.sampled_from([1.0, 300.0, 601.0]))
    def pass_time(self, seconds: float) -> None:
        self.agents.clock.now += seconds
        self.run(self.agents.locks.sweep())
        self.collect()

    def collect(self) -> None:
        self.run(self.agents.rest((owner, task) for owner, _, task in self.waiting.values()))
        for number, (_, _, task) in list(self.waiting.items()):
            if task.done():
                assert task.result().held
                del self.waiting[number]

    @invariant()
    def nothing_is_held_twice(self) -> None:
        if not hasattr(self, "agents"):
            return
        held = self.agents.held
        for (path, owner), (other_path, other) in itertools.combinations(held.items(), 2):
            assert owner == other or not has_conflict([path], [other_path])
        assert set(held.values()) <= {*self.owners}
        # Whoever waits has somebody before it: the first of those in each other's way is served.
        for place, (_, owner, path) in enumerate(self.blocked):
            before = [(other, text) for text, other in held.items()]
            before += [(other, text) for _, other, text in self.blocked[:place]]
            assert any(
                other != owner and has_conflict([path], [text]) for other, text in before
            ), (owner, path, held)  # fmt: skip

    def teardown(self) -> None:
        if not hasattr(self, "agents"):
            return
        for _, _, task in self.waiting.values():
            task.cancel()
            self.run(asyncio.wait([task]))
        self.agents.db.close()
        self.loop.close()
        self.folder.cleanup()


Contention.TestCase.settings = settings(
    max_examples=15, stateful_step_count=20, deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)  # fmt: skip
TestContention = Contention.TestCase
