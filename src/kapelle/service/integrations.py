"""Use cases of integrations: reading what other systems know, each off until it is configured.

Nothing is ever written there, no answer is longer or later than the limits below, and keys come
from the daemon's own environment or files, never from whoever asks.
"""

import asyncio
import http.client
import json
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from kapelle.domain.errors import BrokenRule, InvalidInput, KapelleError, Unavailable
from kapelle.domain.specs import Spec, Text
from kapelle.domain.views import IntegrationAnswer
from kapelle.engine.parts import Parts
from kapelle.home import read_own
from kapelle.settings.models import Integration, KeyedSettings
from kapelle.store.integrations import select

_TIMEOUT_S = 20.0
_MOST_BYTES = 1_000_000
_MOST_JOBS = 5
_LOG_TAIL = 20_000
_LINEAR = "https://api.linear.app/graphql"
_GITHUB = "https://api.github.com"
_LOCAL = {"localhost", "127.0.0.1", "::1"}
# Strings and comments of GraphQL, in which braces and words mean nothing.
_QUOTED = re.compile(r'"""(?:\\.|[^\\])*?"""|"(?:\\.|[^"\\\n])*"|#[^\n]*', re.S)
_WRITES = re.compile(r"\b(mutation|subscription)\b")


QueryText = Annotated[Text, Field(min_length=1, max_length=20_000)]


class GraphQuery(Spec):
    query: QueryText
    variables: dict[str, Any] = Field(default_factory=dict)


class RowQuery(Spec):
    query: QueryText
    limit: Annotated[int, Field(ge=1, le=1000)] = 100


class CiQuery(Spec):
    """A run by its number, or the last one, of a branch or of a pull request if given."""

    run: Annotated[int, Field(ge=1)] | None = None
    branch: Annotated[Text, Field(max_length=300)] | None = None
    pr: Annotated[int, Field(ge=1, description="number of a pull request")] | None = None

    @model_validator(mode="after")
    def _one_of_them(self) -> "CiQuery":
        if sum(one is not None for one in (self.run, self.branch, self.pr)) > 1:
            text = "`run`, `branch` and `pr` exclude each other: leave all but one out"
            raise BrokenRule(text, "run", "branch", "pr")
        return self


class IntegrationService:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def configured(self) -> list[str]:
        """The integrations that are configured."""
        found = self._parts.settings(None).integrations
        return [name for name, known in found if known.model_fields_set]

    async def linear(self, body: GraphQuery) -> IntegrationAnswer:
        """Ask Linear, by a query in its GraphQL, for issues, projects and comments."""
        query = body.query.replace("\r", "\n")  # which end a line, and so a comment, as well
        if _changes_something(query):
            raise InvalidInput("Only queries are sent to Linear.", hint="Leave mutations out.")
        known = self._require("linear")
        asked = {"query": query, "variables": body.variables}
        headers = {"Authorization": key_of(known, "linear")}
        answer = await asyncio.to_thread(request, known.url or _LINEAR, headers, asked)
        return IntegrationAnswer(answer=json.loads(answer))

    async def logs(self, body: RowQuery) -> IntegrationAnswer:
        """The newest log records that a Lucene query finds."""
        known = self._require("logs")
        index = urllib.parse.quote(known.name or "*", safe="*,-_.")
        asked = {
            "query": {"query_string": {"query": body.query}},
            "size": body.limit,
            "sort": [{"@timestamp": {"order": "desc", "unmapped_type": "date"}}],
        }
        headers = _authorization(known, "logs", "")
        url = f"{_named(known, 'logs', 'url', 'https://…').rstrip('/')}/{index}/_search"
        answer = await asyncio.to_thread(request, url, headers, asked)
        hits = json.loads(answer).get("hits", {}).get("hits", [])
        return IntegrationAnswer(answer=[hit.get("_source") for hit in hits])

    async def database(self, body: RowQuery) -> IntegrationAnswer:
        """The rows of one SQL statement that changes nothing."""
        address = key_of(self._require("database"), "database")
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                rows, more = await select(address, body.query, body.limit, _TIMEOUT_S, _MOST_BYTES)
        except TimeoutError:
            raise Unavailable(f"The database took longer than {_TIMEOUT_S:.0f} s.") from None
        return IntegrationAnswer(answer=rows, truncated=more)

    async def ci(self, body: CiQuery) -> IntegrationAnswer:
        """What failed in a run of GitHub Actions: its jobs, with the ends of their logs."""
        known = self._require("ci")
        _named(known, "ci", "name", "OWNER/REPOSITORY")
        failed = await asyncio.to_thread(_failed, known, body)
        return IntegrationAnswer(answer=failed)

    def _require(self, name: str) -> Integration:
        known: Integration = getattr(self._parts.settings(None).integrations, name)
        if not known.model_fields_set:
            if name == "logs":
                first = "url URL"
            else:
                first = "key_variable NAME"
            raise InvalidInput(
                f"The integration {name} is not configured.",
                hint=f"Type `kapelle config set integrations.{name}.{first}`.",
            )
        return known


