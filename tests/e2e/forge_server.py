"""A forge on loopback: git over HTTP with credentials, and the REST of GitHub, GitLab and Gitea.

Requests are held to the published schemas: what they do not know is refused as the forge does.
"""

import base64
import json
import os
import re
import subprocess
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "forge-token-0123456789"
_AT = "2026-01-01T00:00:00Z"
# From GitHub's OpenAPI description: what POST and PATCH of pulls take.
_CREATE = {
    "title", "head", "head_repo", "base", "body", "maintainer_can_modify", "draft", "issue",
}  # fmt: skip
_PATCH = {"title", "body", "state", "base", "maintainer_can_modify"}


class ForgeServer:
    """Its state, and what a test wants to go wrong."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.bare = root / "o" / "r.git"
        self.pulls: list[dict[str, Any]] = []
        self.comments: list[dict[str, Any]] = []
        # GitHub's and Gitea's reviews, each with its comments on lines under "comments".
        self.reviews: list[dict[str, Any]] = []
        # The most rows of a page of Gitea: MAX_RESPONSE_ITEMS of its settings.
        self.most_rows = 50
        # By commit, or "" for every one: name, conclusion (None while it runs) and log.
        self.jobs: dict[str, list[tuple[str, str | None, str]]] = {}
        self.calls: list[str] = []
        # Asked before each call of the API: status, headers and body, to go wrong with.
        self.trouble: Callable[[str, str], tuple[int, dict[str, str], Any] | None] = lambda *_: None
        self.git_status: int | None = None
        self.token = TOKEN
        subprocess.run(
            ["git", "init", "--quiet", "--bare", "--initial-branch=main", str(self.bare)],
            check=True,
        )
        subprocess.run(
            ["git", "-C", str(self.bare), "config", "http.receivepack", "true"], check=True
        )
        handler = type("Handler", (_Handler,), {"forge": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.host}/o/r.git"

    def config(self, kind: str) -> str:
        """The user's settings for it."""
        api = {"github": "api/v3", "gitlab": "api/v4", "gitea": "api/v1"}[kind]
        return (
            "[forge]\nrefresh_s = 0.2\npoll_s = 0.2\n"
            f'[forge.hosts."{self.host}"]\nkind = "{kind}"\nurl = "http://{self.host}/{api}"\n'
        )

    def log_in(self, home: Path) -> None:
        """A person's own configuration: a credential helper, and an address that is rewritten."""
        (home / ".gitconfig").write_text(
            f'[credential]\n\thelper = store\n[url "http://{self.host}/"]\n\tinsteadOf = work:\n',
            encoding="utf-8",
        )
        login = f"http://me:{TOKEN}@{self.host}\n"
        (home / ".git-credentials").write_text(login, encoding="utf-8")

    def tip(self, branch: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(self.bare), "rev-parse", f"refs/heads/{branch}"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done.stdout.strip() if done.returncode == 0 else ""

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    forge: ForgeServer
    protocol_version = "HTTP/1.0"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._serve()

    do_POST = do_PATCH = do_PUT = do_GET

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        if not self.path.startswith("/api/"):
            self._git(body)
            return
        forge, path = self.forge, self.path
        forge.calls.append(f"{self.command} {path}")
        if trouble := forge.trouble(self.command, path):
            self._send(*trouble)
        elif self.headers.get("Authorization") != f"Bearer {forge.token}":
            self._send(401, {}, {"message": "Bad credentials"})
        else:
            given = json.loads(body) if body else None
            api, _, rest = path.removeprefix("/api/").partition("/")
            serve = {"v3": self._github, "graphql": self._graphql, "v4": self._gitlab}
            status, answer = serve.get(api, self._gitea)(rest, given)
            self._send(status, {}, answer)

    def _send(self, status: int, headers: dict[str, str], answer: Any) -> None:
        data = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    # git http-backend, as a web server calls it

    def _git(self, body: bytes) -> None:
        given = self.headers.get("Authorization", "").removeprefix("Basic ")
        if self.forge.git_status is not None:
            self._send(self.forge.git_status, {}, "")
            return
        if base64.b64decode(given).decode().partition(":")[2] != self.forge.token:
            self._send(401, {"WWW-Authenticate": 'Basic realm="forge"'}, "")
            return
        parts = urlsplit(self.path)
        environment = {
            "PATH": os.environ["PATH"], "GIT_PROJECT_ROOT": str(self.forge.root),
            "GIT_HTTP_EXPORT_ALL": "1", "REMOTE_USER": "me", "REMOTE_ADDR": "127.0.0.1",
            "PATH_INFO": parts.path, "QUERY_STRING": parts.query, "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "CONTENT_LENGTH": str(len(body)), "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
        }  # fmt: skip
        done = subprocess.run(
            ["git", "http-backend"], input=body, env=environment, capture_output=True, check=False
        )
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        lines = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if ": " in line)
        self.send_response(int(lines.pop("Status", "200").split()[0]))
        for name, value in lines.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    # GitHub

    def _github(self, path: str, given: Any) -> tuple[int, Any]:
        forge, parts = self.forge, urlsplit(path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        rest = unquote(parts.path).removeprefix("repos/o/r/")
        if rest == unquote(parts.path):
            return 404, {"message": "Not Found"}
        if rest == "pulls" and self.command == "GET":
            branch = query.get("head", "o:").removeprefix("o:")
            found = [one for one in forge.pulls if branch in {"", one["head"]["ref"]}]
            return 200, [one for one in found if one["state"] == query.get("state", "open")]
        if rest == "pulls":
            return self._create(given)
        if found_ := re.fullmatch(r"(?:pulls|issues)/(\d+)(/comments)?", rest):
            if found_[2] and rest.startswith("issues"):
                return 200, _page(forge.comments, query, "per_page", 100)
            if found_[2]:
                rows = [row for review in forge.reviews for row in review["comments"]]
                return 200, _page(rows, query, "per_page", 100)
            pull = forge.pulls[int(found_[1]) - 1]
            if self.command == "PATCH":
                if set(given) - _PATCH:
                    return 422, {"message": "Invalid request."}
                pull.update(given)
            return 200, pull
        if re.fullmatch(r"pulls/\d+/reviews", rest):
            return 200, _page([_envelope(one) for one in forge.reviews], query, "per_page", 100)
        return self._github_ci(rest, query)

    def _github_ci(self, rest: str, query: dict[str, str]) -> tuple[int, Any]:
        forge = self.forge
        if found_ := re.fullmatch(r"commits/(\w+)/(check-runs|status)", rest):
            jobs = forge.jobs.get(found_[1], forge.jobs.get("", []))
            if found_[2] == "status":
                return 200, {"state": "pending", "statuses": [], "total_count": 0}
            runs = [
                {
                    "id": number, "name": name, "conclusion": conclusion, "html_url": "http://ci/1",
                    "status": "completed" if conclusion else "in_progress",
                    "output": {"summary": None, "text": None},
                }
                for number, (name, conclusion, _) in enumerate(jobs)
            ]  # fmt: skip
            page = _page(runs, query, "per_page", 100)
            return 200, {"total_count": len(runs), "check_runs": page}
        if found_ := re.fullmatch(r"actions/jobs/(\d+)/logs", rest):
            jobs = [job for some in forge.jobs.values() for job in some if job[1] == "failure"]
            return (200, jobs[-1][2]) if jobs else (404, {"message": "Not Found"})
        return 404, {"message": "Not Found"}

    def _create(self, given: Any) -> tuple[int, Any]:
        forge = self.forge
        missing = {"title", "head", "base"} - set(given)
        if missing or set(given) - _CREATE:
            return 422, {"message": "Validation Failed", "errors": [{"code": "missing_field"}]}
        branch = given["head"]
        if not forge.tip(branch) or not forge.tip(given["base"]):
            return 422, {"message": "Validation Failed", "errors": [{"code": "invalid"}]}
        if any(p["head"]["ref"] == branch and p["state"] == "open" for p in forge.pulls):
            said = f"A pull request already exists for o:{branch}."
            return 422, {"message": "Validation Failed", "errors": [{"message": said}]}
        number = len(forge.pulls) + 1
        pull = {
            "number": number, "node_id": f"PR_{number}", "state": "open", "title": given["title"],
            "html_url": f"http://{forge.host}/o/r/pull/{number}", "body": given.get("body"),
            "draft": given.get("draft", False), "merged_at": None,
            "head": {"ref": branch, "sha": forge.tip(branch), "repo": {"full_name": "o/r"}},
            "base": {"ref": given["base"], "repo": {"full_name": "o/r"}},
        }  # fmt: skip
        forge.pulls.append(pull)
        return 201, pull

    def _graphql(self, _path: str, given: Any) -> tuple[int, Any]:
        number = int(given["variables"]["id"].removeprefix("PR_"))
        self.forge.pulls[number - 1]["draft"] = "convertPullRequestToDraft" in given["query"]
        return 200, {"data": {}}

    # GitLab

    def _gitlab(self, path: str, given: Any) -> tuple[int, Any]:
        forge, parts = self.forge, urlsplit(path)
        rest = parts.path.removeprefix("projects/o%2Fr/")
        jobs = forge.jobs.get("", [])
        if rest == "merge_requests" and self.command == "GET":
            branch = parse_qs(parts.query)["source_branch"][0]
            return 200, [one for one in forge.pulls if one["source_branch"] == branch]
        if rest == "merge_requests":
            if {"source_branch", "target_branch", "title"} - set(given):
                return 400, {"error": "source_branch is missing"}
            number = len(forge.pulls) + 1
            url = f"http://{forge.host}/o/r/-/merge_requests/{number}"
            ids = {"iid": number, "source_project_id": 1, "target_project_id": 1}
            forge.pulls.append({**ids, "web_url": url, "state": "opened", **given})
            return 201, forge.pulls[-1]
        if found := re.fullmatch(r"merge_requests/(\d+)(/notes)?", rest):
            if found[2]:
                return 200, forge.comments
            pull = forge.pulls[int(found[1]) - 1]
            pull.update(given or {})
            return 200, pull
        if rest == "pipelines":
            state = {None: "running", "failure": "failed"}.get(
                jobs[0][1] if jobs else "", "success"
            )
            return 200, [{"id": 7, "status": state, "web_url": "http://ci/7"}] if jobs else []
        if rest == "pipelines/7/jobs":
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            rows = [{"id": 3, "name": name} for name, end, _ in jobs if end == "failure"]
            return 200, _page(rows, query, "per_page", 100)
        return (200, jobs[0][2]) if rest == "jobs/3/trace" else (404, {"message": "404 Not Found"})

    # Gitea: what differs from GitHub

    def _gitea(self, path: str, given: Any) -> tuple[int, Any]:
        if self.command == "POST" and "draft" in (given or {}):
            return 422, {"message": "unknown field draft"}
        forge, parts = self.forge, urlsplit(path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        jobs = forge.jobs.get("", [])
        if parts.path.endswith("/status"):
            return 200, self._gitea_status(jobs, query)
        if parts.path.endswith("/actions/runs"):
            runs = _page([{"id": 5}], query, "limit", forge.most_rows)
            return 200, {"workflow_runs": runs, "total_count": 1}
        if parts.path.endswith("/actions/runs/5/jobs"):
            rows: list[dict[str, Any]] = [{"id": 4, "name": name} for name, *_ in jobs]
            for row, (_, end, _) in zip(rows, jobs, strict=True):
                # The key is missing while the job runs: `json:"conclusion,omitempty"`.
                if end is not None:
                    row["conclusion"] = end
            return 200, {"jobs": _page(rows, query, "limit", forge.most_rows)}
        if answered := self._gitea_comments(parts.path, query):
            return answered
        status, answer = self._github(path, given)
        if isinstance(answer, dict):
            answer.pop("draft", None)
        if isinstance(answer, list):
            answer = _page(answer, query, "limit", forge.most_rows)
        return status, answer

    def _gitea_comments(self, path: str, query: dict[str, str]) -> tuple[int, Any] | None:
        """Reviews and comments, where they are not as GitHub has them."""
        forge = self.forge
        if found := re.search(r"/pulls/\d+/reviews(?:/(\d+)/comments)?$", path):
            if found[1]:
                [review] = [one for one in forge.reviews if one["id"] == int(found[1])]
                return 200, review["comments"]
            rows = [_envelope(one) for one in forge.reviews]
            return 200, _page(rows, query, "limit", forge.most_rows)
        if re.search(r"/pulls/\d+/comments$", path):
            return 404, {"message": "404 page not found"}
        if re.search(r"/issues/\d+/comments$", path):
            return 200, forge.comments  # they are not paged
        return None

    def _gitea_status(self, jobs: list[Any], query: dict[str, str]) -> Any:
        """A page of statuses; `state` and `total_count` are those of the page."""
        states = {None: "pending", "failure": "failure", "success": "success"}
        rows = [
            {"context": name, "status": states[end], "description": log, "target_url": ""}
            for name, end, log in jobs
        ]
        page = _page(rows, query, "limit", self.forge.most_rows)
        found = {row["status"] for row in page}
        state = next((one for one in ("failure", "pending", "success") if one in found), "")
        return {"state": state, "statuses": page or None, "total_count": len(page)}


def _page(rows: list[Any], query: dict[str, str], size_name: str, most: int) -> list[Any]:
    """The page that a query asks for: 30 rows unless it says how many, and never more than most."""
    size = min(int(query.get(size_name, "30")), most)
    first = (int(query.get("page", "1")) - 1) * size
    return rows[first : first + size]


def _envelope(review: dict[str, Any]) -> dict[str, Any]:
    """A review as lists of reviews have it: its comments on lines are elsewhere."""
    return {name: value for name, value in review.items() if name != "comments"}
