"""A file of features, as `tracks` works it off: JSON, a list or an object with `features`."""

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
    """What a verifying agent saw of every step."""

    steps: list[VerifiedStep] = Field(description="every step of the feature, in order")

    def lacks(self, criteria: list[str]) -> str:
        """The steps that have not passed, or without evidence, in words; empty if all have."""
        said = {step.step: step for step in self.steps}
        lines = []
        for number, text in enumerate(criteria, 1):
            step = said.get(number)
            if step is None or not step.passed or not step.evidence.strip():
                if step:
                    evidence = step.evidence
                else:
                    evidence = "not reported"
                lines.append(f"STEP {number}: {text}: {evidence}")
        return "\n\n".join(lines)


class Feature(BaseModel):
    """A feature as it is in the file, and what became of it."""

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
    def told(self) -> str:
        steps = [f"{number}. {step}" for number, step in enumerate(self.criteria, 1)]
        return "\n".join([f"## {self.name}", self.description, "", *steps])

    @property
    def wanted_branch(self) -> str:
        """feature/<id>-<name>, in letters that a branch may have."""
        slug = re.sub(r"[^a-z0-9]+", "-", f"{self.id}-{self.name}".lower())
        return f"feature/{slug[:60].strip('-')}"


def read_features(name: str, text: str | None) -> list[Feature]:
    if text is None:
        raise Failed(f"there is no {name} on the branch that the run begins from: commit it first")
    features: list[Feature] = []
    try:
        for item in _items(json.loads(text)):
            features.append(Feature.model_validate(item))
    except ValidationError as error:
        which = f"feature {len(features) + 1}"
        which += f" (id {item['id']})" if isinstance(item, dict) and "id" in item else ""
        raise Failed(f"{name}: {which}: {format_problems(error)}; {_COMMITTED}") from None
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, KeyError):
            why = f"it has no {error}"
        else:
            why = f"{error}"
        problem = f"{name} is no list of features, nor an object with one: {why}"
        raise Failed(f"{problem}; {_COMMITTED}") from None
    ids = [feature.id for feature in features]
    for number, one in enumerate(ids, 1):
        if one in ids[: number - 1]:
            raise Failed(f"{name}: feature {number} has the id {one} of another; {_COMMITTED}")
    return features


def with_status(text: str, feature: Feature, status: FeatureStatus) -> str:
    """Return the file with another status of one feature; every other byte stays as it is."""
    new = json.dumps(status)
    for start, end in _elements(text, _list_start(text)):
        if json.loads(text[start:end])["id"] != feature.id:
            continue
        members = _members(text, start)
        for member in reversed(members):
            if member.key == "status":
                return text[: member.start] + new + text[member.end :]
        last = members[-1]
        # As the members before it are separated: by a line, or by a space.
        if len(members) > 1:
            between = text[members[-2].end : last.key_start]
        else:
            between = ", "
        return f'{text[: last.end]}{between}"status": {new}{text[last.end :]}'
    return text


class _Member(NamedTuple):
    """A member of an object in a text: its key, and where the key and the value stand."""

    key: str
    key_start: int
    start: int
    end: int


def _list_start(text: str) -> int:
    """Where the list of features begins."""
    start = _skip_space(text, 0)
    if text[start] == "[":
        return start
    return next(one.start for one in reversed(_members(text, start)) if one.key == "features")


def _members(text: str, start: int) -> list[_Member]:
    """The members of the object that begins there, as JSON that was read before."""
    found: list[_Member] = []
    position = _skip_space(text, start + 1)
    while text[position] != "}":
        key, end = _DECODER.raw_decode(text, position)
        value = _skip_space(text, _skip_space(text, end) + 1)
        value_end = _DECODER.raw_decode(text, value)[1]
        found.append(_Member(key, position, value, value_end))
        position = _after_comma(text, value_end)
    return found


def _elements(text: str, start: int) -> Iterator[tuple[int, int]]:
    """Where each element of the list that begins there stands."""
    position = _skip_space(text, start + 1)
    while text[position] != "]":
        end = _DECODER.raw_decode(text, position)[1]
        yield position, end
        position = _after_comma(text, end)


def _after_comma(text: str, position: int) -> int:
    position = _skip_space(text, position)
    if text[position] == ",":
        return _skip_space(text, position + 1)
    return position


def _skip_space(text: str, position: int) -> int:
    while text[position] in " \t\r\n":
        position += 1
    return position


def _items(found: Any) -> Any:
    if isinstance(found, dict):
        return found["features"]
    return found
