"""The tools: each is a route or a pattern, with a schema that an agent can afford to read.

An agent pays for every listed tool in every session. So a core set is listed, and `tool_list` and
`tool_call` lead to the others: they work in every client, for many clients never read the list of
tools a second time.
"""

import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mcp_types as types

from kapelle.api.operations import Operation
from kapelle.api.parameters import Binding
from kapelle.api.router import Router
from kapelle.api.security import owner_only
from kapelle.domain.errors import InvalidInput
from kapelle.domain.text import suggest_name
from kapelle.patterns.registry import Pattern, load_built_in
from kapelle.patterns.spec import PatternSpec
from kapelle.service import Service

TOOL_LIST = "tool_list"
TOOL_CALL = "tool_call"
INTEGRATIONS = "/api/v1/integrations/"
DIRECTORY = "directory"
# Lists have so many items by default, and at most so many: then every answer fits.
ITEMS = 20
MOST_ITEMS = 50
# Lists that their use case divides into pages, and those that are divided here, by their field.
PAGED = frozenset({
    "task_list", "run_list", "schedule_list", "learning_search", "note_list", "search",
})  # fmt: skip
SLICED = {
    "agent_list": "items", "lock_list": "items", "pattern_list": "items", "run_steps": "items",
    "template_list": "items", "question_list": "questions", "usage_get": "rows",
}  # fmt: skip
# Arguments of a tool that its route does not have: their schemas.
_LIMIT = {"type": "integer", "minimum": 1, "maximum": MOST_ITEMS}
_EVENTS_LIMIT = {"limit": {"type": "integer", "minimum": 1, "maximum": 1000}}
_SLICE = {"limit": _LIMIT, "cursor": {"type": "string"}}
REST = {
    "field": {"type": "string", "description": "of `cut`"},
    "offset": {"type": "integer", "minimum": 0},
}
# Arguments that have another name here than in REST: the name in REST by the name here.
RENAMED = {
    "task_list": {DIRECTORY: "repository"},
    "run_list": {DIRECTORY: "repository"},
}
# What is sent to a route whatever was asked for.
SENT: dict[str, dict[str, Any]] = {
    "task_logs": {"follow": "false"},
    "run_tail": {"follow": "false"},
    "learning_search": {"status": "kept"},
    "task_list": {"light": "true"},
    "run_list": {"light": "true"},
}
# The tools that take the directory in which a client works, if it says so.
IN_DIRECTORY = frozenset({
    "task_create", "pattern_list", "pattern_get", "agent_list", "learning_search",
    "learning_report", "doctor",
})  # fmt: skip

_CORE = (
    "task_create", "task_get", "task_list", "task_logs", "task_diff", "task_merge", "task_cancel",
    "task_resume", "task_say", "wait", "loop_start", "team_start", "run_start", "run_get",
    "run_list", "run_tail", "run_diff", "run_merge", "run_cancel", "pattern_list", "pattern_get",
    "question_list", "question_answer", TOOL_LIST, TOOL_CALL,
)  # fmt: skip
# For an attempt: work for others, questions, notes, learnings, and its own result.
_CORE_OF_ATTEMPTS = (
    "task_create", "task_get", "task_list", "task_logs", "task_diff", "task_merge", "task_cancel",
    "wait", "run_start", "run_get", "run_merge", "pattern_get", "question_ask", "question_wait",
    "question_answer", "note_set", "note_get", "note_list", "note_watch", "learning_search",
    "learning_report", "task_report", "task_finish", TOOL_LIST, TOOL_CALL,
)  # fmt: skip

