"""How a step becomes a call of one of the tools that the agent declared."""

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.agents.model.aider import Edit
from tests.agents.model.scripts import Step

_SHELLS = (
    "Bash",
    "bash",
    "run_shell_command",
    "exec_command",
    "shell_command",
    "shell",
    "local_shell",
    "execute",
    "terminal",
)
_WRITERS = ("Write", "write_file", "write", "create", "create_file")


@dataclass(frozen=True, slots=True)
class Tool:
    """A declared tool; a freeform one takes text instead of arguments."""

    name: str
    properties: Mapping[str, Any]
    namespace: str = ""
    freeform: bool = False

    @classmethod
    def of(cls, name: str, schema: Any, *, namespace: str = "", freeform: bool = False) -> "Tool":
        return cls(name, (schema or {}).get("properties") or {}, namespace, freeform)

    def pick(self, *names: str) -> str:
        """The first of these that is one of its parameters, else the first of all."""
        return next((name for name in names if name in self.properties), names[0])


Tools = dict[str, Tool]


@dataclass(frozen=True, slots=True)
class Call:
    tool: Tool
    input: Any


def filled(step: Step, text: str) -> Step:
    """The step with what it looks for in the conversation, such as an id that a tool answered."""
    args = json.dumps(step.get("args", {}))
    # What a tool said is quoted once or more often, as the agent hands it on.
    plain = text.replace("\\", "")
    for name, pattern in step.get("find", {}).items():
        found = re.search(pattern, plain)
        args = args.replace(f"${name}", found[1] if found else f"no {name}")
    return {**step, "args": json.loads(args)} if "find" in step else step


def plan(step: Step, tools: Tools, edit: Edit) -> tuple[str, Call | None]:
    """What the model says to a step, and the tool it calls; edit is for those without tools."""
    say = str(step.get("say", ""))
    if "text" in step:
        return str(step["text"]), None
    if "write" in step and not tools:
        return say + edit(step["write"]["path"], step["write"]["content"]), None
    call = _call(step, tools)
    if call is None:
        return f"No declared tool fits {json.dumps(dict(step))}: {sorted(tools)}", None
    return say, call


def _call(step: Step, tools: Tools) -> Call | None:
    if "write" in step:
        return _write(tools, step["write"]["path"], step["write"]["content"])
    if "bash" in step:
        return _shell(tools, step["bash"])
    tool = _find(tools, step["tool"])
    return Call(tool, step.get("args", {})) if tool else None


def _find(tools: Tools, *names: str) -> Tool | None:
    exact = (tools[name] for name in names if name in tools)
    ending = (
        tool for name in names for key, tool in tools.items() if key.lower().endswith(name.lower())
    )
    return next(exact, None) or next(ending, None)


def _shell(tools: Tools, command: str) -> Call | None:
    tool = _find(tools, *_SHELLS)
    if tool is None:
        return None
    key = tool.pick("command", "cmd", "script")
    as_list = str(tool.properties.get(key, {}).get("type")).lower() == "array"
    arguments: dict[str, Any] = {key: ["bash", "-lc", command] if as_list else command}
    wanted = {"description": "scripted command", "is_background": False}
    arguments |= {name: value for name, value in wanted.items() if name in tool.properties}
    return Call(tool, arguments)


def _write(tools: Tools, path: str, content: str) -> Call | None:
    for name in _WRITERS:
        if name in tools:
            tool = tools[name]
            where = tool.pick("path", "file_path", "filePath", "absolute_path")
            what = tool.pick("content", "contents", "file_text", "text")
            return Call(tool, {where: path, what: content})
    patcher = _find(tools, "apply_patch")
    if patcher is None:
        return _shell(tools, f"printf %s {shlex.quote(content)} > {shlex.quote(path)}")
    lines = "".join(f"+{line}\n" for line in content.splitlines())
    patch = f"*** Begin Patch\n*** Add File: {path}\n{lines}*** End Patch\n"
    if patcher.freeform:
        return Call(patcher, patch)
    return Call(patcher, {patcher.pick("input", "patch", "patchText"): patch})
