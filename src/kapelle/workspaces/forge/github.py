"""GitHub, and Gitea and Forgejo, whose API resembles it."""

import re
from base64 import b64encode
from contextlib import suppress
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from kapelle.domain.errors import ForgeError, Unavailable
from kapelle.domain.work_views import Comment
from kapelle.workspaces.forge.base import (
    MOST_LOGS,
    CiVerdict,
    Forge,
    PullRequest,
    PullRequestDraft,
    PullRequestState,
    read_time,
    retitle,
)

_BAD = {
    "failure", "cancelled", "timed_out", "action_required", "startup_failure", "error", "stale",
    "warning",
}  # fmt: skip
_ENDED = {"success", "neutral", "skipped"}
# Beginnings of titles that make a draft at Gitea by default, and the one that Kapelle uses.
_MARKED = re.compile(r"\s*(?:WIP:|\[WIP\])", re.IGNORECASE)
_MARK = "WIP: "
_READY = "markPullRequestReadyForReview"
_DRAFT = "convertPullRequestToDraft"


class GitHub(Forge):
    kind = "github"

    @property
    def _path(self) -> str:
        return f"repos/{quote(self.project)}"

    async def full_name(self) -> str:
        return str((await self.call("GET", self._path))["full_name"])

    async def find(self, branch: str) -> PullRequest | None:
        owner = self.project.partition("/")[0]
        query = f"state=open&head={quote(f'{owner}:{branch}', safe='')}"
        rows = await self.every(f"{self._path}/pulls?{query}")
        return next((one for one in map(self._read, rows) if one.branch == branch), None)

    async def pull_request(self, number: int) -> PullRequest:
        return self._read(await self.call("GET", f"{self._path}/pulls/{number}"))

    async def open(self, draft: PullRequestDraft) -> PullRequest:
        body: dict[str, Any] = {"title": draft.title, "head": draft.branch, "base": draft.base}
        body |= {"body": draft.text} | ({"draft": True} if draft.draft else {})
        return self._read(await self.call("POST", f"{self._path}/pulls", body))

    async def update(self, pull_request: PullRequest, draft: PullRequestDraft) -> PullRequest:
        if draft.draft is not None and draft.draft != (pull_request.state == "draft"):
            change = _DRAFT if draft.draft else _READY
            query = f"{change}(input: {{pullRequestId: $id}}) {{ clientMutationId }}"
            query = f"mutation($id: ID!) {{ {query} }}"
            body = {"query": query, "variables": {"id": pull_request.node}}
            # At GitHub Enterprise, REST is at /api/v3 and GraphQL beside it.
            answer = await self.call("POST", "graphql", body, url=self._url.removesuffix("/v3"))
            if answer.get("errors"):
                raise ForgeError(
                    f"{self.host} refused the change: {answer['errors'][0].get('message')}."
                )
        path = f"{self._path}/pulls/{pull_request.number}"
        return self._read(await self.call("PATCH", path, {"body": draft.text}))

    async def verdict(self, commit: str) -> CiVerdict:
        runs = await self.every(f"{self._path}/commits/{commit}/check-runs", "check_runs")
        statuses = await self.every(f"{self._path}/commits/{commit}/status", "statuses")
        bad = [run for run in runs if run["conclusion"] in _BAD]
        log = ""
        for run in bad[:MOST_LOGS]:
            output = run.get("output") or {}
            summary = "\n".join(filter(None, (output.get("summary"), output.get("text"))))
            path = f"{self._path}/actions/jobs/{run['id']}/logs"
            log += await self.log_of(run["name"], path, summary)
        results = [f"{run['name']}: {run['conclusion']} {run.get('html_url') or ''}" for run in bad]
        ends = [run["conclusion"] for run in runs]
        return _compute_verdict([one.strip() for one in results], log, ends, statuses)

    async def comments(self, number: int) -> list[Comment]:
        plain = await self.every(f"{self._path}/issues/{number}/comments")
        reviews = await self.every(f"{self._path}/pulls/{number}/reviews")
        on_lines = await self._list_line_comments(number, reviews)
        # A review without a summary is only the envelope of its line comments; one that has not
        # been submitted is seen by its author alone.
        summaries = [
            {**review, "created_at": review["submitted_at"]}
            for review in reviews
            if review.get("body") and review.get("submitted_at")
        ]
        comments = [_read_comment("comment", one) for one in plain]
        comments += [_read_comment("review", one) for one in summaries]
        comments += [_read_comment("line", one) for one in on_lines]
        return sorted(comments, key=lambda one: one.at)

    async def _list_line_comments(self, number: int, reviews: list[Any]) -> list[Any]:
        """Return the comments on lines in all reviews of a pull request."""
        return await self.every(f"{self._path}/pulls/{number}/comments")

    def _read(self, fields: Any) -> PullRequest:
        if fields.get("merged_at") or fields.get("merged"):
            state: PullRequestState = "merged"
        else:
            state = fields["state"]
        if state == "open" and fields.get("draft"):
            state = "draft"
        head = fields["head"]
        here = fields["base"]["repo"]["full_name"]
        is_here = (head.get("repo") or {}).get("full_name") == here
        return PullRequest(
            fields["number"], fields["html_url"], state, fields["title"], fields.get("body") or "",
            str(fields.get("node_id") or ""), head["ref"] if is_here else "", head.get("sha") or "",
        )  # fmt: skip


