"""Use cases of integrations: read-only queries to other systems, each off until configured.

Nothing is ever written to these systems. Size and duration of an answer are limited. Keys come from
the daemon's own environment or files, never from the caller.
"""

import asyncio
import json
import re
import urllib.parse
from typing import Annotated, Any

from pydantic import Field, model_validator

from kapelle.domain.errors import BrokenRule, InvalidInput, Unavailable
from kapelle.domain.specs import Spec, Text
from kapelle.domain.views import IntegrationAnswer
from kapelle.engine.parts import Parts
from kapelle.service.request import MAX_BYTES, TIMEOUT_S, read_key, send_request
from kapelle.settings.models import Integration
from kapelle.store.integrations import select

_MAX_JOBS = 5
_LOG_TAIL = 20_000
_LINEAR = "https://api.linear.app/graphql"
_GITHUB = "https://api.github.com"
# Strings and comments of GraphQL, in which braces and words mean nothing.
_QUOTED = re.compile(r'"""(?:\\.|[^\\])*?"""|"(?:\\.|[^"\\\n])*"|#[^\n]*', re.S)
_CHANGING_OPERATION = re.compile(r"\b(mutation|subscription)\b")
_RUN_FIELDS = ("id", "status", "conclusion", "head_branch", "head_sha", "html_url")
# Conclusions of jobs that did not fail; a job that is still running has none.
_NOT_FAILED = {None, "success", "skipped", "neutral"}


QueryText = Annotated[Text, Field(min_length=1, max_length=20_000)]


class GraphQuery(Spec):
    query: QueryText
    variables: dict[str, Any] = Field(default_factory=dict)


class RowQuery(Spec):
    query: QueryText
    limit: Annotated[int, Field(ge=1, le=1000)] = 100


class CiQuery(Spec):
    """A run by its number; by default the last run, of a branch or a pull request if given."""

    run: Annotated[int, Field(ge=1)] | None = None
    branch: Annotated[Text, Field(max_length=300)] | None = None
    pr: Annotated[int, Field(ge=1, description="number of a pull request")] | None = None

    @model_validator(mode="after")
    def _one_of_them(self) -> "CiQuery":
        if [self.run, self.branch, self.pr].count(None) < 2:
            text = "`run`, `branch` and `pr` exclude each other: leave all but one out"
            raise BrokenRule(text, "run", "branch", "pr")
        return self


class IntegrationService:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def list_configured(self) -> list[str]:
        """List the names of the configured integrations."""
        integrations = self._parts.settings(None).integrations
        return [name for name, settings in integrations if settings.model_fields_set]

    async def linear(self, body: GraphQuery) -> IntegrationAnswer:
        """Query Linear for issues, projects and comments, in its GraphQL."""
        # A carriage return ends a line, and thus a comment, too.
        query = body.query.replace("\r", "\n")
        if _changes_something(query):
            raise InvalidInput("Only queries are sent to Linear.", hint="Leave mutations out.")
        settings = self._require("linear")
        content = {"query": query, "variables": body.variables}
        headers = {"Authorization": read_key(settings, "linear")}
        url = settings.url or _LINEAR
        answer = await asyncio.to_thread(send_request, url, headers, content)
        return IntegrationAnswer(answer=json.loads(answer))

    async def logs(self, body: RowQuery) -> IntegrationAnswer:
        """Search the logs with a Lucene query; returns the newest matching records."""
        settings = self._require("logs")
        base = _require_setting(settings, "logs", "url", "https://…").rstrip("/")
        index = urllib.parse.quote(settings.name or "*", safe="*,-_.")
        content = {
            "query": {"query_string": {"query": body.query}},
            "size": body.limit,
            "sort": [{"@timestamp": {"order": "desc", "unmapped_type": "date"}}],
        }
        headers = _authorization(settings, "logs", "")
        answer = await asyncio.to_thread(send_request, f"{base}/{index}/_search", headers, content)
        hits = json.loads(answer).get("hits", {}).get("hits", [])
        return IntegrationAnswer(answer=[hit.get("_source") for hit in hits])

    async def database(self, body: RowQuery) -> IntegrationAnswer:
        """Query a database with one SQL statement in a read-only transaction."""
        address = read_key(self._require("database"), "database")
        try:
            async with asyncio.timeout(TIMEOUT_S):
                rows, more = await select(address, body.query, body.limit, TIMEOUT_S, MAX_BYTES)
        except TimeoutError:
            raise Unavailable(f"The query took longer than {TIMEOUT_S:.0f} s.") from None
        return IntegrationAnswer(answer=rows, truncated=more)

    async def ci(self, body: CiQuery) -> IntegrationAnswer:
        """Get the failed jobs of a GitHub Actions run, with the ends of their logs."""
        settings = self._require("ci")
        repository = _require_setting(settings, "ci", "name", "OWNER/REPOSITORY")
        answer = await asyncio.to_thread(_read_failed_jobs, settings, repository, body)
        return IntegrationAnswer(answer=answer)

    def _require(self, name: str) -> Integration:
        settings: Integration = getattr(self._parts.settings(None).integrations, name)
        if settings.model_fields_set:
            return settings
        if name == "logs":
            first_setting = "url URL"
        else:
            first_setting = "key_variable NAME"
        raise InvalidInput(
            f"The integration {name} is not configured.",
            hint=f"Type `kapelle config set integrations.{name}.{first_setting}`.",
        )


