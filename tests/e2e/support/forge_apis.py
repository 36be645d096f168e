"""The REST of GitHub, GitLab and Gitea as the test's forge answers it.

Requests are held to the published descriptions; answers have the fields that those have, of what is
used here. What was seen of a real Gitea 1.16 and its sources is done as it does it.
"""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.e2e.support.forge_server import ForgeServer

# From GitHub's OpenAPI description: what POST and PATCH of pulls take.
_CREATE = {
    "title", "head", "head_repo", "base", "body", "maintainer_can_modify", "draft", "issue",
}  # fmt: skip
_PATCH = {"title", "body", "state", "base", "maintainer_can_modify"}
_GITLAB_DRAFT = re.compile(r"\s*(\[draft\]|\(draft\)|draft:)", re.IGNORECASE)
Answer = tuple[int, Any]
FullAnswer = tuple[int, dict[str, str], Any]
_NOT_FOUND: Answer = (404, {"message": "Not Found"})


@dataclass
class Request:
    """A call of an API."""

    method: str
    path: str
    query: dict[str, str]
    body: Any
    # How somebody logs in (Bearer, Basic or nothing), and with what.
    login: str
    password: str


class GitHubApi:
    _size_name, _default_size, _most_rows = "per_page", 30, 100

    def __init__(self, forge: "ForgeServer") -> None:
        self.forge = forge

    def answer(self, request: Request) -> FullAnswer:
        if refusal := self._refuse(request):
            return refusal[0], {}, refusal[1]
        for name, status in self.forge.old_names.items():
            if request.path.startswith(self._prefix(name)):
                return self._moved(request, name, status)
        if request.path == "graphql":
            return 200, {}, self._graphql(request.body)
        # GitHub redirects to the number of a repository.
        prefix = next(
            (one for one in (self._prefix(), "repositories/1") if request.path.startswith(one)), ""
        )
        if not prefix:
            return 404, {}, {"message": "Not Found"}
        status, answer = self._serve(request, request.path.removeprefix(prefix).strip("/"))
        return status, {}, answer

    def _prefix(self, project: str | None = None) -> str:
        return f"repos/{project or self.forge.project}"

    def _refuse(self, request: Request) -> Answer | None:
        """What who is not let in is told."""
        if request.password == self.forge.token:
            return None
        return 401, {"message": "Bad credentials"}

    def _moved(self, request: Request, name: str, status: int) -> FullAnswer:
        rest = request.path.removeprefix(self._prefix(name))
        place = f"{self.forge.address}/api/v3/repositories/1{rest}"
        return status, {"Location": place}, {"message": "Moved Permanently", "url": place}

    def _serve(self, request: Request, rest: str) -> Answer:
        forge, query = self.forge, request.query
        if not rest:
            return 200, {"full_name": forge.project}
        if rest == "pulls":
            return self._create(request.body) if request.method == "POST" else self._list(query)
        if found := re.fullmatch(r"pulls/(\d+)", rest):
            return self._pull(request, forge.pulls[int(found[1]) - 1])
        if re.fullmatch(r"issues/\d+/comments", rest):
            return 200, self._page(forge.comments, query)
        if re.fullmatch(r"pulls/\d+/comments", rest):
            return 200, self._page([row for one in forge.reviews for row in one["comments"]], query)
        if re.fullmatch(r"pulls/\d+/reviews", rest):
            return 200, self._page([_envelope(one) for one in forge.reviews], query)
        return self._ci(rest, query)

    def _page(self, rows: list[Any], query: dict[str, str]) -> list[Any]:
        """The page that a query asks for: the default size unless it says how many, and never more
        than the most."""
        size = min(int(query.get(self._size_name, self._default_size)), self._most_rows)
        first = (int(query.get("page", "1")) - 1) * size
        return rows[first : first + size]

    def _list(self, query: dict[str, str]) -> Answer:
        branch = query.get("head", "").partition(":")[2]
        state = query.get("state", "open")
        rows = [
            self._shown(one)
            for one in reversed(self.forge.pulls)  # the newest first
            if branch in {"", one["head"]["ref"]} and one["state"] == state
        ]
        return 200, self._page(rows, query)

    def _pull(self, request: Request, pull: dict[str, Any]) -> Answer:
        if request.method == "PATCH":
            if set(request.body) - _PATCH:
                return 422, {"message": "Invalid request."}
            pull.update(request.body)
        return 200, self._shown(pull)

    def _shown(self, pull: dict[str, Any]) -> dict[str, Any]:
        """A pull request as it is told: its head follows the branch while that is there."""
        if tip := self.forge.tip(pull["head"]["ref"]):
            pull["head"]["sha"] = tip
        return pull

    def _create(self, body: Any) -> Answer:
        forge = self.forge
        missing = {"title", "head", "base"} - set(body)
        if missing or set(body) - _CREATE:
            return 422, {"message": "Validation Failed", "errors": [{"code": "missing_field"}]}
        branch, base = body["head"], body["base"]
        if not forge.tip(branch) or not forge.tip(base):
            return 422, {"message": "Validation Failed", "errors": [{"code": "invalid"}]}
        said = ""
        if any(p["head"]["ref"] == branch and p["state"] == "open" for p in forge.pulls):
            said = f"A pull request already exists for o:{branch}."
        elif forge.git("rev-list", "--count", f"{base}..{branch}") == "0":
            said = f"No commits between {base} and {branch}"
        if said:
            return 422, {"message": "Validation Failed", "errors": [{"message": said}]}
        pull = self._new(body) | {"draft": body.get("draft", False)}
        forge.pulls.append(pull)
        return 201, pull

    def _new(self, body: Any) -> dict[str, Any]:
        forge = self.forge
        number, here = len(forge.pulls) + 1, {"full_name": forge.project}
        return {
            "number": number, "node_id": f"PR_{number}", "state": "open", "title": body["title"],
            "html_url": f"{forge.address}/o/r/pull/{number}", "body": body.get("body"),
            "merged_at": None,
            "head": {"ref": body["head"], "sha": forge.tip(body["head"]), "repo": here},
            "base": {"ref": body["base"], "repo": here},
        }  # fmt: skip

    def _graphql(self, body: Any) -> Any:
        number = int(body["variables"]["id"].removeprefix("PR_"))
        self.forge.pulls[number - 1]["draft"] = "convertPullRequestToDraft" in body["query"]
        return {"data": {}}

    def _ci(self, rest: str, query: dict[str, str]) -> Answer:
        forge = self.forge
        if found := re.fullmatch(r"commits/(\w+)/status", rest):
            return 200, self._combined(query)
        if found := re.fullmatch(r"commits/(\w+)/check-runs", rest):
            jobs = forge.jobs.get(found[1], forge.jobs.get("", []))
            runs = [
                {
                    "id": number, "name": name, "conclusion": conclusion, "html_url": "http://ci/1",
                    "status": "completed" if conclusion else "in_progress",
                    "output": {"summary": None, "text": None},
                }
                for number, (name, conclusion, _) in enumerate(jobs)
            ]  # fmt: skip
            return 200, {"total_count": len(runs), "check_runs": self._page(runs, query)}
        if found := re.fullmatch(r"actions/jobs/(\d+)/logs", rest):
            failed = [job for some in forge.jobs.values() for job in some if job[1] == "failure"]
            return (200, failed[-1][2]) if failed else _NOT_FOUND
        return _NOT_FOUND

    def _combined(self, query: dict[str, str]) -> Any:
        """The combined status of a commit: its state is that of all, its rows are a page."""
        rows = [
            {"context": context, "state": state, "description": said, "target_url": None}
            for context, state, said in self.forge.statuses
        ]
        states = {row["state"] for row in rows}
        state = next((one for one in ("failure", "pending", "success") if one in states), "pending")
        page = self._page(rows, query)
        return {"state": state, "statuses": page, "total_count": len(rows)}


