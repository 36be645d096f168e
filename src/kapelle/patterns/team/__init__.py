"""A goal: planned, worked on by several at once, verified and reviewed, again until it is done."""

from kapelle.patterns.team.pattern import team
from kapelle.patterns.team.shapes import TeamResult

__all__ = ["TeamResult", "team"]
