"""The MCP tools: each is an operation or a pattern, with a short schema.

A new tool is an operation with a `tool` in `api/routes/table.py`; this module only describes it.

An agent pays for every listed tool in every session. So only a core set is listed, and `tool_list`
and `tool_call` lead to the others. That works in every client; many clients read the list of tools
only once.
"""

import inspect
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import mcp_types as types

from kapelle.api.operation import Operation
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
# The default and the maximum number of items of a list, so that every answer fits.
ITEMS = 20
MOST_ITEMS = 50
# Lists that their use case divides into pages, and lists that MCP divides, by their field.
PAGED = frozenset({
    "task_list", "run_list", "schedule_list", "learning_search", "note_list", "search",
})  # fmt: skip
SLICED = {
    "agent_list": "items", "lock_list": "items", "pattern_list": "items", "run_steps": "items",
    "template_list": "items", "question_list": "questions", "usage_get": "rows",
}  # fmt: skip
# Schemas of arguments that a tool has and its operation does not.
_LIMIT = {"type": "integer", "minimum": 1, "maximum": MOST_ITEMS}
_EVENTS_LIMIT = {"limit": {"type": "integer", "minimum": 1, "maximum": 1000}}
_SLICE = {"limit": _LIMIT, "cursor": {"type": "string"}}
REST = {
    "field": {"type": "string", "description": "from `cut`"},
    "offset": {"type": "integer", "minimum": 0},
}
# Arguments with another name than in REST, with their name in REST.
RENAMED_ARGUMENTS = {
    "task_list": {DIRECTORY: "repository"},
    "run_list": {DIRECTORY: "repository"},
}
# Arguments that an operation always gets, whatever the call has.
CONSTANT_ARGUMENTS: dict[str, dict[str, Any]] = {
    "task_logs": {"follow": "false"},
    "run_tail": {"follow": "false"},
    "learning_search": {"status": "kept"},
    "task_list": {"light": "true"},
    "run_list": {"light": "true"},
}
# Tools that by default use the directory in which the client works.
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
# The core set of an attempt: child tasks, questions, notes, learnings, and its own result.
_CORE_OF_ATTEMPTS = (
    "task_create", "task_get", "task_list", "task_logs", "task_diff", "task_merge", "task_cancel",
    "wait", "run_start", "run_get", "run_merge", "pattern_get", "question_ask", "question_wait",
    "question_answer", "note_set", "note_get", "note_list", "note_watch", "learning_search",
    "learning_report", "task_report", "task_finish", TOOL_LIST, TOOL_CALL,
)  # fmt: skip

