"""Finding agents by name, and the advice given when there is none."""

from pathlib import Path

import pytest

from kapelle.agents import adapters, registry
from kapelle.agents.adapters.acp import AcpAgent
from kapelle.agents.adapters.codex import CodexAgent
from kapelle.agents.adapters.command import CommandAgent
from kapelle.agents.adapters.openai import OpenaiAgent
from kapelle.agents.adapters.rehearsal import RehearsalAgent
from kapelle.agents.base import AgentAdapter
from kapelle.domain.errors import AgentMisconfigured, AgentNotFound
from kapelle.settings import AgentSettings, Settings

ALONE = {"aider", "claude", "codex", "copilot", "gemini", "opencode", "qwen", "rehearsal"}
NEED_SETTINGS = {"acp", "anthropic", "command", "openai"}


def configured(**agents: AgentSettings) -> Settings:
    return Settings(agents=agents)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def install(directory: Path, name: str) -> None:
    program = directory / name
    program.write_text("", encoding="utf-8")
    program.chmod(0o755)


def test_built_ins_need_no_settings() -> None:
    assert isinstance(registry.get("rehearsal", Settings()), RehearsalAgent)
    assert isinstance(registry.get("codex", Settings()), CodexAgent)


def test_a_command_makes_a_template() -> None:
    agent = registry.get("mytool", configured(mytool=AgentSettings(command=["mytool"])))
    assert isinstance(agent, CommandAgent)
    assert agent.name == "mytool"


def test_a_type_names_another_adapter() -> None:
    entry = AgentSettings(type="rehearsal", playbook="other.toml")
    agent = registry.get("second", configured(second=entry))
    assert isinstance(agent, RehearsalAgent)
    assert (agent.name, agent.settings) == ("second", entry)
    local = configured(local=AgentSettings(type="openai", model="llama"))
    assert isinstance(registry.get("local", local), OpenaiAgent)


@pytest.mark.parametrize("name", ["rehearsal", "codex", "openai"])
def test_a_command_counts_more_than_an_adapter_of_that_name(name: str) -> None:
    settings = configured(**{name: AgentSettings(command=["x"])})
    assert isinstance(registry.get(name, settings), CommandAgent)


def test_the_command_of_acp_is_the_agent_that_it_talks_to() -> None:
    settings = configured(acp=AgentSettings(command=["claude-agent-acp"]))
    assert isinstance(registry.get("acp", settings), AcpAgent)


def test_an_unknown_type_lists_those_there_are() -> None:
    with pytest.raises(AgentNotFound, match="types are: acp, aider, anthropic, claude"):
        registry.get("x", configured(x=AgentSettings(type="telepathy")))


def test_an_unknown_name_lists_those_there_are() -> None:
    with pytest.raises(AgentNotFound, match=r"the agents are: aider, claude, .*, mine, ") as caught:
        registry.get("other", configured(mine=AgentSettings(command=["x"])))
    hint = caught.value.hint or ""
    assert """kapelle config set agents.other.command '["other", "{prompt}"]'""" in hint


@pytest.mark.parametrize(
    ("typed", "meant"), [("cluade", "claude"), ("Codex", "codex"), ("mein", "mine")]
)
def test_a_typing_error_gets_a_suggestion(typed: str, meant: str) -> None:
    with pytest.raises(AgentNotFound, match=rf"did you mean {meant}\?"):
        registry.get(typed, configured(mine=AgentSettings(command=["x"])))


def test_without_a_default_nothing_is_chosen(path: Path) -> None:
    with pytest.raises(AgentNotFound, match="no default is set") as caught:
        registry.resolve_default(Settings())
    hint = caught.value.hint or ""
    assert "Install one" in hint
    assert "kapelle init" in hint
    assert "kapelle config set default_agent claude" in hint


