"""GitHub, and Gitea and Forgejo, whose API resembles it."""

from contextlib import suppress
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from kapelle.domain.errors import ForgeError, Unavailable
from kapelle.domain.views import Comment
from kapelle.workspaces.forge.base import MOST_LOGS, Forge, PullRequest, State, Verdict, Wanted

_BAD = {
    "failure", "cancelled", "timed_out", "action_required", "startup_failure", "error", "stale",
    "warning",
}  # fmt: skip
_ENDED = {"success", "neutral", "skipped"}
_READY = "markPullRequestReadyForReview"
_DRAFT = "convertPullRequestToDraft"


class GitHub(Forge):
    kind = "github"
    # Where comments are: on the whole, and on lines.
    _places: tuple[str, ...] = ("issues", "pulls")

    @property
    def _path(self) -> str:
        return f"repos/{quote(self.project)}"

    async def find(self, branch: str) -> PullRequest | None:
        owner = self.project.partition("/")[0]
        query = f"state=open&head={quote(f'{owner}:{branch}', safe='')}"
        found = await self.call("GET", f"{self._path}/pulls?{query}")
        return next((one for one in map(self._read, found) if one.branch == branch), None)

    async def pull_request(self, number: int) -> PullRequest:
        return self._read(await self.call("GET", f"{self._path}/pulls/{number}"))

    async def open(self, wanted: Wanted) -> PullRequest:
        body: dict[str, Any] = {"title": wanted.title, "head": wanted.branch, "base": wanted.base}
        body |= {"body": wanted.text} | ({"draft": True} if wanted.draft else {})
        return self._read(await self.call("POST", f"{self._path}/pulls", body))

    async def update(self, found: PullRequest, wanted: Wanted) -> PullRequest:
        if (found.state == "draft") != wanted.draft:
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

    async def verdict(self, commit: str) -> Verdict:
        runs = await self.every(f"{self._path}/commits/{commit}/check-runs", "check_runs")
        status = await self.call("GET", f"{self._path}/commits/{commit}/status?per_page=100")
        bad, log = [run for run in runs if run["conclusion"] in _BAD], ""
        for run in bad[:MOST_LOGS]:
            output = run.get("output") or {}
            told = "\n".join(filter(None, (output.get("summary"), output.get("text"))))
            path = f"{self._path}/actions/jobs/{run['id']}/logs"
            log += await self.log_of(run["name"], path, told)
        said = [f"{run['name']}: {run['conclusion']} {run.get('html_url') or ''}" for run in bad]
        ends = [run["conclusion"] for run in runs]
        return _verdict([one.strip() for one in said], log, ends, status)

    async def comments(self, number: int) -> list[Comment]:
        found = []
        for place in self._places:
            found += await self.every(f"{self._path}/{place}/{number}/comments")
        return sorted(map(_comment, found), key=lambda one: one.at)

    def _read(self, told: Any) -> PullRequest:
        state: State = "merged" if told.get("merged_at") or told.get("merged") else told["state"]
        if state == "open" and told.get("draft"):
            state = "draft"
        head, here = told["head"], told["base"]["repo"]["full_name"]
        is_here = (head.get("repo") or {}).get("full_name") == here
        return PullRequest(
            told["number"], told["html_url"], state, told["title"], told.get("body") or "",
            str(told.get("node_id") or ""), head["ref"] if is_here else "",
        )  # fmt: skip


class Gitea(GitHub):
    """Drafts are those whose title says so, and its CI tells statuses, and lately logs."""

    kind = "gitea"
    _places = ("issues",)
    _rows = 50
    _MARK = "WIP: "

    async def find(self, branch: str) -> PullRequest | None:
        found = await self.every(f"{self._path}/pulls?state=open")
        return next((one for one in map(self._read, found) if one.branch == branch), None)

    async def open(self, wanted: Wanted) -> PullRequest:
        title = f"{self._MARK * wanted.draft}{wanted.title}"
        return await super().open(replace(wanted, title=title, draft=False))

    async def update(self, found: PullRequest, wanted: Wanted) -> PullRequest:
        title = f"{self._MARK * wanted.draft}{found.title.removeprefix(self._MARK)}"
        body = {"title": title, "body": wanted.text}
        return self._read(await self.call("PATCH", f"{self._path}/pulls/{found.number}", body))

    async def verdict(self, commit: str) -> Verdict:
        status = await self.call("GET", f"{self._path}/commits/{commit}/status")
        found = _verdict([], "", [], status)
        return replace(found, log=found.log + await self._logs(commit)) if found.log else found

    async def _logs(self, commit: str) -> str:
        """What its failed jobs printed; nothing where it has no calls for that, as before Gitea
        1.25 and Forgejo 16."""
        log = ""
        with suppress(ForgeError, Unavailable, LookupError, TypeError):
            path = f"{self._path}/actions/runs"
            for run in (await self.call("GET", f"{path}?head_sha={commit}"))["workflow_runs"]:
                jobs = (await self.call("GET", f"{path}/{run['id']}/jobs"))["jobs"]
                for job in [job for job in jobs if job["conclusion"] in _BAD][:MOST_LOGS]:
                    where = f"{self._path}/actions/jobs/{job['id']}/logs"
                    log += await self.log_of(job["name"], where)
        return log

    def _read(self, told: Any) -> PullRequest:
        is_draft, head = told["title"].startswith(self._MARK), told["head"]
        # The ref is another one as soon as the branch is deleted.
        head = {**head, "ref": head.get("label") or head["ref"]}
        return super()._read({"draft": is_draft, **told, "head": head})


def _verdict(bad: list[str], log: str, ends: list[str | None], status: Any) -> Verdict:
    """What checks and statuses amount to: some failed one is enough, whatever still goes on; what
    was skipped says nothing."""
    ends = list(ends)
    for one in status["statuses"] or ():
        ends.append(one.get("state") or one.get("status"))  # Gitea calls it its status
        if ends[-1] in _BAD:
            said = one.get("description") or "failed"
            bad.append(f"{one['context']}: {said} {one['target_url'] or ''}")
    # That of all, also of those that were not listed.
    whole = status["state"] if status["statuses"] else "success"
    if not bad and whole in _BAD:
        bad.append(f"the statuses of the commit: {whole}")
    if bad:
        return Verdict("failed", "\n".join(bad) + "\n" + log)
    if not {whole, *ends} <= _ENDED:
        return Verdict("pending")
    return Verdict("passed" if "success" in ends else "none")


def _comment(told: Any) -> Comment:
    return Comment(
        author=(told.get("user") or {}).get("login") or "somebody",
        text=told.get("body") or "",
        path=told.get("path"),
        url=told["html_url"],
        at=told["created_at"],
    )