# Parts of a schema that cost words and tell an agent nothing: a limit is named when it is exceeded.
_LEFT_OUT = {
    "title", "x-cli", "default", "format", "pattern", "properties", "$defs", "additionalProperties",
    "minLength", "maxLength", "maxItems", "maxProperties", "propertyNames", "exclusiveMinimum",
}  # fmt: skip
_MANY = 10_000
# Fields of every pattern that are listed with its tool; pattern_get tells the others.
_OFTEN = {"directory", "title", "agent", "model", "base", "budget_usd", "project", "deliver"}
_SELDOM = PatternSpec.model_fields.keys() - _OFTEN
# Fields that are left out where only the core set is listed; tool_list tells them by name.
_BESIDES_CORE = {
    "task_create": {
        "idempotency_key", "fallback_agents", "system_prompt", "env", "workspace", "prove",
        "interactive", "deps_policy", "fork_session", "max_turns", "tools", "retry", "mcp",
        "coordinate", "browser", "tags",
    },
    "loop_start": {
        "steps", "eval_mode", "eval_prompt", "eval_schema", "eval_timeout_s", "judge",
        "judge_model", "max_failures", "cooldown_s", "convergence",
    },
    "team_start": {
        "playwright", "planner", "worker", "reviewer", "planner_model", "worker_model",
        "reviewer_model", "max_subgoals", "max_task_retries", "max_questions", "confirm",
    },
    "task_list": {"flagged", "parent_task_id", "nested"},
    "run_list": {"flagged", "parent_task_id", "parent_id", "nested"},
    "task_logs": {"before", "outline"},
    "run_tail": {"last_event_id", "task_id", "activity"},
    "task_merge": {"verify", "style", "message"},
    "run_merge": {"verify", "style", "message"},
}  # fmt: skip
_MORE = "More arguments: tool_list with name."
# What is announced of an answer: that with which a client goes on. All would cost too much.
_WORK = {"id": {"type": "string"}, "status": {"type": "string"}}
_EVENTS = {"events": {"type": "array"}, "cursor": {"type": "string"}}
_GIVES = {
    **dict.fromkeys(("task_create", "task_get", "run_start", "run_get"), _WORK),
    **dict.fromkeys(("task_logs", "run_tail"), _EVENTS),
    "wait": {"resting": {"type": "array"}, "pending": {"type": "array"}},
}
# What a tool's description says besides that of its use case.
_BESIDES = {
    "task_create": "Say in checks how to see that it is done.",
    "task_logs": "Go on with last_event_id = cursor.",
    "run_start": "For patterns without a tool of their own; pattern_get has the schema of spec.",
    "run_tail": "Go on with after = cursor.",
    "question_ask": "While its status is open, call question_wait.",
}
# Descriptions that do not fit a program: a list here is light, whatever the route's is.
_INSTEAD = {
    "pattern_list": "The names of the patterns with a line about each; pattern_get has the schema.",
}
_DESTRUCTIVE = {
    "task_cancel", "task_retry", "run_cancel", "schedule_cancel", "note_delete", TOOL_CALL,
}  # fmt: skip
_ABOUT_TOOLS = {
    TOOL_LIST: "The tools that are not listed, with a line about each; with name the schema of one",
    TOOL_CALL: "Call any tool of tool_list by its name",
}
_NAME = {"type": "string"}


@dataclass(frozen=True)
class Tool:
    """A tool: its operation, or none for those that lead to other tools."""

    name: str
    operation: Operation | None
    pattern: Pattern | None
    listed: types.Tool  # with every field
    core: types.Tool  # with the fields of the core set
    arguments: frozenset[str]  # the names of all that it takes

    @property
    def is_read_only(self) -> bool:
        return bool(self.listed.annotations and self.listed.annotations.read_only_hint)

    @property
    def is_for_attempts(self) -> bool:
        return self.operation is None or self.operation.access is not owner_only

    def require_known(self, arguments: Mapping[str, Any]) -> None:
        """Raise InvalidInput for the first argument that the tool does not have."""
        for name in arguments:
            if name not in self.arguments:
                meant = suggest_name(name, self.arguments)
                others = ", ".join(sorted(self.arguments)) or "none"
                raise InvalidInput(
                    f"{self.name} has no argument {name!r}.",
                    hint=meant or f"Its arguments: {others}.",
                )


