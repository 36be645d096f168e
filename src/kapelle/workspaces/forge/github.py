"""GitHub, and Gitea and Forgejo, whose API resembles it."""

import re
from base64 import b64encode
from contextlib import suppress
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from kapelle.domain.errors import ForgeError, Unavailable
from kapelle.domain.views import Comment
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
# The marks of drafts in titles of Gitea, unless its settings name others, and the one we use.
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
        found = await self.every(f"{self._path}/pulls?{query}")
        return next((one for one in map(self._read, found) if one.branch == branch), None)

    async def pull_request(self, number: int) -> PullRequest:
        return self._read(await self.call("GET", f"{self._path}/pulls/{number}"))

    async def open(self, wanted: PullRequestDraft) -> PullRequest:
        body: dict[str, Any] = {"title": wanted.title, "head": wanted.branch, "base": wanted.base}
        body |= {"body": wanted.text} | ({"draft": True} if wanted.draft else {})
        return self._read(await self.call("POST", f"{self._path}/pulls", body))

    async def update(self, found: PullRequest, wanted: PullRequestDraft) -> PullRequest:
        if wanted.draft is not None and wanted.draft != (found.state == "draft"):
            change = _DRAFT if wanted.draft else _READY
            query = f"{change}(input: {{pullRequestId: $id}}) {{ clientMutationId }}"
            query = f"mutation($id: ID!) {{ {query} }}"
            body = {"query": query, "variables": {"id": found.node}}
            # Of GitHub Enterprise, REST is at /api/v3 and GraphQL beside it.
            answer = await self.call("POST", "graphql", body, url=self._url.removesuffix("/v3"))
            if answer.get("errors"):
                raise ForgeError(f"{self.host} refused it: {answer['errors'][0].get('message')}.")
        path = f"{self._path}/pulls/{found.number}"
        return self._read(await self.call("PATCH", path, {"body": wanted.text}))

    async def verdict(self, commit: str) -> CiVerdict:
        runs = await self.every(f"{self._path}/commits/{commit}/check-runs", "check_runs")
        statuses = await self.every(f"{self._path}/commits/{commit}/status", "statuses")
        bad = [run for run in runs if run["conclusion"] in _BAD]
        log = ""
        for run in bad[:MOST_LOGS]:
            output = run.get("output") or {}
            told = "\n".join(filter(None, (output.get("summary"), output.get("text"))))
            path = f"{self._path}/actions/jobs/{run['id']}/logs"
            log += await self.log_of(run["name"], path, told)
        said = [f"{run['name']}: {run['conclusion']} {run.get('html_url') or ''}" for run in bad]
        ends = [run["conclusion"] for run in runs]
        return _verdict([one.strip() for one in said], log, ends, statuses)

    async def comments(self, number: int) -> list[Comment]:
        plain = await self.every(f"{self._path}/issues/{number}/comments")
        reviews = await self.every(f"{self._path}/pulls/{number}/reviews")
        on_lines = await self._line_comments(number, reviews)
        # A review without a summary is only the envelope of its line comments; one that has not
        # been submitted is seen by its author alone.
        summaries = [
            {**review, "created_at": review["submitted_at"]}
            for review in reviews
            if review.get("body") and review.get("submitted_at")
        ]
        found = [_comment("comment", one) for one in plain]
        found += [_comment("review", one) for one in summaries]
        found += [_comment("line", one) for one in on_lines]
        return sorted(found, key=lambda one: one.at)

    async def _line_comments(self, number: int, reviews: list[Any]) -> list[Any]:
        """Return the comments on lines of all reviews of a pull request."""
        return await self.every(f"{self._path}/pulls/{number}/comments")

    def _read(self, told: Any) -> PullRequest:
        if told.get("merged_at") or told.get("merged"):
            state: PullRequestState = "merged"
        else:
            state = told["state"]
        if state == "open" and told.get("draft"):
            state = "draft"
        head = told["head"]
        here = told["base"]["repo"]["full_name"]
        is_here = (head.get("repo") or {}).get("full_name") == here
        return PullRequest(
            told["number"], told["html_url"], state, told["title"], told.get("body") or "",
            str(told.get("node_id") or ""), head["ref"] if is_here else "", head.get("sha") or "",
        )  # fmt: skip


