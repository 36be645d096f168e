"""Stand-ins for agents' programs: they tell a version and print what the real ones print.

What the real programs do is tested elsewhere; here it is enough that something is installed.
"""

from pathlib import Path

SESSION = '{"type":"thread.started","thread_id":"01a1decd-13c8-70b0-b2b9-4352655c3c35"}'
ANSWER = f"""\
{SESSION}
{{"type":"turn.started"}}
{{"type":"item.completed","item":{{"id":"item_0","type":"agent_message","text":"ok"}}}}
{{"type":"turn.completed","usage":{{"input_tokens":35,"cached_input_tokens":0,"output_tokens":1}}}}
"""
REFUSED = "unexpected status 401 Unauthorized: Incorrect API key provided: $CODEX_API_KEY"
LIMITED = "exceeded retry limit, last status: 429 Too Many Requests"


def install(
    directory: Path, name: str, version: str = "1.2.3", output: str = ANSWER, code: int = 0
) -> Path:
    """A program of this name; each call beside --version is noted in NAME.calls next to it."""
    directory.mkdir(exist_ok=True)
    program = directory / name
    program.write_text(
        "#!/bin/sh\n"
        f'if [ "$1" = --version ]; then echo "{name}-cli {version}"; exit 0; fi\n'
        f'echo "$@" >> "{program}.calls"\ncat > /dev/null\n'
        f"cat <<END\n{output}\nEND\nexit {code}\n",
        encoding="utf-8",
    )
    program.chmod(0o755)
    return program


def environment(directory: Path) -> dict[str, str]:
    """Variables of an instance that finds only these agents, and keeps keys in its home."""
    return {
        "PATH": f"{directory}:/usr/bin:/bin",
        "PYTHON_KEYRING_BACKEND": "keyring.backends.null.Keyring",
    }


def failing(message: str) -> str:
    """The output of a codex that ends with an error."""
    return (
        f'{SESSION}\n{{"type":"error","message":"{message}"}}\n'
        f'{{"type":"turn.failed","error":{{"message":"{message}"}}}}\n'
    )


def calls(program: Path) -> int:
    """How often the program was asked for work."""
    noted = program.with_name(f"{program.name}.calls")
    return len(noted.read_text(encoding="utf-8").splitlines()) if noted.exists() else 0
