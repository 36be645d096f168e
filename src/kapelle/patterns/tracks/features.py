"""The file of features: JSON, a list of features or an object with a list `features`."""

import json
import re
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, Field, ValidationError

from kapelle.domain.errors import format_problems
from kapelle.patterns.results import Failed

FeatureStatus = Literal["open", "verifying", "passed", "failed"]

_DECODER = json.JSONDecoder()
_COMMITTED = "the file is read as it is committed"


class VerifiedStep(BaseModel):
    step: int = Field(description="its number")
    passed: bool
    evidence: str = Field(description="what you did to see it, and what you saw")


class VerificationReport(BaseModel):
    """The report of the verifying agent about every step of a feature."""

    steps: list[VerifiedStep] = Field(description="every step of the feature, in order")

    def lacks(self, criteria: list[str]) -> str:
        """Return the steps that did not pass or lack evidence, in words; empty if none do."""
        reports = {step.step: step for step in self.steps}
        lines = []
        for number, text in enumerate(criteria, 1):
            step = reports.get(number)
            if step is None:
                lines.append(f"STEP {number}: {text}: not reported")
            elif not step.passed or not step.evidence.strip():
                lines.append(f"STEP {number}: {text}: {step.evidence}")
        return "\n\n".join(lines)


class Feature(BaseModel):
    """A feature of the file with its outcome."""

    id: int | str
    category: str = ""
    name: str
    description: str = ""
    steps: list[str] = []
    status: FeatureStatus = "open"
    track: str = ""
    phase: str = "waiting"
    branch: str | None = None
    commit: str | None = None
    tasks: list[str] = []
    verifications: int = 0
    report: list[VerifiedStep] = []
    reason: str | None = None

    @property
    def criteria(self) -> list[str]:
        return self.steps or [self.description or self.name]

    @property
    def text(self) -> str:
        """Return the feature for prompts."""
        steps = [f"{number}. {step}" for number, step in enumerate(self.criteria, 1)]
        return "\n".join([f"## {self.name}", self.description, "", *steps])

    @property
    def branch_name(self) -> str:
        """Return feature/<id>-<name>, in characters that a branch may have."""
        slug = re.sub(r"[^a-z0-9]+", "-", f"{self.id}-{self.name}".lower())
        return f"feature/{slug[:60].strip('-')}"


def read_features(name: str, text: str | None) -> list[Feature]:
    """Return the features in a file; raise Failed if it cannot be used. name is for errors."""
    if text is None:
        raise Failed(f"there is no {name} on the branch that the run begins from: commit it first")
    features: list[Feature] = []
    try:
        for item in _feature_list(json.loads(text)):
            features.append(Feature.model_validate(item))
    except ValidationError as error:
        place = f"feature {len(features) + 1}"
        if isinstance(item, dict) and "id" in item:
            place += f" (id {item['id']})"
        raise Failed(f"{name}: {place}: {format_problems(error)}; {_COMMITTED}") from None
    except (ValueError, KeyError, TypeError) as error:
        problem = f"it has no {error}" if isinstance(error, KeyError) else f"{error}"
        reason = f"{name} is no list of features, nor an object with one: {problem}"
        raise Failed(f"{reason}; {_COMMITTED}") from None
    ids = set[int | str]()
    for number, feature in enumerate(features, 1):
        if feature.id in ids:
            problem = f"feature {number} has the id {feature.id} of another"
            raise Failed(f"{name}: {problem}; {_COMMITTED}")
        ids.add(feature.id)
    return features


def with_status(text: str, feature: Feature, status: FeatureStatus) -> str:
    """Return the file with a new status of one feature; every other byte stays the same."""
    value = json.dumps(status)
    for start, end in _elements(text, _list_start(text)):
        if json.loads(text[start:end])["id"] != feature.id:
            continue
        members = _members(text, start)
        for member in reversed(members):
            if member.key == "status":
                return text[: member.start] + value + text[member.end :]
        last = members[-1]
        # Separate the new member as the others are: by a line, or by a space.
        separator = ", "
        if len(members) > 1:
            separator = text[members[-2].end : last.key_start]
        return f'{text[: last.end]}{separator}"status": {value}{text[last.end :]}'
    return text


class _Member(NamedTuple):
    """A member of an object in a JSON text: its key, and the places of key and value."""

    key: str
    key_start: int
    start: int
    end: int


def _list_start(text: str) -> int:
    """Return the position at which the list of features begins."""
    start = _skip_space(text, 0)
    if text[start] == "[":
        return start
    lists = [member.start for member in _members(text, start) if member.key == "features"]
    return lists[-1]  # of several equal keys in JSON the last one counts


def _members(text: str, start: int) -> list[_Member]:
    """Return the members of the object at a position of a valid JSON text."""
    members: list[_Member] = []
    position = _skip_space(text, start + 1)
    while text[position] != "}":
        key, end = _DECODER.raw_decode(text, position)
        value = _skip_space(text, _skip_space(text, end) + 1)
        value_end = _DECODER.raw_decode(text, value)[1]
        members.append(_Member(key, position, value, value_end))
        position = _skip_comma(text, value_end)
    return members


def _elements(text: str, start: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of each element of the list at a position."""
    position = _skip_space(text, start + 1)
    while text[position] != "]":
        end = _DECODER.raw_decode(text, position)[1]
        yield position, end
        position = _skip_comma(text, end)


def _skip_comma(text: str, position: int) -> int:
    position = _skip_space(text, position)
    if text[position] == ",":
        return _skip_space(text, position + 1)
    return position


def _skip_space(text: str, position: int) -> int:
    while text[position] in " \t\r\n":
        position += 1
    return position


def _feature_list(content: Any) -> Any:
    if isinstance(content, dict):
        return content["features"]
    return content