class Tools:
    """Every tool by its name, and which of them are listed."""

    def __init__(self, app: Router) -> None:
        self._app = app
        operations = {one.tool: one for one in app.every() if one.tool}
        bindings = {name: one.bind(app.services) for name, one in operations.items()}
        # Fields that every specification has are described with the first tool alone.
        first = _describe_arguments(bindings["task_create"])
        shared = compact_schema(first, ())["properties"]
        self.by_name = {
            name: _make_operation_tool(one, bindings[name], app.services)
            for name, one in operations.items()
        }
        start = operations["run_start"]
        for pattern in load_built_in():
            tool = _make_pattern_tool(start, bindings[start.tool], pattern, shared)
            self.by_name[tool.name] = tool
        self.by_name[TOOL_LIST] = _make_tool_of_tools(TOOL_LIST, {"name": _NAME}, [])
        given = {"name": _NAME, "arguments": {"type": "object"}}
        self.by_name[TOOL_CALL] = _make_tool_of_tools(TOOL_CALL, given, ["name"])

    def get(self, name: str, *, owner: bool) -> Tool:
        """The tool of a name; raises InvalidInput."""
        if (tool := self.by_name.get(name)) is not None:
            return tool
        known = [one.name for one in self.usable(owner=owner)]
        hint = suggest_name(name, known) or f"{TOOL_LIST} and tools/list name them."
        raise InvalidInput(f"There is no tool {name}.", hint=hint)

    def usable(self, *, owner: bool) -> list[Tool]:
        """The tools that a caller may use; those of integrations only if they are configured."""
        configured = {INTEGRATIONS + one for one in self._app.services.integrations.configured()}
        allowed = [tool for tool in self.by_name.values() if owner or tool.is_for_attempts]
        return [
            tool for tool in allowed if _path_of(tool) in configured or not _is_integration(tool)
        ]

    def listed(self, *, owner: bool, every: bool) -> list[types.Tool]:
        """What tools/list answers: the core set with what is configured, or every tool."""
        usable = self.usable(owner=owner)
        if every:
            return [tool.listed for tool in usable if tool.operation is not None]
        core = _CORE if owner else _CORE_OF_ATTEMPTS
        return [tool.core for tool in usable if tool.name in core or _is_integration(tool)]

    def others(self, *, owner: bool) -> list[Tool]:
        """The tools that the core set leaves out."""
        named = {one.name for one in self.listed(owner=owner, every=False)}
        return [tool for tool in self.usable(owner=owner) if tool.name not in named]


def _path_of(tool: Tool) -> str:
    return tool.operation.path if tool.operation else ""


def _is_integration(tool: Tool) -> bool:
    """Whether a tool asks a service outside."""
    return _path_of(tool).startswith(INTEGRATIONS)


def _make_operation_tool(operation: Operation, binding: Binding, services: Service) -> Tool:
    name = operation.tool
    schema = _describe_arguments(binding)
    names = frozenset(schema["properties"]) | RENAMED.get(name, {}).keys()
    about = _INSTEAD.get(name) or inspect.getdoc(operation.use_case(services)) or ""
    return _make_tool(name, operation, None, about, schema, names)


def _make_pattern_tool(
    operation: Operation, binding: Binding, pattern: Pattern, shared: Mapping[str, Any]
) -> Tool:
    """Return the tool that starts a run of a pattern.

    It takes the fields of the pattern's specification, those that tasks have as well without a
    description.
    """
    name = f"{pattern.name.replace('-', '_')}_start"
    names = frozenset(pattern.spec_schema["properties"]) | header_arguments(binding)
    schema = pattern.spec_schema
    return _make_tool(name, operation, pattern, pattern.summary, schema, names, shared)


def header_arguments(binding: Binding) -> set[str]:
    """Return the arguments of a tool that are headers of a request."""
    return {source.name.replace("-", "_") for source in binding.sources.values()}


def _make_tool_of_tools(name: str, properties: dict[str, Any], required: list[str]) -> Tool:
    schema = {"type": "object", "properties": properties, "required": required}
    return _make_tool(name, None, None, f"{_ABOUT_TOOLS[name]}.", schema, frozenset(properties))


def _make_tool(
    name: str,
    operation: Operation | None,
    pattern: Pattern | None,
    about: str,
    schema: Mapping[str, Any],
    names: frozenset[str],
    shared: Mapping[str, Any] | None = None,
) -> Tool:
    reads = (
        operation is None or operation.method == "GET" or operation.path.startswith(INTEGRATIONS)
    )
    reads = reads and name != TOOL_CALL
    hidden = {"shell", *SENT.get(name, ()), *RENAMED.get(name, {}).values()}
    if pattern:
        hidden |= _SELDOM
    compact = compact_schema(schema, hidden)
    properties = compact["properties"]
    properties |= {new: {"type": "string"} for new in RENAMED.get(name, ())}
    if name in SLICED:
        properties |= _SLICE
    elif name in PAGED:
        properties["limit"] = _LIMIT
    elif name == "run_tail":
        properties |= _EVENTS_LIMIT
    if reads and operation is not None:
        properties |= REST
    if shared:
        compact = _drop_known_descriptions(compact, shared)
    seldom = _BESIDES_CORE.get(name, set())
    few = {field: one for field, one in compact["properties"].items() if field not in seldom}
    words = f"{' '.join(about.split())} {_BESIDES.get(name, '')}".strip()
    listed = _describe_tool(name, words, compact, operation, reads)
    core = _describe_tool(
        name, f"{words} {_MORE}", {**compact, "properties": few}, operation, reads
    )
    return Tool(
        name, operation, pattern, listed, core if seldom else listed, names | set(properties)
    )