class GiteaApi(GitHubApi):
    """What differs from GitHub."""

    _size_name = "limit"

    def __init__(self, forge: "ForgeServer") -> None:
        super().__init__(forge)
        self._most_rows = forge.most_rows

    def _refuse(self, request: Request) -> Answer | None:
        """An invalid token is nobody's: what is private is not there, and nothing may be written.
        A password is taken by Basic alone."""
        forge = self.forge
        is_login = request.login == "Basic" and request.password == forge.password
        if request.password == forge.token or (forge.password and is_login):
            return None
        if request.method != "GET":
            return 401, {"message": "token is required"}
        return (404, {"message": "Not Found"}) if forge.private else None

    def _moved(self, request: Request, name: str, status: int) -> FullAnswer:
        place = request.path.replace(name, self.forge.project, 1)
        return status, {"Location": f"{self.forge.below}/api/v1/{place}"}, ""

    def _serve(self, request: Request, rest: str) -> Answer:
        forge = self.forge
        if found := re.fullmatch(r"pulls/\d+/reviews/(\d+)/comments", rest):
            [review] = [one for one in forge.reviews if one["id"] == int(found[1])]
            return 200, review["comments"]
        if re.fullmatch(r"pulls/\d+/comments", rest):
            return 404, {"message": "404 page not found"}
        if re.fullmatch(r"issues/\d+/comments", rest):
            return 200, forge.comments  # they are not paged
        if found := re.fullmatch(r"pulls/(\d+)/merge", rest):
            return self._merge(int(found[1]))
        return super()._serve(request, rest)

    def _list(self, query: dict[str, str]) -> Answer:
        # `head` is not known, and what is not known is ignored.
        return super()._list({name: value for name, value in query.items() if name != "head"})

    def _pull(self, request: Request, pull: dict[str, Any]) -> Answer:
        known = {name: value for name, value in (request.body or {}).items() if name in _PATCH}
        if request.method == "PATCH":
            request.body = known
        return super()._pull(request, pull)

    def _create(self, body: Any) -> Answer:
        forge = self.forge
        for pull in forge.pulls:
            if pull["head"]["ref"] == body["head"] and pull["state"] == "open":
                said = f"pull request already exists for these targets [id: {pull['number']}]"
                return 409, {"message": said}
        if not forge.tip(body["head"]) or not forge.tip(body["base"]):
            return 404, {"message": "The target couldn't be found."}
        pull = self._new(body)
        pull["head"]["label"] = body["head"]
        forge.pulls.append(pull)
        return 201, self._shown(pull)

    def _shown(self, pull: dict[str, Any]) -> dict[str, Any]:
        shown = dict(super()._shown(pull))
        shown["mergeable"] = not self._is_draft(pull)
        if self.forge.answers_draft:
            shown["draft"] = self._is_draft(pull)
        return shown

    def _is_draft(self, pull: dict[str, Any]) -> bool:
        prefixes = tuple(prefix.upper() for prefix in self.forge.draft_prefixes)
        return str(pull["title"]).upper().startswith(prefixes)

    def _merge(self, number: int) -> Answer:
        if self._is_draft(self.forge.pulls[number - 1]):
            return 405, {"message": "Work in progress PRs cannot be merged"}
        self.forge.merge(number)
        return 200, ""

    def _ci(self, rest: str, query: dict[str, str]) -> Answer:
        forge = self.forge
        jobs = forge.jobs.get("", [])
        if rest == "actions/runs":
            runs = self._page([{"id": 5}], query)
            return 200, {"workflow_runs": runs, "total_count": 1}
        if rest == "actions/runs/5/jobs":
            rows: list[dict[str, Any]] = [{"id": 4, "name": name} for name, *_ in jobs]
            for row, (_, end, _) in zip(rows, jobs, strict=True):
                # The key is missing while the job runs: `json:"conclusion,omitempty"`.
                if end is not None:
                    row["conclusion"] = end
            return 200, {"jobs": self._page(rows, query)}
        if rest.endswith("/check-runs"):
            return _NOT_FOUND
        return super()._ci(rest, query)

    def _combined(self, query: dict[str, str]) -> Any:
        """A page of statuses; `state` and `total_count` are those of the page."""
        states = {None: "pending", "failure": "failure", "success": "success"}
        rows = [
            {"context": name, "status": states[end], "description": log, "target_url": ""}
            for name, end, log in self.forge.jobs.get("", [])
        ]
        page = self._page(rows, query)
        found = {row["status"] for row in page}
        state = next((one for one in ("failure", "pending", "success") if one in found), "")
        return {"state": state, "statuses": page or None, "total_count": len(page)}


