"""A forge: its calls about pull requests, and its errors for a person."""

import logging
import re
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal

from kapelle.domain.errors import ForgeError, KapelleError, Unavailable
from kapelle.domain.work_views import Comment

if TYPE_CHECKING:
    import httpx2

_log = logging.getLogger("kapelle.forge")
PullRequestState = Literal["draft", "open", "merged", "closed"]
_TIMEOUT_S = 30.0
_MAX_MESSAGE = 500
_MOST_PAGES = 100
_MOST_LOG = 20_000
# GitLab's answer to every change of a renamed project.
_NOT_ALLOWED = 405
MOST_LOGS = 5
# Beginnings of titles that make a draft at Gitea and GitLab.
DRAFT_MARKS = re.compile(r"\s*(?:(?:WIP:|\[WIP\]|Draft:|\[Draft\]|\(Draft\))\s*)+", re.IGNORECASE)
_OURS = re.compile(r"<!-- kapelle -->.*<!-- /kapelle -->", re.DOTALL)


@dataclass(frozen=True)
class PullRequest:
    """A pull request as the forge reports it."""

    number: int
    url: str
    state: PullRequestState
    title: str = ""
    text: str = ""
    # The id in GitHub's GraphQL.
    node: str = ""
    # Its branch; empty if that is in another repository, such as a fork.
    branch: str = ""
    # The last commit of its branch.
    commit: str = ""
    # A remark for a person, such as a title that does not make it a draft.
    note: str = ""

    @property
    def is_open(self) -> bool:
        return self.state in {"draft", "open"}


@dataclass(frozen=True)
class PullRequestDraft:
    """The intended content of a pull request."""

    branch: str
    base: str
    title: str
    text: str
    # True makes it a draft, False makes it ready; None leaves that as it is at the forge.
    draft: bool | None


@dataclass(frozen=True)
class CiVerdict:
    """The result of CI for a commit, with the ends of the logs of failed jobs."""

    state: Literal["none", "pending", "passed", "failed"]
    log: str = ""


@dataclass(frozen=True)
class Login:
    """A person's token or password for a forge, and its origin."""

    password: str
    name: str = "oauth2"
    # True if git's credential helpers have it: git asks them itself.
    is_from_helper: bool = False
    # The daemon's environment variable that holds it.
    variable: str = ""


@dataclass(frozen=True)
class Site:
    """A repository at a forge, and how to reach it."""

    host: str
    project: str
    # The URL of the API.
    url: str
    login: Login
    # The remote in the local repository, and its URL.
    remote: str = "origin"
    remote_url: str = ""
    # Certificate authorities to trust in addition to the system's.
    ca_file: str | None = None
    # What a person types to try again.
    retry: str = "kapelle pr"