def _changes_something(query: str) -> bool:
    """Return whether a GraphQL document has an operation other than a query."""
    depth = 0
    outside_braces = []
    for char in _QUOTED.sub(" ", query):
        if char == "{":
            depth += 1
        elif char == "}":
            depth -= 1
        if depth <= 0:
            outside_braces.append(char)
    return _CHANGING_OPERATION.search("".join(outside_braces)) is not None


def _read_failed_jobs(settings: Integration, repository: str, query: CiQuery) -> dict[str, Any]:
    headers = {"Accept": "application/vnd.github+json"}
    headers |= _authorization(settings, "ci", "Bearer ")
    base = f"{settings.url or _GITHUB}/repos/{repository}"
    run = _find_ci_run(base, headers, query)
    if run is None:
        return {"run": None, "jobs": []}
    actions = f"{base}/actions"
    jobs = json.loads(send_request(f"{actions}/runs/{run['id']}/jobs?per_page=100", headers))
    failed_jobs = [job for job in jobs["jobs"] if job["conclusion"] not in _NOT_FAILED]
    described_jobs = []
    for job in failed_jobs[:_MAX_JOBS]:
        log = send_request(f"{actions}/jobs/{job['id']}/logs", headers)
        described_jobs.append(
            {"name": job["name"], "conclusion": job["conclusion"], "log": log[-_LOG_TAIL:]}
        )
    return {
        "run": {name: run.get(name) for name in _RUN_FIELDS},
        "jobs": described_jobs,
        "failed": len(failed_jobs),
    }


def _find_ci_run(base: str, headers: dict[str, str], query: CiQuery) -> Any:
    """Return the run that a query names, or the last one that it matches; None without any."""
    if query.run is not None:
        return json.loads(send_request(f"{base}/actions/runs/{query.run}", headers))
    filters: dict[str, Any] = {"per_page": 1}
    if query.branch:
        filters["branch"] = query.branch
    if query.pr is not None:
        # By commit and not by branch, because a fork may have a branch of the same name.
        pull = json.loads(send_request(f"{base}/pulls/{query.pr}", headers))
        filters["head_sha"] = pull["head"]["sha"]
    url = f"{base}/actions/runs?{urllib.parse.urlencode(filters)}"
    runs = json.loads(send_request(url, headers))["workflow_runs"]
    if not runs:
        return None
    return runs[0]


def _require_setting(settings: Integration, name: str, field: str, example: str) -> str:
    """Return a setting without a default; raises InvalidInput if it is missing."""
    value = getattr(settings, field)
    if value:
        return str(value)
    setting = f"integrations.{name}.{field}"
    raise InvalidInput(
        f"{setting} is not set.", hint=f"Type `kapelle config set {setting} {example}`."
    )


def _authorization(settings: Integration, name: str, scheme: str) -> dict[str, str]:
    """Return the header of an integration that works without a key, too; empty without one."""
    if settings.key_variable or settings.key_file:
        return {"Authorization": f"{scheme}{read_key(settings, name)}"}
    return {}
