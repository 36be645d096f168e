"""Stands in for claude: looks at the application with the MCP server that it is given, and
implements, mends and verifies a feature of it."""

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client


async def look(prompt: str, config: dict[str, Any]) -> str:
    [(_, server)] = config["mcpServers"].items()
    url = re.search(r"application at (\S+)\. It runs", prompt)
    place = re.search(r"you verify in (\S+)\.\n", prompt)
    assert url, prompt
    assert place, prompt
    parameters = StdioServerParameters(
        command=server["command"], args=server["args"], env=server["env"]
    )
    async with (
        stdio_client(parameters) as streams,
        ClientSession(*streams) as session,
    ):
        await session.initialize()
        opened = await session.call_tool("new_page", {"url": url[1]})
        page = re.search(rf"(\d+): {re.escape(url[1])}", str(opened.content))
        assert page, opened
        which = {"pageId": int(page[1])}
        read = {"function": "() => document.querySelector('h1').innerText", **which}
        seen = await session.call_tool("evaluate_script", read)
        name = {"filePath": f"{place[1]}/the page.png", **which}
        shot = await session.call_tool("take_screenshot", name)
        assert not shot.is_error, shot
        return str(getattr(seen.content[0], "text", ""))


def say(**event: Any) -> None:
    print(json.dumps({"session_id": "browser", **event}), flush=True)


say(type="system", subtype="init", model="stub")
prompt, told = sys.stdin.read(), "It greets now."
if "Mend it" in prompt:
    # What was seen in the browser is what it is told.
    assert "Goodbye" in prompt, prompt
    Path("index.html").write_text("<!doctype html><h1>Hello there</h1>\n", encoding="utf-8")
elif "Implement this" in prompt:
    Path("index.html").write_text("<!doctype html><h1>Goodbye</h1>\n", encoding="utf-8")
else:
    with open(sys.argv[sys.argv.index("--mcp-config") + 1], encoding="utf-8") as file:
        told = asyncio.run(look(prompt, json.load(file)))
    if "Verify this" in prompt:
        step = {"step": 1, "passed": "Hello there" in told, "evidence": f"it shows {told}"}
        told = json.dumps({"steps": [step]})
say(type="result", subtype="success", is_error=False, result=told, num_turns=1)