class Forge(ABC):
    """One repository at a forge, used with a person's own token."""

    kind = ""
    # The rights that a token needs.
    _RIGHTS = "It needs the right to write pull requests."
    # The number of rows of a page of a list.
    _rows = 100

    def __init_subclass__(cls) -> None:
        for name in Forge.__abstractmethods__ & vars(cls).keys():
            setattr(cls, name, _understood(getattr(cls, name)))

    def __init__(self, site: Site) -> None:
        self.site = site
        self.login = site.login
        self.host = site.host
        self.project = site.project
        self._url = site.url.rstrip("/")
        self._context: ssl.SSLContext | None = None
        # Removes secrets from a log before the log is cut.
        self.clean: Callable[[str], str] = str

    @abstractmethod
    async def full_name(self) -> str:
        """Return the present name of the project, which may have been renamed."""

    @abstractmethod
    async def find(self, branch: str) -> PullRequest | None:
        """Return the open pull request of a branch; None if there is none."""

    @abstractmethod
    async def pull_request(self, number: int) -> PullRequest: ...

    @abstractmethod
    async def open(self, draft: PullRequestDraft) -> PullRequest: ...

    @abstractmethod
    async def update(self, pull_request: PullRequest, draft: PullRequestDraft) -> PullRequest:
        """Update the description of an open pull request, and its draft state if requested."""

    @abstractmethod
    async def verdict(self, commit: str) -> CiVerdict: ...

    @abstractmethod
    async def comments(self, number: int) -> list[Comment]:
        """Return the comments of people, the oldest first."""

    async def current(self, branch: str, number: int | None) -> PullRequest | None:
        """Return the pull request of a branch.

        The given number has precedence if its pull request still belongs to the branch: the remote
        may be another repository now.
        """
        if number is not None:
            with suppress(ForgeError):
                pull_request = await self.pull_request(number)
                if pull_request.branch == branch:
                    return pull_request
        return await self.find(branch)

    async def save(self, draft: PullRequestDraft, number: int | None) -> PullRequest:
        """Open a pull request, or update the open one; never open a second one."""
        pull_request = await self.current(draft.branch, number)
        if pull_request is not None and not pull_request.is_open:
            pull_request = await self.find(draft.branch)
        # Text that people wrote around Kapelle's part of the description stays.
        ours = f"<!-- kapelle -->\n{draft.text}\n<!-- /kapelle -->"
        text, replacements = _OURS.subn(
            lambda _: ours, pull_request.text if pull_request else "", count=1
        )
        draft = replace(draft, text=text if replacements else f"{text}\n\n{ours}".strip())
        return await (self.update(pull_request, draft) if pull_request else self.open(draft))

    async def call(
        self, method: str, path: str, body: Any = None, *, url: str | None = None
    ) -> Any:
        """Call the forge's API and return its JSON; raises errors with a hint for a person."""
        answer = await self._answer(method, f"{url or self._url}/{path}", body)
        try:
            return answer.json()
        except ValueError:
            raise Unavailable(f"{self.host} answered without JSON. Kapelle retries it.") from None

    async def every(self, path: str, key: str = "") -> list[Any]:
        """Return all rows of a list, or of the list under a key of the answer, page by page.

        A page may be shorter than requested (a server's own limit) and `total_count` may be that of
        the page, so only a page without a new row is the end.
        """
        rows: list[Any] = []
        separator = "&" if "?" in path else "?"
        for page in range(1, _MOST_PAGES + 1):
            size = f"per_page={self._rows}&limit={self._rows}&page={page}"
            answer = await self.call("GET", f"{path}{separator}{size}")
            page_rows = answer[key] if key else answer
            # A list without pages answers every page with the same rows.
            fresh = [row for row in page_rows or () if row not in rows]
            if not fresh:
                return rows
            rows += fresh
        raise ForgeError(f"{self.host} has more than {_MOST_PAGES} pages of {path}.")

    async def log_of(self, name: str, path: str, instead: str = "") -> str:
        """Return the end of a job's log below its name.

        If the log is not available, return `instead`: the job has failed without it too.
        """
        log = ""
        with suppress(ForgeError, Unavailable):
            log = (await self._answer("GET", f"{self._url}/{path}")).text
        log = self.clean(log[-10 * _MOST_LOG :])[-_MOST_LOG:] or instead
        return f"\n== {name}\n{log.rstrip()}\n"

    async def _answer(self, method: str, url: str, body: Any = None) -> "httpx2.Response":
        import httpx2  # not at the top: it would slow the daemon's start down

        headers = {"Authorization": self._authorization, "Accept": "application/json"}
        # A redirected request would become a GET, or change something else than intended.
        how: dict[str, Any] = {"timeout": _TIMEOUT_S, "follow_redirects": method == "GET"}
        # Neither query, body nor headers: they may hold a token or somebody's text.
        place = f"{method} {url.partition('?')[0]}"
        began = time.monotonic()
        try:
            if self._context is None:
                self._context = _make_context(self.site.ca_file)
            async with httpx2.AsyncClient(verify=self._context, **how) as client:
                answer = await client.request(method, url, json=body, headers=headers)
        except httpx2.HTTPError as error:
            _log.debug("%s failed: %s", place, type(error).__name__)
            raise _connection_problem(self.site, error) from None
        _log.debug("%s: %d in %.2f s", place, answer.status_code, time.monotonic() - began)
        if method != "GET" and (answer.is_redirect or answer.status_code == _NOT_ALLOWED):
            await self._require_present_name(answer)
        if answer.status_code < 400:
            return answer
        raise self._make_error(answer)

    @property
    def _authorization(self) -> str:
        return f"Bearer {self.login.password}"

    async def _require_present_name(self, answer: "httpx2.Response") -> None:
        """Raise ForgeError if a change failed because the project or the API has moved."""
        name = await self.full_name()
        site = self.site
        if name.lower() != self.project.lower():
            address = site.remote_url.replace(self.project, name) or "URL"
            raise ForgeError(
                f"{self.project} at {self.host} was renamed to {name}.",
                hint=f"`git remote set-url {site.remote} {address}`, then `{site.retry}` again.",
            )
        if answer.is_redirect:
            place = answer.headers.get("location", "")
            raise ForgeError(
                f"{self.host} redirects {answer.request.url} to {place}.",
                hint=f'Correct url of [forge.hosts."{self.host}"] in config.toml.',
            )

    def _make_error(self, answer: "httpx2.Response") -> ForgeError | Unavailable:
        """Return the error for an answer of the API."""
        code = answer.status_code
        message = _read_error_message(answer)
        host = self.host
        headers = answer.headers
        # GitHub answers 403 when the rate limit is reached.
        is_limit = headers.get("x-ratelimit-remaining") == "0" or "retry-after" in headers
        if code == 429 or (code == 403 and is_limit):
            reset = headers.get("x-ratelimit-reset", "")
            if reset.isdigit():
                at = datetime.fromtimestamp(int(reset), UTC)
            else:
                at = None
            until = f"until {at:%H:%M} UTC " if at else ""
            return Unavailable(f"{host} allows no more calls {until}for now. Kapelle retries it.")
        if code >= 500:
            return Unavailable(f"{host} answered {code}: {message}. Kapelle retries it.")
        text = f"{host} refused it ({code}): {message}."
        hint = login_hint(self.kind, host, self.site.retry, self.login.variable)
        if code == 401:
            text = f"{host} does not accept the token: {message}."
        elif code == 403:
            text = f"The token for {host} may not do this in {self.project}: {message}."
            hint = f"{self._RIGHTS} {hint}"
        elif code == 404:
            text = f"{host} has no {self.project}, or your token may not see it."
            hint = f"`git remote -v` shows the remotes. {hint}"
        return ForgeError(text, hint=hint if code in {401, 403, 404} else None)


