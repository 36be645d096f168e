"""Filters of lists and reports, as clients send them: resolve directories and times."""

from datetime import datetime
from typing import TypeVar

from kapelle.domain.run import NeedFilter, RunFilter
from kapelle.domain.task import MomentText, TaskFilter
from kapelle.domain.times import parse_date_or_time
from kapelle.domain.usage import ReportFilter, UsageFilter
from kapelle.workspaces import repository_of

F = TypeVar("F", TaskFilter, RunFilter, NeedFilter, ReportFilter, UsageFilter)


def resolve_repository(query: F) -> F:
    """Return a filter whose repository is no longer a directory inside the repository.

    A repository that is given by its name stays as it is.
    """
    if query.repository is None or not query.repository.startswith("/"):
        return query
    return query.model_copy(update={"repository": repository_of(query.repository)})


def parse_since(text: MomentText) -> datetime | None:
    """Return the beginning of a period, or None if it has none; raises InvalidInput."""
    if not text:
        return None
    return parse_date_or_time(text, "since")


def parse_until(text: MomentText) -> datetime | None:
    """Return the end of a period, or None if it has none; raises InvalidInput.

    A date without a time stands for the end of that day.
    """
    if not text:
        return None
    return parse_date_or_time(text, "until", ends=True)
