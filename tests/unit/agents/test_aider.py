"""aider: how it is called, and what the bridge makes of its text and its logs."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kapelle.agents.adapters.aider import AiderAgent
from kapelle.agents.base import AgentCommand, AgentRequest
from kapelle.agents.bridges.aider import AiderReader
from kapelle.agents.failures import classify
from kapelle.agents.summary import summarise
from kapelle.domain.failures import FailureClass
from kapelle.domain.task import Exit
from kapelle.settings import AgentSettings

OK = Exit(kind="exited", code=0)
RUN = Path("/run/a1")

BANNER = [
    "",
    "HTTPSConnectionPool(host='raw.githubusercontent.com', port=443): Max retries exceeded with"
    " url: /BerriAI/litellm/main/model_prices_and_context_window.json",
    "Aider v0.86.2",
    "Model: openai/m1 with diff edit format",
    "Git repo: .git with 1 files",
    "Repo-map: using 1024 tokens, auto refresh",
    "",
]
STARTING: tuple[str, dict[str, Any]] = ("message_send_starting", {})
EXIT = ("exit", {"reason": "Completed --message-file"})


def sent(prompt: int = 100, completion: int = 20, cost: float = 0) -> tuple[str, dict[str, Any]]:
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "cost": cost}
    return "message_send", {"main_model": "openai/REDACTED", **counts, "total_cost": 9.0}


class Playing:
    """aider as the bridge meets it: lines on stdout, and two logs that grow beside them."""

    def __init__(self, folder: Path) -> None:
        self._events, self._answers = folder / "events", folder / "answers"
        self.told: list[dict[str, Any]] = []
        self.report = AiderReader(self._tell, self._events, self._answers)
        self.agent = AiderAgent("aider", AgentSettings())

    def _tell(self, kind: str, text: str = "", name: str = "", data: object = None) -> None:
        self.told.append({"kind": kind, "text": text, "name": name, "data": data or {}})

    def prints(self, *lines: str) -> None:
        for line in lines:
            self.report.read(line)

    def logs(self, *events: tuple[str, Mapping[str, Any]]) -> None:
        with self._events.open("a", encoding="utf-8") as file:
            for event, properties in events:
                entry = {"event": event, "properties": properties, "user_id": "u", "time": 1}
                file.write(json.dumps(entry) + "\n")

    def asks(self) -> None:
        with self._answers.open("a", encoding="utf-8") as file:
            file.write("TO LLM 2026-11-15T10:47:33\n-------\nSYSTEM Act\n-------\nASSISTANT Ok.\n")

    def hears(self, answer: str) -> None:
        lines = "\n".join(f"ASSISTANT {line}" for line in answer.splitlines())
        with self._answers.open("a", encoding="utf-8") as file:
            file.write(f"LLM RESPONSE 2026-11-15T10:47:34\n{lines}\n")

    def turn(
        self, answer: str, tokens: str = "Tokens: 100 sent, 20 received.", **used: Any
    ) -> None:
        self.logs(STARTING)
        self.asks()
        self.prints(*answer.splitlines(), "")
        self.hears(answer)
        self.prints(tokens)
        self.logs(sent(**used))

    def ends(self, code: int = 0) -> None:
        self.logs(EXIT)
        self.report.end(code)

    def kinds(self) -> list[str]:
        return [event["kind"] for event in self.told]

    def failure(self) -> FailureClass:
        summary = summarise(self.agent, map(json.dumps, self.told))
        assert not self.agent.judge(summary, OK, "").success
        return classify(summary, OK, "").kind


@pytest.fixture
def aider(tmp_path: Path) -> Playing:
    return Playing(tmp_path)


class TestTheReport:
    def test_a_message_that_was_answered_is_a_success(self, aider: Playing) -> None:
        aider.prints(*BANNER)
        aider.turn(
            "I will.\n\nnew.txt", "Tokens: 12k sent, 678 received.", prompt=12345, completion=678
        )
        aider.prints("Applied edit to new.txt")
        aider.ends()
        assert aider.kinds() == ["model", "text", "usage", "tool_call", "result"]
        summary = summarise(aider.agent, map(json.dumps, aider.told))
        verdict = aider.agent.judge(summary, OK, "")
        assert (verdict.success, verdict.result) == (True, "I will.\n\nnew.txt")
        assert summary.model == "openai/m1"
        assert summary.usage is not None
        assert (summary.usage.input_tokens, summary.usage.output_tokens) == (12345, 678)
        assert (summary.usage.turns, summary.usage.cost_usd) == (1, None)

    @pytest.mark.parametrize(
        ("line", "cached"),
        [
            ("Tokens: 8.2k sent, 1.2k cache write, 3.4k cache hit, 90 received.", 3400),
            (
                "Tokens: 8.2k sent, 850 cache hit, 90 received. Cost: $0.01 message, $1 session.",
                850,
            ),
            ("Tokens: 8.2k sent, 1M cache write, 90 received.", 0),
        ],
    )
    def test_cached_tokens_are_in_the_line_only(
        self, aider: Playing, line: str, cached: int
    ) -> None:
        aider.prints(*BANNER)
        aider.turn("Yes.", line, cost=0.0035)
        aider.ends()
        used = next(event["data"] for event in aider.told if event["kind"] == "usage")
        assert (used["cached_tokens"], used["cost_usd"]) == (cached, 0.0035)

    def test_usage_is_told_while_it_works(self, aider: Playing) -> None:
        aider.prints(*BANNER)
        aider.turn("Please add app.py.")
        aider.prints("", "app.py")
        assert aider.kinds() == ["model", "text", "usage"]

    def test_retries_are_notices(self, aider: Playing) -> None:
        aider.prints(*BANNER)
        aider.logs(STARTING)
        for _ in range(2):
            aider.asks()
            aider.hears("")
            aider.prints(
                "litellm.RateLimitError: RateLimitError: OpenAIException - scripted 429",
                "The API provider has rate limited you. Try again later or check your quotas.",
                "Retrying in 0.2 seconds...",
            )
        assert aider.kinds() == ["model", "notice", "notice"]
        assert aider.told[1]["data"] == {"type": "rate_limit_error"}
        aider.turn("At last.")
        aider.ends()
        assert aider.kinds()[3:] == ["text", "usage", "result"]

    @pytest.mark.parametrize(
        ("said", "kind"),
        [
            ("litellm.AuthenticationError: AuthenticationError: OpenAIException - Bad API key",
             FailureClass.AUTHENTICATION),
            ("litellm.RateLimitError: RateLimitError: OpenAIException - scripted 429",
             FailureClass.RATE_LIMIT),
            ("litellm.RateLimitError: OpenAIException - You exceeded your current quota, please",
             FailureClass.BILLING),
            ("litellm.InternalServerError: InternalServerError: OpenAIException - scripted 500",
             FailureClass.OVERLOADED),
            ("litellm.APIError: APIError: OpenAIException - scripted 529", FailureClass.OVERLOADED),
            ("litellm.NotFoundError: NotFoundError: OpenAIException - scripted 404",
             FailureClass.CAPABILITY),
            ("litellm.BadRequestError: LLM Provider NOT provided. Pass in the LLM provider you are"
             " trying to call. You passed model=m1", FailureClass.CAPABILITY),
            ("litellm.Timeout: APITimeoutError - Request timed out.", FailureClass.OVERLOADED),
            ("litellm.APIConnectionError: pip install boto3", FailureClass.ENVIRONMENT),
        ],
    )  # fmt: skip
    def test_the_providers_errors_are_told_apart(
        self, aider: Playing, said: str, kind: FailureClass
    ) -> None:
        aider.prints(*BANNER)
        aider.turn("Please add app.py.")
        aider.logs(STARTING)
        aider.asks()
        aider.prints(said, "Check it.", "", "https://example.com/keys", "")
        aider.hears("")
        aider.ends()
        assert aider.told[-1]["text"] == f"{said}\nCheck it."
        assert aider.failure() is kind

    def test_a_full_context_is_no_answer_and_costs_nothing(self, aider: Playing) -> None:
        aider.prints(*BANNER)
        aider.turn("", "Tokens: 2.0k sent, 0 received.", prompt=2019, completion=0)
        aider.prints(
            "", "", "Model openai/m1 has hit a token limit!", "", "Input tokens: ~1,463 of 0"
        )
        aider.ends()
        assert aider.kinds() == ["model", "error"]
        assert aider.failure() is FailureClass.CONTEXT_OVERFLOW

    def test_giving_up_its_corrections_is_a_failure(self, aider: Playing) -> None:
        aider.prints(*BANNER)
        for _ in range(4):
            aider.turn("app.py\n<<<<<<< SEARCH")
            aider.prints(
                "The LLM did not conform to the edit format.", "# 1 block failed to match!"
            )
        aider.prints("Only 3 reflections allowed, stopping.")
        aider.ends()
        assert aider.kinds().count("usage") == 4
        assert aider.failure() is FailureClass.TASK
        assert "did not conform" in aider.told[-1]["text"]

    def test_a_correction_that_worked_is_a_success(self, aider: Playing) -> None:
        aider.prints(*BANNER)
        aider.turn("app.py\n<<<<<<< SEARCH")
        aider.prints("The LLM did not conform to the edit format.", "# 1 block failed to match!")
        aider.turn("Better.")
        aider.prints("Applied edit to app.py")
        aider.ends()
        assert aider.told[-1] == {"kind": "result", "text": "Better.", "name": "", "data": {}}

    def test_what_the_model_says_does_not_pass_for_aiders_own_words(self, aider: Playing) -> None:
        aider.prints(*BANNER)
        aider.turn(
            "Tokens: 999k sent, 5 received.\nlitellm.AuthenticationError: no\n"
            "Only 3 reflections allowed, stopping.\nModel x has hit a token limit!\n"
            "OpenRouter provides free and paid access to many LLMs.\nTO LLM 2026-11-15T10:47:33"
        )
        aider.ends()
        assert aider.kinds() == ["model", "text", "usage", "result"]
        assert aider.told[2]["data"]["input_tokens"] == 100

    @pytest.mark.parametrize("answer", ["", "  \n"])
    def test_an_empty_answer_is_no_success(self, aider: Playing, answer: str) -> None:
        aider.prints(*BANNER)
        aider.turn(answer)
        aider.ends()
        assert aider.kinds()[-1] == "error"

    def test_an_interrupted_message_is_no_success(self, aider: Playing) -> None:
        aider.prints(*BANNER)
        aider.logs(STARTING)
        aider.prints("", "", "^C again to exit")
        aider.ends()
        assert (aider.told[-1]["kind"], aider.told[-1]["text"]) == ("error", "^C again to exit")

    def test_an_end_without_a_word_tells_nothing(self, aider: Playing) -> None:
        aider.report.end(2)
        aider.report.end(-15)
        assert aider.told == []

    def test_an_end_before_its_own_is_no_success(self, aider: Playing) -> None:
        aider.prints(*BANNER)
        aider.turn("Yes.")
        aider.report.end(0)
        assert "result" not in aider.kinds()

    def test_an_invitation_to_log_in_ends_it(self, aider: Playing) -> None:
        aider.prints("OpenRouter provides free and paid access to many LLMs.")
        assert aider.report.wants_login
        aider.report.end(-15)
        assert aider.failure() is FailureClass.AUTHENTICATION


def build(
    prompt: str = "Do it", settings: Mapping[str, Any] | None = None, **more: Any
) -> AgentCommand:
    configured = AgentSettings.model_validate({"program": sys.executable, **(settings or {})})
    request = AgentRequest(prompt, Path("/work"), RUN / "prompt", configured, **more)
    return AiderAgent("aider", configured).command(request)


def after(option: str, command: AgentCommand) -> str:
    return command.argv[command.argv.index(option) + 1]


class TestTheCommand:
    def test_the_prompt_is_in_a_file(self) -> None:
        command = build("--help")
        assert after("--message-file", command) == "/run/a1/prompt"
        assert (command.stdin, command.files) == (None, {})

    @pytest.mark.parametrize("prompt", ["/run rm -rf .", "!ls"])
    def test_a_prompt_is_never_a_command_of_its_own(self, prompt: str) -> None:
        command = build(prompt)
        assert after("--message-file", command) == "/run/a1/aider.message"
        assert command.files["aider.message"] == f"\n{prompt}"

    def test_a_session_is_a_chat_history_in_the_process_directory(self) -> None:
        fresh = build()
        assert after("--session", fresh) == "/run/a1/aider.chat.md"
        assert "--from" not in fresh.argv
        resumed = build(session_id="/run/a0/aider.chat.md")
        assert after("--session", resumed) == after("--from", resumed) == "/run/a0/aider.chat.md"
        forked = build(session_id="/run/a0/aider.chat.md", fork=True)
        assert after("--session", forked) == "/run/a1/aider.chat.md"
        assert after("--from", forked) == "/run/a0/aider.chat.md"

    def test_a_system_prompt_is_a_file_to_read(self) -> None:
        command = build(system_prompt="Be brief.")
        assert after("--read", command) == "/run/a1/conventions.md"
        assert command.files == {"conventions.md": "Be brief.\n"}

    @pytest.mark.parametrize(
        ("model", "base_url", "given", "provider"),
        [
            ("m1", "http://localhost:1/v1", "openai/m1", "OPENAI"),
            ("openai/m1", "http://localhost:1/v1", "openai/m1", "OPENAI"),
            ("anthropic/claude-x", "http://localhost:1", "anthropic/claude-x", "ANTHROPIC"),
            ("sonnet", None, "sonnet", "ANTHROPIC"),
            ("gpt-5", None, "gpt-5", "OPENAI"),
            ("openrouter/a/b", None, "openrouter/a/b", "OPENROUTER"),
        ],
    )
    def test_key_and_address_go_to_the_models_provider(
        self, model: str, base_url: str | None, given: str, provider: str
    ) -> None:
        settings = {"model": model, "base_url": base_url, "env": {"A": "1"}}
        command = build(settings=settings, credential="secret")
        assert after("--model", command) == given
        assert command.env[f"{provider}_API_KEY"] == "secret"
        assert command.env.get(f"{provider}_API_BASE") == base_url
        assert command.env["A"] == "1"
        assert "secret" not in " ".join(command.argv)

    def test_the_users_arguments_come_last(self) -> None:
        command = build(settings={"extra_args": ["--map-tokens", "0"]}, model="m")
        assert command.argv[-2:] == ["--map-tokens", "0"]


# Stands in for aider: notes how it was called, answers, and does what its prompt says at the end.
STAND_IN = """#!{python} -IS
import json, os, signal, sys
options = dict(zip(sys.argv[1:], sys.argv[2:]))
open("called.json", "w").write(json.dumps([sys.argv[1:], dict(os.environ)]))
os.makedirs(".aider.tags.cache.v4", exist_ok=True)
open(options["--chat-history-file"], "a").write("#### asked\\n")
print("Aider v0.86.2\\nModel: openai/m1 with diff edit format\\nRepo-map: disabled", flush=True)
def log(event, **properties):
    with open(options["--analytics-log"], "a") as file:
        file.write(json.dumps({{"event": event, "properties": properties}}) + "\\n")