def _understood(call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """The call, with an answer that has not the expected form told as that."""

    @wraps(call)
    async def told(self: Forge, *args: Any) -> Any:
        try:
            return await call(self, *args)
        except (LookupError, TypeError, AttributeError, ValueError, OverflowError) as error:
            # Its text may hold a token.
            text = f"{self.host} did not answer as a {self.kind} does ({type(error).__name__})."
            hint = f'See kind and url of [forge.hosts."{self.host}"] in config.toml.'
            raise ForgeError(text, hint=hint) from None

    return told


def retitle(pull_request: PullRequest, draft: bool | None, mark: str) -> str:
    """Return the title that makes a pull request a draft or ready, at forges that use titles."""
    if draft is None or draft == (pull_request.state == "draft"):
        return pull_request.title
    if not draft:
        return DRAFT_MARKS.sub("", pull_request.title)
    if DRAFT_MARKS.match(pull_request.title):
        return pull_request.title
    return f"{mark}{pull_request.title}"


def read_time(text: str) -> datetime:
    """Return a forge's time, which is in the zone of its server, in UTC."""
    return datetime.fromisoformat(text).astimezone(UTC)


def login_hint(kind: str, host: str, retry: str, variable: str = "") -> str:
    """Return a hint on how to provide a new token."""
    if variable:
        return (
            f"The daemon reads it from the variable {variable}: `kapelle stop`, then `{retry}` "
            f"from a shell in which {variable} is a valid token."
        )
    if kind == "github":
        return f"Run `gh auth login --hostname {host}`, then `{retry}` again."
    return (
        f"Give git's credential helper a token for {host} (`git credential approve`), or name a "
        f'variable that holds one: token_variable of [forge.hosts."{host}"] in config.toml.'
    )


def _make_context(ca_file: str | None) -> ssl.SSLContext:
    """Return a TLS context that trusts the system's authorities and those of a file."""
    import httpx2

    context = httpx2.create_ssl_context()
    if ca_file is not None:
        try:
            context.load_verify_locations(ca_file)
        except OSError as error:
            text = f"http.sslCAInfo of your git configuration is {ca_file}: {error.strerror}."
            raise ForgeError(text, hint="It has to name a PEM file with certificates.") from None
    return context


def _connection_problem(site: Site, error: Exception) -> KapelleError:
    """Return the error for a failed connection; only certificate errors are permanent."""
    host = site.host
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return certificate_problem(host, cause.verify_message or str(cause), site.retry)
        if isinstance(cause, ssl.SSLError) and cause.reason == "WRONG_VERSION_NUMBER":
            hint = f'Correct url of [forge.hosts."{host}"] in config.toml.'
            return ForgeError(f"{host} does not answer with TLS there.", hint=hint)
        cause = cause.__cause__ or cause.__context__
    return Unavailable(f"{host} cannot be reached: {error}. Kapelle retries it.")


def certificate_problem(host: str, message: str, retry: str) -> ForgeError:
    """Return the error for a certificate that is not trusted."""
    hint = (
        f"Name its authority to git, `git config --global http.https://{host}/.sslCAInfo FILE`, "
        "which Kapelle uses too; or add it to the system's store, or start the daemon with "
        f"SSL_CERT_FILE. Then `{retry}` again."
    )
    return ForgeError(f"The certificate of {host} is not trusted: {message}.", hint=hint)


def _read_error_message(answer: "httpx2.Response") -> str:
    """Return the error message in a forge's answer, in one line."""
    try:
        answer_fields = answer.json()
    except ValueError:
        return answer.text.strip()[:_MAX_MESSAGE] or answer.reason_phrase
    if not isinstance(answer_fields, dict):
        return str(answer_fields)[:_MAX_MESSAGE]
    messages = [answer_fields.get("message") or answer_fields.get("error") or answer.reason_phrase]
    for one in answer_fields.get("errors") or ():
        messages.append(one.get("message") or one.get("code") if isinstance(one, dict) else one)
    return "; ".join(str(one) for one in messages if one)[:_MAX_MESSAGE].rstrip(".")