def _changes_something(query: str) -> bool:
    """Whether an operation of a document is anything but a query."""
    depth = 0
    outside = []
    for char in _QUOTED.sub(" ", query):
        depth += {"{": 1, "}": -1}.get(char, 0)
        if depth <= 0:
            outside.append(char)
    return _WRITES.search("".join(outside)) is not None


def _failed(known: Integration, wanted: CiQuery) -> dict[str, Any]:
    headers = {"Accept": "application/vnd.github+json", **_authorization(known, "ci", "Bearer ")}
    repository = f"{known.url or _GITHUB}/repos/{known.name}"
    base = f"{repository}/actions"

    def get(path: str) -> Any:
        return json.loads(request(f"{base}/{path}", headers))

    if wanted.run is None:
        asked: dict[str, Any] = {"per_page": 1}
        if wanted.branch:
            asked["branch"] = wanted.branch
        if wanted.pr is not None:
            # Not by its branch: a fork may have one of the same name.
            pull = json.loads(request(f"{repository}/pulls/{wanted.pr}", headers))
            asked["head_sha"] = pull["head"]["sha"]
        runs = get(f"runs?{urllib.parse.urlencode(asked)}")["workflow_runs"]
        if not runs:
            return {"run": None, "jobs": []}
        found = runs[0]
    else:
        found = get(f"runs/{wanted.run}")
    jobs = [
        job
        for job in get(f"runs/{found['id']}/jobs?per_page=100")["jobs"]
        if job["conclusion"] not in {None, "success", "skipped", "neutral"}
    ]
    logs = [
        {
            "name": job["name"],
            "conclusion": job["conclusion"],
            "log": request(f"{base}/jobs/{job['id']}/logs", headers)[-_LOG_TAIL:],
        }
        for job in jobs[:_MOST_JOBS]
    ]
    shown = ("id", "status", "conclusion", "head_branch", "head_sha", "html_url")
    return {"run": {key: found.get(key) for key in shown}, "jobs": logs, "failed": len(jobs)}


class _NoKeyElsewhere(urllib.request.HTTPRedirectHandler):
    """Follows to another host or scheme without the key: logs lie in a storage of their own."""

    def redirect_request(self, req: Any, *args: Any) -> urllib.request.Request | None:
        new = super().redirect_request(req, *args)
        if new is not None and (new.type, new.host) != (req.type, req.host):
            new.remove_header("Authorization")
        return new


_opener = urllib.request.build_opener(_NoKeyElsewhere)


def request(url: str, headers: Mapping[str, str], body: Any = None) -> str:
    """What a service answers; a key goes nowhere but over https or to this machine."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme != "https" and parts.hostname not in _LOCAL:
        raise InvalidInput(f"{parts.hostname} must be reached over https: a key is sent to it.")
    if body is None or isinstance(body, bytes):
        data = body
    else:
        data = json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **headers})
    try:
        with _opener.open(request, timeout=_TIMEOUT_S) as answer:
            found: bytes = answer.read(_MOST_BYTES + 1)
    except urllib.error.HTTPError as error:
        said = error.read(1000).decode(errors="replace").strip()
        raise KapelleError(f"{parts.hostname} answered {error.code}: {said}") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise Unavailable(f"{parts.hostname} cannot be reached: {error}") from None
    if len(found) > _MOST_BYTES and body is not None:
        raise InvalidInput("The answer is longer than a megabyte.", hint="Ask for less.")
    return found.decode(errors="replace")


def _named(known: Integration, name: str, field: str, example: str) -> str:
    """What only the settings can say: where it is, or of which repository."""
    if found := getattr(known, field):
        return str(found)
    setting = f"integrations.{name}.{field}"
    raise InvalidInput(
        f"{setting} is not set.", hint=f"Type `kapelle config set {setting} {example}`."
    )


def _authorization(known: Integration, name: str, scheme: str) -> dict[str, str]:
    """The header of one that may do without a key."""
    has_key = known.key_variable or known.key_file
    if has_key:
        return {"Authorization": f"{scheme}{key_of(known, name)}"}
    return {}


def key_of(known: KeyedSettings, name: str) -> str:
    """The key of an integration, or of what else has one."""
    if known.key_file is not None:
        try:
            return read_own(Path(known.key_file).expanduser()).decode().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput(f"The key of {name} cannot be read: {error}") from None
    value = os.environ.get(known.key_variable or "", "")
    if not value:
        if isinstance(known, Integration):
            place = f"integrations.{name}"
        else:
            place = name
        raise InvalidInput(
            f"The daemon has no key for {name}.",
            hint=f"Set {place}.key_file, or start the daemon with"
            f" {known.key_variable or 'the variable named by key_variable'} set.",
        )
    return value