def test_the_only_installed_agent_is_suggested_and_not_taken(path: Path) -> None:
    install(path, "codex")
    install(path, "mytool")
    with pytest.raises(AgentNotFound) as caught:
        registry.resolve_default(configured(mine=AgentSettings(command=["mytool"])))
    hint = caught.value.hint or ""
    assert hint.startswith("Installed: codex, mine. ")
    assert "kapelle init" in hint
    assert hint.endswith("kapelle config set default_agent codex")


def test_the_default_must_exist() -> None:
    chosen = Settings(default_agent="rehearsal")
    assert registry.resolve_default(chosen) == "rehearsal"
    with pytest.raises(AgentNotFound, match="'gone'"):
        registry.resolve_default(Settings(default_agent="gone"))


def test_adapters_that_need_settings_are_agents_only_with_them() -> None:
    assert {info.name for info in registry.available(Settings())} == ALONE
    settings = configured(**{name: AgentSettings(model="m") for name in NEED_SETTINGS})
    assert {info.name for info in registry.available(settings)} == ALONE | NEED_SETTINGS


def test_what_is_missing_comes_with_what_to_type(path: Path) -> None:
    settings = configured(openai=AgentSettings(), acp=AgentSettings())
    listed = {info.name: info for info in registry.available(settings)}
    assert listed["codex"].installed is None
    assert "npm install -g @openai/codex" in (listed["codex"].hint or "")
    assert listed["openai"].installed
    assert listed["openai"].hint == "kapelle agents config set openai model NAME"
    assert listed["acp"].hint
    install(path, "codex")
    ready = registry.describe("codex", settings)
    assert (ready.installed, ready.problem, ready.hint) == (str(path / "codex"), None, None)


def test_every_program_that_is_installed_is_ready(path: Path) -> None:
    for name in ALONE - {"rehearsal"}:
        install(path, name)
    listed = registry.available(Settings())
    assert [(info.name, info.problem) for info in listed] == [
        (name, None) for name in sorted(ALONE)
    ]
    assert all(info.installed for info in listed)


def test_all_agents_are_listed_even_broken_ones(path: Path) -> None:
    install(path, "mytool")
    settings = Settings(
        default_agent="mine",
        agents={
            "mine": AgentSettings(command=["mytool", "{model}", "{prompt}"]),
            "absent": AgentSettings(command=["nowhere"]),
            "within": AgentSettings(command=["./tool"]),
            "broken": AgentSettings(type="telepathy"),
        },
    )
    listed = {info.name: info for info in registry.available(settings)}
    assert set(listed) == {"absent", "broken", "mine", "within"} | ALONE
    assert listed["mine"].is_default
    assert listed["mine"].installed == str(path / "mytool")
    assert listed["mine"].capabilities.model
    assert not listed["mine"].capabilities.system_prompt
    assert listed["absent"].installed is None
    assert "'nowhere', which is not an executable" in (listed["absent"].problem or "")
    assert (listed["within"].installed, listed["within"].problem) == ("./tool", None)
    assert "telepathy" in (listed["broken"].problem or "")
    assert listed["rehearsal"].type == "rehearsal"


def test_an_adapter_that_cannot_be_loaded_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import EntryPoint

    broken = EntryPoint("bad", "no_such_module:Agent", registry.GROUP)
    odd = EntryPoint("odd", "builtins:int", registry.GROUP)
    monkeypatch.setattr(registry, "_adapters", lambda: {"bad": broken, "odd": odd})
    with pytest.raises(AgentMisconfigured, match="no_such_module"):
        registry.get("bad", Settings())
    bad, fails = registry.available(Settings())
    assert "no_such_module" in (bad.problem or "")
    assert "The adapter 'odd' fails" in (fails.problem or "")


def test_every_file_in_adapters_is_an_agent() -> None:
    files = {path.stem for path in Path(adapters.__path__[0]).glob("[a-z]*.py")}
    assert files == ALONE | NEED_SETTINGS
    for name in files:
        agent = registry.get("mine", configured(mine=AgentSettings(type=name)))
        assert isinstance(agent, AgentAdapter)