class Gitea(GitHub):
    """Gitea and Forgejo: the title makes a draft, and CI reports statuses."""

    kind = "gitea"
    _RIGHTS = "It needs write:repository and read:issue, where tokens have scopes."
    _rows = 50

    async def find(self, branch: str) -> PullRequest | None:
        rows = await self.every(f"{self._path}/pulls?state=open")
        return next((one for one in map(self._read, rows) if one.branch == branch), None)

    async def open(self, draft: PullRequestDraft) -> PullRequest:
        if draft.draft:
            title = f"{_MARK}{draft.title}"
        else:
            title = draft.title
        return await super().open(replace(draft, title=title, draft=None))

    async def update(self, pull_request: PullRequest, draft: PullRequestDraft) -> PullRequest:
        body = {"title": retitle(pull_request, draft.draft, _MARK), "body": draft.text}
        return self._read(
            await self.call("PATCH", f"{self._path}/pulls/{pull_request.number}", body)
        )

    @property
    def _authorization(self) -> str:
        if not self.login.is_from_helper:
            return super()._authorization
        # It may be a password, which is accepted only together with its name.
        login = f"{self.login.name}:{self.login.password}".encode()
        return f"Basic {b64encode(login).decode()}"

    async def verdict(self, commit: str) -> CiVerdict:
        statuses = await self.every(f"{self._path}/commits/{commit}/status", "statuses")
        verdict = _compute_verdict([], "", [], statuses)
        if verdict.log:
            return replace(verdict, log=verdict.log + await self._read_logs(commit))
        return verdict

    async def _list_line_comments(self, number: int, reviews: list[Any]) -> list[Any]:
        """Return the comments on lines, which Gitea lists only by review."""
        comments: list[Any] = []
        for review in reviews:
            if review.get("submitted_at"):
                path = f"{self._path}/pulls/{number}/reviews/{review['id']}/comments"
                comments += await self.every(path)
        return comments

    async def _read_logs(self, commit: str) -> str:
        """Return the logs of failed jobs; nothing before Gitea 1.25 and Forgejo 16."""
        log = ""
        with suppress(ForgeError, Unavailable, LookupError, TypeError):
            path = f"{self._path}/actions/runs"
            for run in await self.every(f"{path}?head_sha={commit}", "workflow_runs"):
                jobs = await self.every(f"{path}/{run['id']}/jobs", "jobs")
                # A job that has not ended has no conclusion.
                bad = [job for job in jobs if job.get("conclusion") in _BAD]
                for job in bad[:MOST_LOGS]:
                    where = f"{self._path}/actions/jobs/{job['id']}/logs"
                    log += await self.log_of(job["name"], where)
        return log

    def _read(self, fields: Any) -> PullRequest:
        head = fields["head"]
        # The ref changes when the branch is deleted; the label does not.
        head = {**head, "ref": head.get("label") or head["ref"]}
        has_mark = _MARKED.match(fields["title"]) is not None
        # Versions before 1.22 lack `draft`, but no version calls a draft mergeable.
        is_draft = fields.get("draft", has_mark and not fields.get("mergeable"))
        pull_request = super()._read({**fields, "draft": is_draft, "head": head})
        if not has_mark or pull_request.state != "open":
            return pull_request
        note = (
            f"{self.host} does not treat this title as that of a draft: the pull request can be "
            "merged. WORK_IN_PROGRESS_PREFIXES of its settings names the prefixes that do."
        )
        return replace(pull_request, note=note)


def _compute_verdict(
    bad: list[str], log: str, ends: list[str | None], statuses: list[Any]
) -> CiVerdict:
    """Compute the verdict from check runs and statuses: one failure is enough.

    A skipped check does not count. The forge's own `state` is not used: on Gitea it is the state of
    a page.
    """
    bad = list(bad)
    ends = list(ends)
    for status in statuses:
        state = status.get("state") or status.get("status")  # Gitea uses `status`
        ends.append(state)
        if state in _BAD:
            description = status.get("description") or "failed"
            bad.append(
                f"{status['context']}: {description} {status.get('target_url') or ''}".strip()
            )
    if bad:
        return CiVerdict("failed", "\n".join(bad) + "\n" + log)
    if not set(ends) <= _ENDED:
        return CiVerdict("pending")
    return CiVerdict("passed" if "success" in ends else "none")


def _read_comment(kind: str, fields: Any) -> Comment:
    return Comment(
        id=f"{kind}-{fields['id']}",
        author=(fields.get("user") or {}).get("login") or "somebody",
        text=fields.get("body") or "",
        path=fields.get("path"),
        url=fields["html_url"],
        at=read_time(fields["created_at"]),
    )
