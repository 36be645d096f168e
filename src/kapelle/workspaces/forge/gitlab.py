"""GitLab: merge requests, pipelines and notes."""

from contextlib import suppress
from typing import Any, Literal
from urllib.parse import quote

from kapelle.domain.errors import ForgeError, Unavailable
from kapelle.domain.work_views import Comment
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
        rows = await self.every(f"{self._path}/merge_requests?{query}")
        return next((one for one in map(_read, rows) if one.branch == branch), None)

    async def pull_request(self, number: int) -> PullRequest:
        return _read(await self.call("GET", f"{self._path}/merge_requests/{number}"))

    async def open(self, draft: PullRequestDraft) -> PullRequest:
        body = {
            "source_branch": draft.branch,
            "target_branch": draft.base,
            "title": f"{_MARK}{draft.title}" if draft.draft else draft.title,
            "description": draft.text,
        }
        return _read(await self.call("POST", f"{self._path}/merge_requests", body))

    async def update(self, pull_request: PullRequest, draft: PullRequestDraft) -> PullRequest:
        body = {"title": retitle(pull_request, draft.draft, _MARK), "description": draft.text}
        path = f"{self._path}/merge_requests/{pull_request.number}"
        return _read(await self.call("PUT", path, body))

    async def verdict(self, commit: str) -> CiVerdict:
        pipelines = await self.every(f"{self._path}/pipelines?sha={commit}&order_by=id&sort=desc")
        # The newest pipeline of each reference counts: a branch and its merge request have their
        # own pipelines, and a restarted one replaces the one before.
        newest: dict[str, Any] = {}
        for pipeline in pipelines:
            newest.setdefault(pipeline["ref"], pipeline)
        failed_pipelines = [one for one in newest.values() if one["status"] in _FAILED]
        if failed_pipelines:
            return CiVerdict(
                "failed", "".join([await self._read_log(one) for one in failed_pipelines])
            )
        states = {_VERDICTS.get(one["status"], "pending") for one in newest.values()}
        if "pending" in states:
            return CiVerdict("pending")
        return CiVerdict("passed" if "passed" in states else "none")

    async def _read_log(self, pipeline: Any) -> str:
        """Return the logs of the failed jobs of a pipeline, as far as they are available."""
        log = f"pipeline {pipeline['id']}: {pipeline['status']} {pipeline.get('web_url') or ''}\n"
        path = f"{self._path}/pipelines/{pipeline['id']}/jobs?scope[]=failed"
        with suppress(ForgeError, Unavailable):
            jobs = [job for job in await self.every(path) if not job.get("allow_failure")]
            for job in jobs[:MOST_LOGS]:
                log += await self.log_of(job["name"], f"{self._path}/jobs/{job['id']}/trace")
        return log

    async def comments(self, number: int) -> list[Comment]:
        path = f"{self._path}/merge_requests/{number}/notes"
        comments = [
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
        return sorted(comments, key=lambda one: one.at)


def _read(fields: Any) -> PullRequest:
    state: PullRequestState = _STATES.get(fields["state"], "closed")
    # Versions before 13.2 lack `draft`.
    is_draft = fields.get("draft", DRAFT_MARKS.match(fields["title"]) is not None)
    if state == "open" and is_draft:
        state = "draft"
    text = fields.get("description") or ""
    is_here = fields["source_project_id"] == fields["target_project_id"]
    if is_here:
        branch = fields["source_branch"]
    else:
        branch = ""
    return PullRequest(
        fields["iid"], fields["web_url"], state, fields["title"], text,
        branch=branch, commit=fields.get("sha") or "",
    )  # fmt: skip