class GitLabApi(GitHubApi):
    _default_size = 20

    def _prefix(self, project: str | None = None) -> str:
        return f"projects/{project or self.forge.project}"

    def _refuse(self, request: Request) -> Answer | None:
        if request.login == "Bearer" and request.password == self.forge.token:
            return None
        return 401, {"message": "401 Unauthorized"}

    def answer(self, request: Request) -> FullAnswer:
        request.path = re.sub(r"^projects/1(?=/|$)", self._prefix(), request.path)
        return super().answer(request)

    def _moved(self, request: Request, name: str, status: int) -> FullAnswer:
        if request.method != "GET":
            return 405, {}, {"message": "Non GET methods are not allowed for moved projects"}
        rest = request.path.removeprefix(self._prefix(name))
        place = f"{self.forge.address}/api/v4/projects/1{rest}"
        return 302, {"Location": place}, {"message": "This resource has been moved"}

    def _serve(self, request: Request, rest: str) -> Answer:
        forge, query = self.forge, request.query
        if not rest:
            return 200, {"path_with_namespace": forge.project}
        if rest == "merge_requests":
            return self._create(request.body) if request.method == "POST" else self._list(query)
        if found := re.fullmatch(r"merge_requests/(\d+)", rest):
            return self._pull(request, forge.pulls[int(found[1]) - 1])
        if re.fullmatch(r"merge_requests/\d+/notes", rest):
            return 200, self._page(forge.comments, query)
        return self._ci(rest, query)

    def _list(self, query: dict[str, str]) -> Answer:
        rows = [
            self._shown(one)
            for one in reversed(self.forge.pulls)
            if one["source_branch"] == query["source_branch"] and one["state"] == query["state"]
        ]
        return 200, self._page(rows, query)

    def _create(self, body: Any) -> Answer:
        forge = self.forge
        if missing := {"source_branch", "target_branch", "title"} - set(body):
            return 400, {"error": f"{min(missing)} is missing"}
        for pull in forge.pulls:
            if pull["source_branch"] == body["source_branch"] and pull["state"] == "opened":
                said = "Another open merge request already exists for this source branch"
                return 409, {"message": [f"{said}: !{pull['iid']}"]}
        number = len(forge.pulls) + 1
        url = f"{forge.address}/o/r/-/merge_requests/{number}"
        ids = {"iid": number, "source_project_id": 1, "target_project_id": 1}
        forge.pulls.append({**ids, "web_url": url, "state": "opened", "sha": None, **body})
        return 201, self._shown(forge.pulls[-1])

    def _pull(self, request: Request, pull: dict[str, Any]) -> Answer:
        pull.update(request.body or {})
        return 200, self._shown(pull)

    def _shown(self, pull: dict[str, Any]) -> dict[str, Any]:
        pull["sha"] = self.forge.tip(pull["source_branch"]) or pull["sha"]
        pull["draft"] = _GITLAB_DRAFT.match(pull["title"]) is not None
        return pull

    def _ci(self, rest: str, query: dict[str, str]) -> Answer:
        jobs = self.forge.jobs.get("", [])
        if rest == "pipelines":
            states = {None: "running", "failure": "failed"}
            ends = {end for _, end, _ in jobs}
            last = next((end for end in ("failure", None) if end in ends), "success")
            row = {"id": 7, "ref": "kapelle", "status": states.get(last, "success")}
            row["web_url"] = "http://ci/7"
            return 200, self._page([row] if jobs else [], query)
        if rest == "pipelines/7/jobs":
            rows = [{"id": 3, "name": name} for name, end, _ in jobs if end == "failure"]
            return 200, self._page(rows, query)
        if rest == "jobs/3/trace":
            return 200, next(log for _, end, log in jobs if end == "failure")
        return 404, {"message": "404 Not Found"}


def _envelope(review: dict[str, Any]) -> dict[str, Any]:
    """A review as lists of reviews have it: its comments on lines are elsewhere."""
    return {name: value for name, value in review.items() if name != "comments"}
