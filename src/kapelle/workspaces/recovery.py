"""Making good a merge that a crash cut short: completed when the branch had moved, else undone."""

import tempfile
from pathlib import Path

from kapelle.domain.errors import Conflict, KapelleError
from kapelle.workspaces.checkout import BaseCheckout
from kapelle.workspaces.commit import is_ancestor
from kapelle.workspaces.content import WorkTree
from kapelle.workspaces.discovery import Checkout, checkout_at, read_pointer
from kapelle.workspaces.git import Git, Place
from kapelle.workspaces.journal import Journal, Move
from kapelle.workspaces.locks import Locks
from kapelle.workspaces.refs import read_ref, repository_place
from kapelle.workspaces.repository import habits_of
from kapelle.workspaces.skeleton import Lender, Skeletons


class Recovery:
    """For one repository; whoever uses it holds the lock for merging there."""

    def __init__(self, git: Git, skeletons: Skeletons, lender: Lender, journal: Journal) -> None:
        self._git = git
        self._skeletons = skeletons
        self._lender = lender
        self._journal = journal
        self._refs = repository_place(lender.common_dir)

    async def recover(self) -> Path | None:
        """Finish or forget what the journal says; returns the checkout it concerned."""
        move = self._journal.read()
        if move is None:
            return None
        clear_ref_locks(self._lender.common_dir, move)
        reading = await self._skeletons.reading(self._lender)
        updated = None
        done = await self._is_done(move)
        for toplevel in map(Path, move.toplevels):
            found = checkout_at(toplevel)
            if found is None or found.common_dir != self._lender.common_dir:
                continue
            with self._skeletons.scratch() as scratch:
                checkout = await self.base_checkout(reading, found, scratch)
                if done:
                    await checkout.finish(move.old, move.new)
                    updated = updated or toplevel
                checkout.unlock()
        self._journal.clear()
        return updated

    async def _is_done(self, move: Move) -> bool:
        """Whether the branch holds the merge."""
        now = await read_ref(self._git, self._refs, move.ref)
        reading = await self._skeletons.reading(self._lender)
        return now is not None and await is_ancestor(self._git, reading, move.new, now)

    async def base_checkout(self, reading: Place, found: Checkout, scratch: Path) -> BaseCheckout:
        habits = await habits_of(self._git, found)
        index = found.gitdir / "index"
        work_tree = WorkTree(found.toplevel, index, self._lender, habits.settings, habits.ignore)
        own = Path(tempfile.mkdtemp(dir=scratch)) / "index"
        return BaseCheckout(self._git, reading, work_tree, found.gitdir, own)


def clear_ref_locks(common_dir: Path, move: Move) -> None:
    """Remove the lock of our own git that was killed: nobody else knows the commit in it."""
    lock, head = common_dir / f"{move.ref}.lock", common_dir / "HEAD.lock"
    if read_pointer(lock) != move.new:
        return
    # git locks HEAD, without content, together with the branch that it points to.
    if read_pointer(common_dir / "HEAD") == f"ref: {move.ref}" and read_pointer(head) == "":
        head.unlink(missing_ok=True)
    lock.unlink(missing_ok=True)


async def finish_merges(git: Git, skeletons: Skeletons, locks: Locks, journals: Path) -> list[str]:
    """Recover every journalled merge; one that cannot be is told only after all were tried."""
    finished, errors = [], []
    for path in sorted(journals.glob("*.json")):
        try:
            move = await _finish(git, skeletons, locks, path)
        except KapelleError as error:
            errors.append(error)
        else:
            finished += [] if move is None else [move.task_id]
    if errors:
        hints = " ".join(error.hint for error in errors if error.hint)
        raise Conflict(" ".join(error.message for error in errors), hint=hints or None)
    return finished


async def _finish(git: Git, skeletons: Skeletons, locks: Locks, path: Path) -> Move | None:
    common_dir = Journal.repository_of(path)
    if common_dir is None:
        return None
    journal = Journal(path.parent, common_dir)
    # Inherited by every git of a merge: once it is held, none of them is left.
    async with locks.hold("merge", str(common_dir)):
        move = journal.read()
        if move is None:
            return None
        if not (common_dir / "objects").is_dir():
            raise Conflict(f"A merge into {common_dir} was cut short, and that is not there now.")
        habits = await habits_of(git, Checkout(common_dir, common_dir, common_dir))
        lender = Lender(common_dir, habits.object_format)
        await Recovery(git, skeletons, lender, journal).recover()
    return move
