"""A forge: five calls about pull requests, and what its answers mean for a person."""

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
from kapelle.domain.views import Comment

if TYPE_CHECKING:
    import httpx2

_log = logging.getLogger("kapelle.forge")
PullRequestState = Literal["draft", "open", "merged", "closed"]
_TIMEOUT_S = 30.0
_MOST_SAID = 500
_MOST_PAGES = 100
_MOST_LOG = 20_000
# GitLab's answer to every change of a renamed project.
_NOT_ALLOWED = 405
MOST_LOGS = 5
# How titles of Gitea and GitLab begin that make drafts.
DRAFT_MARKS = re.compile(r"\s*(?:(?:WIP:|\[WIP\]|Draft:|\[Draft\]|\(Draft\))\s*)+", re.IGNORECASE)
_OURS = re.compile(r"<!-- kapelle -->.*<!-- /kapelle -->", re.DOTALL)


@dataclass(frozen=True)
class PullRequest:
    """What a forge says of a pull request."""

    number: int
    url: str
    state: PullRequestState
    title: str = ""
    text: str = ""
    # What GitHub's GraphQL calls it.
    node: str = ""
    # Whose it is; empty if that is in another repository, such as a stranger's fork.
    branch: str = ""
    # The last commit of its branch.
    commit: str = ""
    # What a person has to know of it, such as a title that does not make it a draft.
    note: str = ""

    @property
    def is_open(self) -> bool:
        return self.state in {"draft", "open"}


@dataclass(frozen=True)
class PullRequestDraft:
    """What a pull request is to be."""

    branch: str
    base: str
    title: str
    text: str
    # Whether it is to be a draft; None leaves that to who decided it at the forge.
    draft: bool | None


@dataclass(frozen=True)
class CiVerdict:
    """What the CI of a forge found of a commit, and the ends of the logs of what failed."""

    state: Literal["none", "pending", "passed", "failed"]
    log: str = ""


@dataclass(frozen=True)
class Login:
    """A person's token or password for a forge, and where it is from."""

    password: str
    name: str = "oauth2"
    # Git's credential helpers have it: git asks them itself.
    is_from_helper: bool = False
    # The variable of the daemon that holds it.
    variable: str = ""


@dataclass(frozen=True)
class Site:
    """A repository at a forge, and how it is reached."""

    host: str
    project: str
    # Of the API.
    url: str
    login: Login
    # The remote of the repository here, and its address.
    remote: str = "origin"
    remote_url: str = ""
    # The certificates of authorities that are believed besides the system's.
    ca_file: str | None = None