# Keywords of a schema that cost tokens and do not help an agent. The limit of a length is in the
# error of a call that exceeds it.
_OMITTED_KEYWORDS = {
    "title", "x-cli", "default", "format", "pattern", "properties", "$defs", "additionalProperties",
    "minLength", "maxLength", "maxItems", "maxProperties", "propertyNames", "exclusiveMinimum",
}  # fmt: skip
# A larger maximum is omitted, too: no agent comes near it.
_LARGE_MAXIMUM = 10_000
# Common fields of patterns that the tools list; pattern_get has the others.
_FREQUENT_FIELDS = {
    "directory", "title", "agent", "model", "base", "budget_usd", "project", "deliver",
}  # fmt: skip
_RARE_FIELDS = PatternSpec.model_fields.keys() - _FREQUENT_FIELDS
# Fields that the core set does not list; tool_list with the name of the tool does.
_FIELDS_OUTSIDE_CORE = {
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
_MORE_ARGUMENTS = "More arguments: tool_list with name."
# Output schemas: only the fields that a client needs for its next call. All would cost too much.
_WORK = {"id": {"type": "string"}, "status": {"type": "string"}}
_EVENTS = {"events": {"type": "array"}, "cursor": {"type": "string"}}
_ANSWER_FIELDS = {
    **dict.fromkeys(("task_create", "task_get", "run_start", "run_get"), _WORK),
    **dict.fromkeys(("task_logs", "run_tail"), _EVENTS),
    "wait": {"resting": {"type": "array"}, "pending": {"type": "array"}},
}
# Sentences that a tool adds to the description of its use case.
_ADDITIONS = {
    "task_create": "Give checks that verify the work.",
    "task_logs": "Continue with last_event_id = cursor.",
    "run_start": "For patterns without a tool of their own; pattern_get has the schema of spec.",
    "run_tail": "Continue with after = cursor.",
    "question_ask": "While the status is open, call question_wait.",
}
# Descriptions in place of those of the use case, because the tool answers in another way.
_REPLACEMENTS = {
    "pattern_list": "List the patterns with a line about each; pattern_get returns the schema.",
    "task_logs": "Read the transcript of a task: what its agents said and did.",
    "run_tail": "Read the events after a number; those of a run include the events of its tasks.",
}
_DESTRUCTIVE = {
    "task_cancel", "task_retry", "run_cancel", "schedule_cancel", "note_delete", TOOL_CALL,
}  # fmt: skip
_ABOUT_TOOLS = {
    TOOL_LIST: "List more tools with a line about each; with name, return the schema of one",
    TOOL_CALL: "Call a tool of tool_list by its name",
}
_NAME = {"type": "string"}


@dataclass(frozen=True)
class Tool:
    """A tool with its operation; `tool_list` and `tool_call` have none."""

    name: str
    operation: Operation | None
    pattern: Pattern | None
    full: types.Tool  # with every field
    core: types.Tool  # with the fields of the core set
    arguments: frozenset[str]  # the names of all arguments

    @property
    def is_read_only(self) -> bool:
        return bool(self.full.annotations and self.full.annotations.read_only_hint)

    @property
    def is_for_attempts(self) -> bool:
        return self.operation is None or self.operation.access is not owner_only

    def require_known(self, arguments: Mapping[str, Any]) -> None:
        """Raise InvalidInput for the first argument that the tool does not have."""
        for name in arguments:
            if name not in self.arguments:
                suggestion = suggest_name(name, self.arguments)
                names = ", ".join(sorted(self.arguments)) or "none"
                raise InvalidInput(
                    f"{self.name} has no argument {name!r}.",
                    hint=suggestion or f"Its arguments: {names}.",
                )


class Tools:
    """All tools by their names, and the lists of them."""

    def __init__(self, app: Router) -> None:
        self._app = app
        operations = {
            operation.tool: operation for operation in app.list_operations() if operation.tool
        }
        self.by_name: dict[str, Tool] = {}
        for name, operation in operations.items():
            binding = operation.bind(app.services)
            self.by_name[name] = _make_operation_tool(operation, binding, app.services)
        # Fields that all specifications have are described only with the first tool.
        task_binding = operations["task_create"].bind(app.services)
        task_fields = compact_schema(_describe_arguments(task_binding), ())["properties"]
        start = operations["run_start"]
        for pattern in load_built_in():
            tool = _make_pattern_tool(start, start.bind(app.services), pattern, task_fields)
            self.by_name[tool.name] = tool
        self.by_name[TOOL_LIST] = _make_tool_of_tools(TOOL_LIST, {"name": _NAME}, [])
        call_arguments = {"name": _NAME, "arguments": {"type": "object"}}
        self.by_name[TOOL_CALL] = _make_tool_of_tools(TOOL_CALL, call_arguments, ["name"])

    def get(self, name: str, *, owner: bool) -> Tool:
        """Return the tool of a name; raises InvalidInput."""
        tool = self.by_name.get(name)
        if tool is not None:
            return tool
        names = [tool.name for tool in self.list_usable(owner=owner)]
        hint = suggest_name(name, names) or f"Call {TOOL_LIST} for the names of the tools."
        raise InvalidInput(f"There is no tool {name}.", hint=hint)

    def list_usable(self, *, owner: bool) -> list[Tool]:
        """Return the tools that a caller may use; those of an integration only if configured."""
        integrations = self._app.services.integrations.list_configured()
        configured_paths = {INTEGRATIONS + name for name in integrations}
        tools = []
        for tool in self.by_name.values():
            if not owner and not tool.is_for_attempts:
                continue
            if _is_integration(tool) and _path_of(tool) not in configured_paths:
                continue
            tools.append(tool)
        return tools

    def list_tools(self, *, owner: bool, every: bool) -> list[types.Tool]:
        """Return the answer to tools/list: the core set and configured integrations, or all."""
        usable_tools = self.list_usable(owner=owner)
        if every:
            return [tool.full for tool in usable_tools if tool.operation is not None]
        core = _CORE if owner else _CORE_OF_ATTEMPTS
        return [tool.core for tool in usable_tools if tool.name in core or _is_integration(tool)]

    def list_others(self, *, owner: bool) -> list[Tool]:
        """Return the usable tools outside the core set."""
        core_names = {tool.name for tool in self.list_tools(owner=owner, every=False)}
        return [tool for tool in self.list_usable(owner=owner) if tool.name not in core_names]


def _path_of(tool: Tool) -> str:
    return tool.operation.path if tool.operation else ""


def _is_integration(tool: Tool) -> bool:
    """Return whether a tool queries another system."""
    return _path_of(tool).startswith(INTEGRATIONS)


def _make_operation_tool(operation: Operation, binding: Binding, services: Service) -> Tool:
    name = operation.tool
    schema = _describe_arguments(binding)
    arguments = frozenset(schema["properties"]) | RENAMED_ARGUMENTS.get(name, {}).keys()
    about = _REPLACEMENTS.get(name) or inspect.getdoc(operation.use_case(services)) or ""
    return _make_tool(name, operation, None, about, schema, arguments)


def _make_pattern_tool(
    operation: Operation, binding: Binding, pattern: Pattern, task_fields: Mapping[str, Any]
) -> Tool:
    """Return the tool that starts a run of a pattern.

    Its arguments are the fields of the pattern's specification. Fields that tasks have as well have
    no description here.
    """
    name = f"{pattern.name.replace('-', '_')}_start"
    schema = pattern.spec_schema
    arguments = frozenset(schema["properties"]) | header_arguments(binding)
    return _make_tool(name, operation, pattern, pattern.summary, schema, arguments, task_fields)


def header_arguments(binding: Binding) -> set[str]:
    """Return the arguments of a tool that are headers of a request."""
    return {source.name.replace("-", "_") for source in binding.sources.values()}


def _make_tool_of_tools(name: str, properties: dict[str, Any], required_names: list[str]) -> Tool:
    schema = {"type": "object", "properties": properties, "required": required_names}
    return _make_tool(name, None, None, f"{_ABOUT_TOOLS[name]}.", schema, frozenset(properties))


def _make_tool(
    name: str,
    operation: Operation | None,
    pattern: Pattern | None,
    about: str,
    schema: Mapping[str, Any],
    arguments: frozenset[str],
    task_fields: Mapping[str, Any] | None = None,
) -> Tool:
    """Return a tool with its two descriptions: with all fields, and with those of the core set."""
    is_read_only = _is_read_only(name, operation)
    new_names = RENAMED_ARGUMENTS.get(name, {})
    hidden_names = {"shell", *CONSTANT_ARGUMENTS.get(name, ()), *new_names.values()}
    if pattern:
        hidden_names |= _RARE_FIELDS
    compact = compact_schema(schema, hidden_names)
    properties = compact["properties"]
    properties |= {new_name: {"type": "string"} for new_name in new_names}
    properties |= _part_arguments(name)
    if is_read_only and operation is not None:
        properties |= REST
    if task_fields:
        compact = _drop_task_descriptions(compact, task_fields)
    text = f"{' '.join(about.split())} {_ADDITIONS.get(name, '')}".strip()
    full = _describe_tool(name, text, compact, operation, is_read_only)
    core = full
    omitted_names = _FIELDS_OUTSIDE_CORE.get(name)
    if omitted_names:
        few = {n: one for n, one in compact["properties"].items() if n not in omitted_names}
        core_schema = {**compact, "properties": few}
        core_text = f"{text} {_MORE_ARGUMENTS}"
        core = _describe_tool(name, core_text, core_schema, operation, is_read_only)
    return Tool(name, operation, pattern, full, core, arguments | set(properties))


def _is_read_only(name: str, operation: Operation | None) -> bool:
    if name == TOOL_CALL:
        return False
    return operation is None or operation.method == "GET" or operation.path.startswith(INTEGRATIONS)


def _part_arguments(name: str) -> dict[str, Any]:
    """Return the arguments of a tool that select a part of its answer."""
    if name in SLICED:
        return _SLICE
    if name in PAGED:
        return {"limit": _LIMIT}
    if name == "run_tail":
        return _EVENTS_LIMIT
    return {}


def _describe_tool(
    name: str, about: str, schema: dict[str, Any], operation: Operation | None, is_read_only: bool
) -> types.Tool:
    output_schema = None
    if name in _ANSWER_FIELDS:
        output_schema = {"type": "object", "properties": _ANSWER_FIELDS[name]}
    # An integration, or the forge of a pull request.
    calls_others = operation is not None and (
        operation.path.startswith(INTEGRATIONS) or operation.path.endswith("/pr")
    )
    return types.Tool(
        name=name,
        description=about,
        input_schema=schema,
        output_schema=output_schema,
        annotations=types.ToolAnnotations(
            # Hints that are the default, or follow from another hint, are left out.
            read_only_hint=is_read_only or None,
            destructive_hint=None if is_read_only else name in _DESTRUCTIVE,
            open_world_hint=calls_others,
        ),
    )


def compact_schema(schema: Mapping[str, Any], hidden_names: Collection[str]) -> dict[str, Any]:
    """Return a short schema without the hidden fields."""
    properties = {}
    for name, field_schema in schema.get("properties", {}).items():
        if name not in hidden_names:
            properties[name] = field_schema
    # A client may give its directory with a header instead of each call.
    required_names = [name for name in schema.get("required", []) if name != DIRECTORY]
    short = {"type": "object", "properties": properties, "required": required_names}
    compact: dict[str, Any] = _compact_value(short, schema.get("$defs", {}))
    return {**compact, "properties": compact.get("properties", {})}


def _drop_task_descriptions(
    compact: dict[str, Any], task_fields: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a schema without what `task_create` describes: its fields, and the form of checks."""
    for name, field_schema in compact["properties"].items():
        if field_schema == task_fields.get(name):
            del field_schema["description"]
    # A check has a dozen fields and is part of several fields, at any depth. So its schema is
    # replaced in the text of the whole: here a check is just a command.
    check = json.dumps(task_fields["checks"]["items"])
    text = json.dumps(compact).replace(check, '{"type": "string"}')
    short: dict[str, Any] = json.loads(text)
    return short


def _describe_arguments(binding: Binding) -> dict[str, Any]:
    """Return one schema for path, query, headers and body."""
    schema = binding.values.model_json_schema()
    properties = {}
    for name, field_schema in schema.get("properties", {}).items():
        properties[name.replace("-", "_")] = field_schema
    required_names = [
        name for name in schema.get("required", ()) if name != binding.model_parameter
    ]
    if binding.model_parameter:
        model = _resolve_schema(properties.pop(binding.model_parameter), schema["$defs"])
        properties |= model["properties"]
        if binding.model_parameter in required_names:
            required_names.remove(binding.model_parameter)
        required_names += model.get("required", ())
    return {**schema, "properties": properties, "required": required_names}


def _resolve_schema(schema: dict[str, Any], defs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema behind a reference, or behind "this or null"."""
    if "$ref" in schema:
        target: dict[str, Any] = defs[schema["$ref"].rpartition("/")[2]]
        return _resolve_schema(target, defs)
    choices = [choice for choice in schema.get("anyOf", ()) if choice.get("type") != "null"]
    if len(choices) == 1:
        return _resolve_schema(choices[0], defs)
    return schema


def _compact_value(schema: Any, defs: Mapping[str, Any]) -> Any:
    """Return a schema, or any part of one, short and without references."""
    if isinstance(schema, list):
        return [_compact_value(part, defs) for part in schema]
    if not isinstance(schema, dict):
        return schema
    full = dict(_resolve_schema(schema, defs))
    if schema.get("description"):
        # The description beside a reference is about this field, that behind it about the type.
        full["description"] = schema["description"]
    compact: dict[str, Any] = {}
    for keyword, value in full.items():
        if keyword in _OMITTED_KEYWORDS or value is None or value in ("", []):
            continue
        if keyword == "maximum" and value >= _LARGE_MAXIMUM:
            continue
        compact[keyword] = _compact_value(value, defs)
    properties = {
        name: _compact_value(field_schema, defs)
        for name, field_schema in full.get("properties", {}).items()
    }
    if properties:
        compact["properties"] = properties
    return compact