def _describe_tool(
    name: str, about: str, schema: dict[str, Any], operation: Operation | None, reads: bool
) -> types.Tool:
    gives = _GIVES.get(name)
    is_elsewhere = operation is not None and operation.path.startswith(INTEGRATIONS)
    return types.Tool(
        name=name,
        description=about,
        input_schema=schema,
        output_schema={"type": "object", "properties": gives} if gives else None,
        annotations=types.ToolAnnotations(
            # Hints that hold by default, or follow from another one, are left out.
            read_only_hint=reads or None,
            destructive_hint=None if reads else name in _DESTRUCTIVE,
            open_world_hint=is_elsewhere
            or (operation is not None and operation.path.endswith("/pr")),
        ),
    )


def compact_schema(schema: Mapping[str, Any], hidden: Any) -> dict[str, Any]:
    """A schema as it is listed: short, without the fields that are hidden."""
    given = schema.get("properties", {}).items()
    properties = {field: one for field, one in given if field not in hidden}
    # A client that says where it is need not say it with every call.
    required = [field for field in schema.get("required", []) if field != DIRECTORY]
    short = {"type": "object", "properties": properties, "required": required}
    compact: dict[str, Any] = _compact_value(short, schema.get("$defs", {}))
    return {**compact, "properties": compact.get("properties", {})}


def _drop_known_descriptions(compact: dict[str, Any], shared: Mapping[str, Any]) -> dict[str, Any]:
    """A schema without what was described with the first tool: those fields, and checks."""
    for field, one in compact["properties"].items():
        if one == shared.get(field):
            del one["description"]
    check = json.dumps(shared["checks"]["items"])
    found: dict[str, Any] = json.loads(json.dumps(compact).replace(check, '{"type": "string"}'))
    return found


def _describe_arguments(binding: Binding) -> dict[str, Any]:
    """Return the schema of path, query, headers and body as that of one object."""
    schema = binding.values.model_json_schema()
    parts = {name.replace("-", "_"): one for name, one in schema.get("properties", {}).items()}
    required = [name for name in schema.get("required", ()) if name != binding.model_parameter]
    if binding.model_parameter:
        model = _resolve_schema(parts.pop(binding.model_parameter), schema["$defs"])
        parts |= model["properties"]
        required += model.get("required", ())
    return {**schema, "properties": parts, "required": required}


def _resolve_schema(schema: dict[str, Any], defs: Mapping[str, Any]) -> dict[str, Any]:
    """A schema itself, where a reference or "this or null" stands for it."""
    if "$ref" in schema:
        named: dict[str, Any] = defs[schema["$ref"].rpartition("/")[2]]
        return _resolve_schema(named, defs)
    choices = [one for one in schema.get("anyOf", ()) if one.get("type") != "null"]
    if len(choices) == 1:
        return _resolve_schema(choices[0], defs)
    return schema


def _compact_value(schema: Any, defs: Mapping[str, Any]) -> Any:
    """A schema without what an agent has no use for, in which every reference is resolved."""
    if isinstance(schema, list):
        return [_compact_value(one, defs) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("description"):
        about = {"description": schema["description"]}
    else:
        about = {}
    found = {**_resolve_schema(schema, defs), **about}
    named = {name: _compact_value(one, defs) for name, one in found.get("properties", {}).items()}
    kept = {
        name: _compact_value(value, defs)
        for name, value in found.items()
        if name not in _LEFT_OUT and value is not None and value != "" and value != []
        # A limit that nobody comes near needs no words.
        if name != "maximum" or value < _MANY
    }
    return {**kept, **({"properties": named} if named else {})}
