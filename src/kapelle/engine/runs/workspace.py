"""The worktree that belongs to a run, in which its tasks work one after another."""

from pathlib import Path

from kapelle.domain.specs import WorkspaceKind
from kapelle.domain.task import Workspace
from kapelle.engine.parts import Parts
from kapelle.engine.processes.environment import list_copies_and_links
from kapelle.store import runs
from kapelle.store.rows import read_workspace


async def run_workspace(parts: Parts, run: runs.Row) -> Workspace:
    """Where a run works; a worktree is made when it is not there, and remembered."""
    if run["workspace_owner"] is not None:
        return await run_workspace(
            parts, await parts.db.read(runs.load_row, run["workspace_owner"])
        )
    if run["workspace_kind"] != WorkspaceKind.WORKTREE:
        return read_workspace(run)
    settings = parts.work_settings(run["directory"])
    made = await parts.workspaces.create(
        *(run["id"], Path(run["directory"]), run["spec"].get("base")),
        *list_copies_and_links(
            settings, run["directory"], parts.confiner.choose_rung(settings.confine)
        ),
    )
    if run["workspace_branch"] != made.branch or run["workspace_path"] != made.path:
        found = {f"workspace_{name}": getattr(made, name)
                 for name in ("path", "branch", "base", "base_commit")}  # fmt: skip
        await parts.db.write(runs.update, run["id"], **found)
    return made


async def restore_deleted(parts: Parts, owner: str) -> None:
    """Make the worktree of a run again, from its branch, where somebody deleted it meanwhile."""
    run = await parts.db.glance(runs.load_row, owner)
    if run["workspace_branch"] is not None and not Path(run["workspace_path"]).is_dir():
        await run_workspace(parts, run)
