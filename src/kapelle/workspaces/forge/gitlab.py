"""GitLab: merge requests, pipelines and notes."""

from typing import Any
from urllib.parse import quote

from kapelle.domain.views import Comment
from kapelle.workspaces.forge.base import Forge, PullRequest, State, Verdict, Wanted

_MARK = "Draft: "
_MOST_LOGS = 5
_STATES: dict[str, State] = {"opened": "open", "locked": "open", "merged": "merged"}
_PASSED, _FAILED = {"success", "skipped"}, {"failed", "canceled"}


class GitLab(Forge):
    kind = "gitlab"

    @property
    def _path(self) -> str:
        return f"projects/{quote(self.project, safe='')}"

    async def find(self, branch: str) -> PullRequest | None:
        query = f"state=opened&source_branch={quote(branch, safe='')}"
        found = await self.call("GET", f"{self._path}/merge_requests?{query}")
        return next(map(_read, found), None)

    async def pull_request(self, number: int) -> PullRequest:
        return _read(await self.call("GET", f"{self._path}/merge_requests/{number}"))

    async def open(self, wanted: Wanted) -> PullRequest:
        body = {
            "source_branch": wanted.branch,
            "target_branch": wanted.base,
            "title": f"{_MARK * wanted.draft}{wanted.title}",
            "description": wanted.text,
        }
        return _read(await self.call("POST", f"{self._path}/merge_requests", body))

    async def update(self, found: PullRequest, wanted: Wanted) -> PullRequest:
        title = f"{_MARK * wanted.draft}{found.title.removeprefix(_MARK)}"
        body = {"title": title, "description": wanted.text}
        path = f"{self._path}/merge_requests/{found.number}"
        return _read(await self.call("PUT", path, body))

    async def verdict(self, commit: str) -> Verdict:
        found = await self.call("GET", f"{self._path}/pipelines?sha={commit}&order_by=id&sort=desc")
        if not found:
            return Verdict("none")
        last = found[0]
        if last["status"] in _PASSED:
            return Verdict("passed")
        if last["status"] not in _FAILED:
            return Verdict("pending")
        path = f"{self._path}/pipelines/{last['id']}/jobs?scope[]=failed&per_page=100"
        log = f"pipeline {last['id']}: {last['status']} {last.get('web_url') or ''}\n"
        for job in (await self.call("GET", path))[:_MOST_LOGS]:
            told = await self.text(f"{self._path}/jobs/{job['id']}/trace")
            log += f"\n== {job['name']}\n{told.rstrip()}\n"
        return Verdict("failed", log)

    async def comments(self, number: int) -> list[Comment]:
        path = f"{self._path}/merge_requests/{number}/notes?sort=asc&per_page=100"
        return [
            Comment(
                author=one["author"]["username"],
                text=one["body"],
                path=(one.get("position") or {}).get("new_path"),
                url=None,
                at=one["created_at"],
            )
            for one in await self.call("GET", path)
            if not one["system"]
        ]


def _read(told: Any) -> PullRequest:
    state: State = _STATES.get(told["state"], "closed")
    if state == "open" and (told.get("draft") or told["title"].startswith(_MARK)):
        state = "draft"
    text = told.get("description") or ""
    return PullRequest(told["iid"], told["web_url"], state, told["title"], text)