log("message_send_starting")
prompt = open(options["--message-file"]).read()
if prompt == "die":
    os.kill(os.getpid(), signal.SIGTERM)
if prompt == "wait":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
    open("ready", "w")
    signal.pause()
if prompt == "leave":
    left = os.fork()
    if not left:
        signal.pause()
    open("left", "w").write(str(left))
with open(options["--llm-history-file"], "a") as file:
    file.write("LLM RESPONSE 2026-11-15T10:47:34\\nASSISTANT Yes ü.\\n")
print("Yes.\\n\\nTokens: 100 sent, 20 received.", flush=True)
log("message_send", prompt_tokens=100, completion_tokens=20, cost=0)
log("exit", reason="Completed --message-file")
"""


class TestTheBridge:
    @pytest.fixture
    def program(self, tmp_path: Path) -> Path:
        path = tmp_path / "aider"
        path.write_text(STAND_IN.format(python=sys.executable), encoding="utf-8")
        path.chmod(0o755)
        (tmp_path / "work").mkdir()
        return path

    def run(self, program: Path, prompt: str = "Do it", **more: Any) -> tuple[int, list[Any]]:
        workspace, file = program.parent / "work", program.parent / f"run{prompt}" / "prompt"
        file.parent.mkdir(exist_ok=True)
        file.write_text(prompt, encoding="utf-8")
        settings = AgentSettings(program=str(program))
        request = AgentRequest(prompt, workspace, file, settings, **more)
        command = AiderAgent("aider", settings).command(request)
        env = {"PATH": os.environ["PATH"], "GIT_CONFIG_COUNT": "1", **command.env}
        done = subprocess.run(
            command.argv, cwd=workspace, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        )
        return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]

    def called(self, program: Path) -> tuple[list[str], dict[str, str]]:
        written = (program.parent / "work" / "called.json").read_text(encoding="utf-8")
        arguments, env = json.loads(written)
        return arguments, env

    def test_it_prints_events_and_keeps_the_workspace_clean(self, program: Path) -> None:
        (program.parent / "work" / ".git").mkdir()
        code, events = self.run(program)
        session = str(program.parent / "runDo it" / "aider.chat.md")
        kinds = [event["kind"] for event in events]
        assert (code, kinds) == (0, ["session", "model", "text", "usage", "result"])
        assert (events[0]["text"], events[-1]["text"]) == (session, "Yes ü.")
        arguments, env = self.called(program)
        assert "--no-git" not in arguments
        assert "--restore-chat-history" not in arguments
        assert (env["GIT_CONFIG_COUNT"], env["GIT_CONFIG_KEY_1"]) == ("3", "user.name")
        ignored = program.parent / "work" / ".aider.tags.cache.v4" / ".gitignore"
        assert ignored.read_text(encoding="utf-8") == "*\n"

    def test_outside_a_repository_it_makes_none(self, program: Path) -> None:
        self.run(program)
        assert "--no-git" in self.called(program)[0]

    def test_a_resumed_session_goes_on_in_its_file_and_a_fork_in_a_copy(
        self, program: Path
    ) -> None:
        _, events = self.run(program)
        session = Path(events[0]["text"])
        _, resumed = self.run(program, "again", session_id=str(session))
        assert resumed[0]["text"] == str(session)
        assert "--restore-chat-history" in self.called(program)[0]
        _, forked = self.run(program, "fork", session_id=str(session), fork=True)
        assert forked[0]["text"] != str(session)
        assert session.read_text(encoding="utf-8").count("asked") == 2
        assert Path(forked[0]["text"]).read_text(encoding="utf-8").count("asked") == 3

    def test_a_lost_session_is_said_to_be_lost(self, program: Path) -> None:
        code, events = self.run(program, session_id="/no/such/file")
        assert (code, events[0]["name"]) == (1, "session_lost")

    def test_it_ends_as_aider_ends(self, program: Path) -> None:
        code, events = self.run(program, "die")
        assert code == -signal.SIGTERM
        assert [event["kind"] for event in events] == ["session", "model"]

    def test_its_end_does_not_wait_for_what_aider_left_behind(self, program: Path) -> None:
        code, events = self.run(program, "leave")
        os.kill(int((program.parent / "work" / "left").read_text(encoding="utf-8")), signal.SIGKILL)
        assert (code, events[-1]["kind"]) == (0, "result")

    def test_a_request_to_end_reaches_aider(self, program: Path) -> None:
        file = program.parent / "prompt"
        file.write_text("wait", encoding="utf-8")
        settings = AgentSettings(program=str(program))
        request = AgentRequest("wait", program.parent / "work", file, settings)
        command = AiderAgent("aider", settings).command(request)
        env = {"PATH": os.environ["PATH"], **command.env}
        pipe = subprocess.PIPE
        with subprocess.Popen(command.argv, cwd=request.workspace, env=env, stdout=pipe) as process:
            while not (request.workspace / "ready").exists():
                time.sleep(0.01)
            process.terminate()
            assert process.wait(30) == 3