class Gitea(GitHub):
    """Drafts are those whose title says so, and its CI tells statuses, and lately logs."""

    kind = "gitea"
    _RIGHTS = "It needs write:repository and read:issue, where tokens have scopes."
    _rows = 50

    async def find(self, branch: str) -> PullRequest | None:
        found = await self.every(f"{self._path}/pulls?state=open")
        return next((one for one in map(self._read, found) if one.branch == branch), None)

    async def open(self, wanted: PullRequestDraft) -> PullRequest:
        if wanted.draft:
            title = f"{_MARK}{wanted.title}"
        else:
            title = wanted.title
        return await super().open(replace(wanted, title=title, draft=None))

    async def update(self, found: PullRequest, wanted: PullRequestDraft) -> PullRequest:
        body = {"title": retitle(found, wanted.draft, _MARK), "body": wanted.text}
        return self._read(await self.call("PATCH", f"{self._path}/pulls/{found.number}", body))

    @property
    def _authorization(self) -> str:
        if not self.login.is_from_helper:
            return super()._authorization
        # It may be a password, which is taken with its name alone.
        login = f"{self.login.name}:{self.login.password}".encode()
        return f"Basic {b64encode(login).decode()}"

    async def verdict(self, commit: str) -> CiVerdict:
        statuses = await self.every(f"{self._path}/commits/{commit}/status", "statuses")
        found = _verdict([], "", [], statuses)
        if found.log:
            return replace(found, log=found.log + await self._logs(commit))
        return found

    async def _line_comments(self, number: int, reviews: list[Any]) -> list[Any]:
        """Return the comments on lines, which Gitea lists by review and nowhere else."""
        found: list[Any] = []
        for review in reviews:
            if review.get("submitted_at"):
                path = f"{self._path}/pulls/{number}/reviews/{review['id']}/comments"
                found += await self.every(path)
        return found

    async def _logs(self, commit: str) -> str:
        """What its failed jobs printed; nothing where it has no calls for that, as before Gitea
        1.25 and Forgejo 16."""
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

    def _read(self, told: Any) -> PullRequest:
        head = told["head"]
        # The ref is another one as soon as the branch is deleted.
        head = {**head, "ref": head.get("label") or head["ref"]}
        has_mark = _MARKED.match(told["title"]) is not None
        # Versions before 1.22 do not tell `draft`, but none calls a draft mergeable.
        is_draft = told.get("draft", has_mark and not told.get("mergeable"))
        found = super()._read({**told, "draft": is_draft, "head": head})
        if not has_mark or found.state != "open":
            return found
        note = (
            f"{self.host} does not treat this title as that of a draft: the pull request can be "
            "merged. WORK_IN_PROGRESS_PREFIXES of its settings names the prefixes that do."
        )
        return replace(found, note=note)


def _verdict(bad: list[str], log: str, ends: list[str | None], statuses: list[Any]) -> CiVerdict:
    """Compute the verdict from check runs and statuses alone: one failure is enough, whatever else
    still runs; a skipped one counts for nothing.

    The forge's own `state` is not used: on Gitea it is the state of a page.
    """
    bad = list(bad)
    ends = list(ends)
    for status in statuses:
        state = status.get("state") or status.get("status")  # Gitea's word is status
        ends.append(state)
        if state in _BAD:
            said = status.get("description") or "failed"
            bad.append(f"{status['context']}: {said} {status.get('target_url') or ''}".strip())
    if bad:
        return CiVerdict("failed", "\n".join(bad) + "\n" + log)
    if not set(ends) <= _ENDED:
        return CiVerdict("pending")
    return CiVerdict("passed" if "success" in ends else "none")


def _comment(kind: str, told: Any) -> Comment:
    return Comment(
        id=f"{kind}-{told['id']}",
        author=(told.get("user") or {}).get("login") or "somebody",
        text=told.get("body") or "",
        path=told.get("path"),
        url=told["html_url"],
        at=read_time(told["created_at"]),
    )
