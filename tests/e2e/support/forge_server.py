"""A forge on loopback: git over HTTP with credentials, and the REST of GitHub, GitLab and Gitea.

The APIs are in forge_apis.py. Where the servers differ from each other, so does this one.
"""

import base64
import contextlib
import json
import os
import ssl
import subprocess
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from kapelle.workspaces.forge import Login, Site
from tests.e2e.support.forge_apis import GiteaApi, GitHubApi, GitLabApi, Request

TOKEN = "forge-token-0123456789"
# The time of what people say, in the zone of the server: 2026-01-01 00:00 UTC.
_AT = "2026-01-01T01:00:00+01:00"


class ForgeServer:
    """Its state, and what a test wants to go wrong."""

    def __init__(
        self,
        root: Path,
        *,
        name: str = "127.0.0.1",
        below: str = "",
        certificate: tuple[Path, Path] | None = None,
    ) -> None:
        self.root, self.name = root, name
        # The path that the whole server is below, such as /git.
        self.below = below
        self.bare = root / "o" / "r.git"
        self.project = "o/r"
        # Names that the project had before, and how each is redirected to the present one.
        self.old_names: dict[str, int] = {}
        self.pulls: list[dict[str, Any]] = []
        self.comments: list[dict[str, Any]] = []
        # GitHub's and Gitea's reviews, each with its comments on lines under "comments".
        self.reviews: list[dict[str, Any]] = []
        # Gitea's settings: MAX_RESPONSE_ITEMS, WORK_IN_PROGRESS_PREFIXES, and whether its version
        # answers `draft`.
        self.most_rows = 50
        self.draft_prefixes = ["WIP:", "[WIP]"]
        self.answers_draft = False
        self.private = True
        # By commit, or "" for every one: name, conclusion (None while it runs) and log.
        self.jobs: dict[str, list[tuple[str, str | None, str]]] = {}
        # GitHub's statuses beside its check runs: context, state and description.
        self.statuses: list[tuple[str, str, str]] = []
        self.calls: list[str] = []
        # Asked before each call of the API: status, headers and body, to go wrong with.
        self.trouble: Callable[[str, str], tuple[int, dict[str, str], Any] | None] = lambda *_: None
        self.git_status: int | None = None
        self.token = TOKEN
        # A person's password, with which Gitea lets in by Basic alone.
        self.password = ""
        subprocess.run(
            ["git", "init", "--quiet", "--bare", "--initial-branch=main", str(self.bare)],
            check=True,
        )
        self.git("config", "http.receivepack", "true")
        handler = type("Handler", (_Handler,), {"forge": self})
        self._server = _Server((name, 0), handler)
        self.scheme = "http"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            self.scheme = "https"
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def host(self) -> str:
        return f"{self.name}:{self.port}"

    @property
    def address(self) -> str:
        """Where it is, with the path that it is below."""
        return f"{self.scheme}://{self.host}{self.below}"

    @property
    def url(self) -> str:
        return f"{self.address}/o/r.git"

    def api(self, kind: str) -> str:
        path = {"github": "api/v3", "gitlab": "api/v4", "gitea": "api/v1"}[kind]
        return f"{self.address}/{path}"

    def site(self, kind: str, login: Login | None = None) -> Site:
        """How its API is reached, by default with the token."""
        return Site(self.host, "o/r", self.api(kind), login or Login(self.token))

    def config(self, kind: str, **more: str) -> str:
        """The user's settings for it; more ones of the host are in TOML."""
        host = {"kind": f'"{kind}"', "url": f'"{self.api(kind)}"', **more}
        lines = "\n".join(f"{name} = {value}" for name, value in host.items())
        return f'[forge]\nrefresh_s = 0.2\npoll_s = 0.2\n[forge.hosts."{self.host}"]\n{lines}\n'

    def log_in(self, home: Path, password: str = TOKEN) -> None:
        """A person's own configuration: a credential helper, and an address that is rewritten."""
        (home / ".gitconfig").write_text(
            f'[credential]\n\thelper = store\n[url "{self.address}/"]\n\tinsteadOf = work:\n',
            encoding="utf-8",
        )
        login = f"{self.scheme}://me:{password}@{self.host}\n"
        (home / ".git-credentials").write_text(login, encoding="utf-8")

    def rename(self, name: str, status: int) -> None:
        """Give the project another name; the old one is redirected to it with this status."""
        self.old_names[self.project] = status
        self.project = name

    def reject_pushes(self, *lines: str) -> None:
        """Have a hook refuse every push with these lines; without any, let them through again."""
        hook = self.bare / "hooks" / "pre-receive"
        hook.parent.mkdir(exist_ok=True)
        said = "".join(f"printf '%s\\n' '{line}' >&2\n" for line in lines)
        hook.write_text(f"#!/bin/sh\n{said}exit {int(bool(lines))}\n", encoding="utf-8")
        hook.chmod(0o755)

    def comment(self, text: str, at: str = _AT) -> None:
        """Have somebody comment on the pull request; times are whole seconds."""
        self.comments.append(self._words(len(self.comments) + 1, text, at))

    def review(self, text: str, *lines: tuple[str, str], submitted: bool = True) -> None:
        """Have somebody review it, with comments on lines: the file and the text. All of them are
        of the same second."""
        number = len(self.reviews) + 1
        words = self._words(number, text, _AT)
        comments = [
            self._words(100 * number + place, said, _AT) | {"path": path}
            for place, (path, said) in enumerate(lines)
        ]
        at = {"submitted_at": words.pop("created_at") if submitted else None}
        self.reviews.append({**words, **at, "state": "COMMENT", "comments": comments})

    def _words(self, id_: int, text: str, at: str) -> dict[str, Any]:
        return {
            "id": id_, "user": {"login": "ann"}, "author": {"username": "ann"}, "body": text,
            "system": False, "html_url": f"{self.address}/comment/{id_}", "created_at": at,
        }  # fmt: skip

    def merge(self, number: int = 1) -> None:
        """Merge a pull request, and delete its branch."""
        pull = self.pulls[number - 1]
        if "iid" in pull:
            pull |= {"state": "merged"}
            branch = pull["source_branch"]
        else:
            # The head of a pull request whose branch is gone is a ref of the pull request itself.
            branch = pull["head"]["ref"]
            pull["head"] |= {"ref": f"refs/pull/{number}/head"} if "label" in pull["head"] else {}
            pull |= {"state": "closed", "merged_at": _AT, "merged": True}
        self.git("update-ref", "-d", f"refs/heads/{branch}")

    def tip(self, branch: str) -> str:
        return self.git("for-each-ref", "--format=%(objectname)", f"refs/heads/{branch}")

    def git(self, *arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(self.bare), *arguments], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    def shutdown_request(self, request: Any) -> None:
        if isinstance(request, ssl.SSLSocket):
            with contextlib.suppress(OSError):
                request.unwrap()  # without this, the end of an answer is an error for clients
        super().shutdown_request(request)


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
        forge = self.forge
        if not self.path.startswith(f"{forge.below}/"):
            self._send(404, {}, "404 page not found")
            return
        path = self.path.removeprefix(forge.below)
        if not path.startswith("/api/"):
            self._git(path, body)
            return
        forge.calls.append(f"{self.command} {path}")
        if trouble := forge.trouble(self.command, path):
            self._send(*trouble)
            return
        self._send(*self._answer(path, json.loads(body) if body else None))

    def _answer(self, path: str, body: Any) -> tuple[int, dict[str, str], Any]:
        parts = urlsplit(path)
        version, _, rest = parts.path.removeprefix("/api/").partition("/")
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        method, password = self._login()
        request = Request(self.command, unquote(rest), query, body, method, password)
        apis = {"v3": GitHubApi, "graphql": GitHubApi, "v4": GitLabApi, "v1": GiteaApi}
        if version == "graphql":
            request.path = version
        if version not in apis:
            return 404, {}, "404 page not found"
        return apis[version](self.forge).answer(request)

    def _login(self) -> tuple[str, str]:
        """How somebody logs in, and with which token or password."""
        method, _, value = self.headers.get("Authorization", "").partition(" ")
        if method == "Basic":
            value = base64.b64decode(value).decode().partition(":")[2]
        return method, value

    def _send(self, status: int, headers: dict[str, str], answer: Any) -> None:
        data = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    # git http-backend, as a web server calls it

    def _git(self, path: str, body: bytes) -> None:
        forge = self.forge
        if forge.git_status is not None:
            self._send(forge.git_status, {}, "")
            return
        if self._login()[1] not in {forge.token, forge.password or forge.token}:
            self._send(401, {"WWW-Authenticate": 'Basic realm="forge"'}, "")
            return
        for name in forge.old_names:
            if path.startswith(f"/{name}.git/"):
                place = path.replace(name, forge.project, 1)
                self._send(301, {"Location": f"{forge.below}{place}"}, "")
                return
        parts = urlsplit(path.replace(f"/{forge.project}.git", "/o/r.git", 1))
        environment = {
            "PATH": os.environ["PATH"], "GIT_PROJECT_ROOT": str(forge.root),
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
