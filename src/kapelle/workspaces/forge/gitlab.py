"""GitLab: merge requests, pipelines and notes."""

from contextlib import suppress
from typing import Any, Literal
from urllib.parse import quote

from kapelle.domain.errors import ForgeError, Unavailable
from kapelle.domain.views import Comment
from kapelle.workspaces.forge.base import (
    DRAFT_MARKS,
    MOST_LOGS,
    CiVerdict,
    Forge,
    PullRequest,
    PullRequestDraft,
    PullRequestState,
    read_time,
    retitle,
)

_MARK = "Draft: "
_STATES: dict[str, PullRequestState] = {"opened": "open", "locked": "open", "merged": "merged"}
_VERDICTS: dict[str, Literal["none", "passed"]] = {"success": "passed", "skipped": "none"}
_FAILED = {"failed", "canceled"}


class GitLab(Forge):
    kind = "gitlab"
    _RIGHTS = "It needs the scope api."

    @property
    def _path(self) -> str:
        return f"projects/{quote(self.project, safe='')}"

    async def full_name(self) -> str:
        return str((await self.call("GET", self._path))["path_with_namespace"])

    async def find(self, branch: str) -> PullRequest | None:
        query = f"state=opened&source_branch={quote(branch, safe='')}"
        found = await self.every(f"{self._path}/merge_requests?{query}")
        return next((one for one in map(_read, found) if one.branch == branch), None)

    async def pull_request(self, number: int) -> PullRequest:
        return _read(await self.call("GET", f"{self._path}/merge_requests/{number}"))

    async def open(self, wanted: PullRequestDraft) -> PullRequest:
        body = {
            "source_branch": wanted.branch,
            "target_branch": wanted.base,
            "title": f"{_MARK}{wanted.title}" if wanted.draft else wanted.title,
            "description": wanted.text,
        }
        return _read(await self.call("POST", f"{self._path}/merge_requests", body))

    async def update(self, found: PullRequest, wanted: PullRequestDraft) -> PullRequest:
        body = {"title": retitle(found, wanted.draft, _MARK), "description": wanted.text}
        path = f"{self._path}/merge_requests/{found.number}"
        return _read(await self.call("PUT", path, body))

    async def verdict(self, commit: str) -> CiVerdict:
        pipelines = await self.every(f"{self._path}/pipelines?sha={commit}&order_by=id&sort=desc")
        # The newest of each reference: a branch and its merge request have pipelines of their own,
        # and one that was started again replaces the one before.
        newest: dict[str, Any] = {}
        for pipeline in pipelines:
            newest.setdefault(pipeline["ref"], pipeline)
        failed = [one for one in newest.values() if one["status"] in _FAILED]
        if failed:
            return CiVerdict("failed", "".join([await self._log(one) for one in failed]))
        states = {_VERDICTS.get(one["status"], "pending") for one in newest.values()}
        if "pending" in states:
            return CiVerdict("pending")
        return CiVerdict("passed" if "passed" in states else "none")

    async def _log(self, pipeline: Any) -> str:
        """Return what the failed jobs of a pipeline printed; it failed, whether that can be had or
        not."""
        log = f"pipeline {pipeline['id']}: {pipeline['status']} {pipeline.get('web_url') or ''}\n"
        path = f"{self._path}/pipelines/{pipeline['id']}/jobs?scope[]=failed"
        with suppress(ForgeError, Unavailable):
            jobs = [job for job in await self.every(path) if not job.get("allow_failure")]
            for job in jobs[:MOST_LOGS]:
                log += await self.log_of(job["name"], f"{self._path}/jobs/{job['id']}/trace")
        return log

    async def comments(self, number: int) -> list[Comment]:
        path = f"{self._path}/merge_requests/{number}/notes"
        told = [
            Comment(
                id=f"note-{one['id']}",
                author=one["author"]["username"],
                text=one["body"],
                path=(one.get("position") or {}).get("new_path"),
                url=None,
                at=read_time(one["created_at"]),
            )
            for one in await self.every(path)
            if not one["system"]
        ]
        return sorted(told, key=lambda one: one.at)


def _read(told: Any) -> PullRequest:
    state: PullRequestState = _STATES.get(told["state"], "closed")
    # Versions before 13.2 do not tell `draft`.
    is_draft = told.get("draft", DRAFT_MARKS.match(told["title"]) is not None)
    if state == "open" and is_draft:
        state = "draft"
    text = told.get("description") or ""
    is_here = told["source_project_id"] == told["target_project_id"]
    if is_here:
        branch = told["source_branch"]
    else:
        branch = ""
    return PullRequest(
        told["iid"], told["web_url"], state, told["title"], text,
        branch=branch, commit=told.get("sha") or "",
    )  # fmt: skip