class Forge(ABC):
    """One repository at a forge, with a person's own token."""

    kind = ""
    # What a token has to be allowed.
    _RIGHTS = "It needs the right to write pull requests."
    # How much of a list is told at once.
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
        # Takes secrets out of a log before that is cut.
        self.clean: Callable[[str], str] = str

    @abstractmethod
    async def full_name(self) -> str:
        """Return the present name of the project, which may have been renamed."""

    @abstractmethod
    async def find(self, branch: str) -> PullRequest | None:
        """The open pull request of a branch, if there is one."""

    @abstractmethod
    async def pull_request(self, number: int) -> PullRequest: ...

    @abstractmethod
    async def open(self, wanted: PullRequestDraft) -> PullRequest: ...

    @abstractmethod
    async def update(self, found: PullRequest, wanted: PullRequestDraft) -> PullRequest:
        """Bring the description of an open one up to date; make it a draft or ready if that is
        wanted."""

    @abstractmethod
    async def verdict(self, commit: str) -> CiVerdict: ...

    @abstractmethod
    async def comments(self, number: int) -> list[Comment]:
        """What people said to it, the oldest first."""

    async def current(self, branch: str, number: int | None) -> PullRequest | None:
        """The pull request of a branch: that of the number if it is the branch's still, for the
        remote may be another repository now; else the open one."""
        if number is not None:
            with suppress(ForgeError):
                found = await self.pull_request(number)
                if found.branch == branch:
                    return found
        return await self.find(branch)

    async def save(self, wanted: PullRequestDraft, number: int | None) -> PullRequest:
        """Open a pull request, or update the one that is open; never a second one."""
        known = await self.current(wanted.branch, number)
        if known is not None and not known.is_open:
            known = await self.find(wanted.branch)
        # What people wrote around our part of the description stays.
        ours = f"<!-- kapelle -->\n{wanted.text}\n<!-- /kapelle -->"
        text, replaced = _OURS.subn(lambda _: ours, known.text if known else "", count=1)
        wanted = replace(wanted, text=text if replaced else f"{text}\n\n{ours}".strip())
        return await (self.update(known, wanted) if known else self.open(wanted))

    async def call(
        self, method: str, path: str, body: Any = None, *, url: str | None = None
    ) -> Any:
        """The answer of the forge's API as JSON; raises what a person can do something about."""
        answer = await self._answer(method, f"{url or self._url}/{path}", body)
        try:
            return answer.json()
        except ValueError:
            raise Unavailable(f"{self.host} answered no JSON. It is tried again.") from None

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
            found = answer[key] if key else answer
            # A list that is not paged answers every page with the same rows.
            fresh = [row for row in found or () if row not in rows]
            if not fresh:
                return rows
            rows += fresh
        raise ForgeError(f"{self.host} has more than {_MOST_PAGES} pages of {path}.")

    async def log_of(self, name: str, path: str, instead: str = "") -> str:
        """The end of a job's log below its name; of one that cannot be had, what there is instead,
        for what failed has failed without it."""
        told = ""
        with suppress(ForgeError, Unavailable):
            told = (await self._answer("GET", f"{self._url}/{path}")).text
        told = self.clean(told[-10 * _MOST_LOG :])[-_MOST_LOG:] or instead
        return f"\n== {name}\n{told.rstrip()}\n"

    async def _answer(self, method: str, url: str, body: Any = None) -> "httpx2.Response":
        import httpx2  # it costs the daemon's start too much

        headers = {"Authorization": self._authorization, "Accept": "application/json"}
        # Redirected, other methods than GET become a GET, or change something else than was asked.
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
            raise _connection_problem(self.host, error) from None
        _log.debug("%s: %d in %.2f s", place, answer.status_code, time.monotonic() - began)
        if method != "GET" and (answer.is_redirect or answer.status_code == _NOT_ALLOWED):
            await self._require_present_name(answer)
        if answer.status_code < 400:
            return answer
        raise self._problem(answer)

    @property
    def _authorization(self) -> str:
        return f"Bearer {self.login.password}"

    async def _require_present_name(self, answer: "httpx2.Response") -> None:
        """Raise ForgeError where a change was refused because the project has another name now, or
        because the API is somewhere else."""
        name = await self.full_name()
        site = self.site
        if name.lower() != self.project.lower():
            address = site.remote_url.replace(self.project, name) or "URL"
            raise ForgeError(
                f"{self.project} at {self.host} is {name} now.",
                hint=f"`git remote set-url {site.remote} {address}`, then `kapelle pr` again.",
            )
        if answer.is_redirect:
            place = answer.headers.get("location", "")
            raise ForgeError(
                f"{self.host} redirects {answer.request.url} to {place}.",
                hint=f'Correct url of [forge.hosts."{self.host}"] in config.toml.',
            )

    def _problem(self, answer: "httpx2.Response") -> ForgeError | Unavailable:
        code = answer.status_code
        said = _said(answer)
        host = self.host
        given = answer.headers
        is_limit = given.get("x-ratelimit-remaining") == "0" or "retry-after" in given
        if code == 429 or (code == 403 and is_limit):
            reset = given.get("x-ratelimit-reset", "")
            if reset.isdigit():
                at = datetime.fromtimestamp(int(reset), UTC)
            else:
                at = None
            until = f"until {at:%H:%M} UTC " if at else ""
            return Unavailable(f"{host} allows no more calls {until}for now. It is tried again.")
        if code >= 500:
            return Unavailable(f"{host} answered {code}: {said}. It is tried again.")
        text = f"{host} refused it ({code}): {said}."
        hint = login_hint(self.kind, host, self.login.variable)
        if code == 401:
            text = f"{host} does not accept the token: {said}."
        elif code == 403:
            text = f"The token for {host} may not do this in {self.project}: {said}."
            hint = f"{self._RIGHTS} {hint}"
        elif code == 404:
            text = f"{host} knows no {self.project}, or your token may not see it."
            hint = f"`git remote -v` shows where it would be pushed. {hint}"
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


