"""What a task changed, be it in a worktree of its own or in its run's."""

from kapelle.domain.task import Workspace
from kapelle.engine.parts import Stage
from kapelle.workspaces import Diff


async def task_diff(stage: Stage, task_id: str, workspace: Workspace) -> Diff:
    """From where the task began to what it left."""
    if workspace.owner is None:
        return await stage.workspaces.diff(task_id)
    if workspace.base_commit is None:
        return Diff(b"", "", [])
    # Others work there after it, so what it left is what it committed.
    left = workspace.commit or await stage.workspaces.tip(workspace.owner)
    return await stage.workspaces.compare(workspace.owner, workspace.base_commit, left)