def retitle(found: PullRequest, draft: bool | None, mark: str) -> str:
    """Return the title that makes a pull request a draft or ready, where titles do that."""
    if draft is None or draft == (found.state == "draft"):
        return found.title
    if not draft:
        return DRAFT_MARKS.sub("", found.title)
    if DRAFT_MARKS.match(found.title):
        return found.title
    return f"{mark}{found.title}"


def read_time(text: str) -> datetime:
    """Return a time of a forge, which is in the zone of its server, in UTC."""
    return datetime.fromisoformat(text).astimezone(UTC)


def login_hint(kind: str, host: str, variable: str = "") -> str:
    """Return what to type for a new token."""
    if variable:
        return (
            f"The daemon has it from the variable {variable}: `kapelle stop`, then `kapelle pr` "
            f"from a shell in which {variable} is a valid token."
        )
    if kind == "github":
        return f"Type `gh auth login --hostname {host}`, then `kapelle pr` again."
    return (
        f"Give git's credential helper a token for {host} (`git credential approve`), or name a "
        f'variable that holds one: token_variable of [forge.hosts."{host}"] in config.toml.'
    )


def _make_context(ca_file: str | None) -> ssl.SSLContext:
    """Return what servers are verified with: the system's authorities, and those of a file."""
    import httpx2

    context = httpx2.create_ssl_context()
    if ca_file is not None:
        try:
            context.load_verify_locations(ca_file)
        except OSError as error:
            text = f"http.sslCAInfo of your git configuration is {ca_file}: {error.strerror}."
            raise ForgeError(text, hint="It has to name a PEM file with certificates.") from None
    return context


def _connection_problem(host: str, error: Exception) -> KapelleError:
    """Return what a failed connection means: most pass, those of certificates do not."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return certificate_problem(host, cause.verify_message or str(cause))
        if isinstance(cause, ssl.SSLError) and cause.reason == "WRONG_VERSION_NUMBER":
            hint = f'Correct url of [forge.hosts."{host}"] in config.toml.'
            return ForgeError(f"{host} does not answer with TLS there.", hint=hint)
        cause = cause.__cause__ or cause.__context__
    return Unavailable(f"{host} cannot be reached: {error}. It is tried again.")


def certificate_problem(host: str, said: str) -> ForgeError:
    """Return the error for a certificate that is not believed."""
    hint = (
        f"Name its authority to git, `git config --global http.https://{host}/.sslCAInfo FILE`, "
        "which Kapelle uses too; or add it to the system's store, or start the daemon with "
        "SSL_CERT_FILE. Then `kapelle pr` again."
    )
    return ForgeError(f"The certificate of {host} is not trusted: {said}.", hint=hint)


def _said(answer: "httpx2.Response") -> str:
    """What a forge says about an error, in one line."""
    try:
        told = answer.json()
    except ValueError:
        return answer.text.strip()[:_MOST_SAID] or answer.reason_phrase
    if not isinstance(told, dict):
        return str(told)[:_MOST_SAID]
    found = [told.get("message") or told.get("error") or answer.reason_phrase]
    for one in told.get("errors") or ():
        found.append(one.get("message") or one.get("code") if isinstance(one, dict) else one)
    return "; ".join(str(one) for one in found if one)[:_MOST_SAID].rstrip(".")
