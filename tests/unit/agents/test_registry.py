"""Finding agents by name, and the advice given when there is none."""

from pathlib import Path

import pytest

from kapelle.agents import registry
from kapelle.agents.command import CommandAgent
from kapelle.agents.rehearsal import RehearsalAgent
from kapelle.domain.errors import AgentMisconfigured, AgentNotFound
from kapelle.settings import AgentSettings, Settings


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


def test_a_command_makes_a_template() -> None:
    agent = registry.get("mytool", configured(mytool=AgentSettings(command=["mytool"])))
    assert isinstance(agent, CommandAgent)
    assert agent.name == "mytool"


def test_a_type_names_another_adapter() -> None:
    entry = AgentSettings(type="rehearsal", playbook="other.toml")
    agent = registry.get("second", configured(second=entry))
    assert isinstance(agent, RehearsalAgent)
    assert (agent.name, agent.settings) == ("second", entry)


def test_a_command_counts_more_than_an_adapter_of_that_name() -> None:
    settings = configured(rehearsal=AgentSettings(command=["x"]))
    assert isinstance(registry.get("rehearsal", settings), CommandAgent)


def test_an_unknown_type_lists_those_there_are() -> None:
    with pytest.raises(AgentNotFound, match="types are: command, rehearsal"):
        registry.get("x", configured(x=AgentSettings(type="telepathy")))


def test_an_unknown_name_lists_those_there_are(path: Path) -> None:
    with pytest.raises(AgentNotFound, match="known are: mine, rehearsal") as caught:
        registry.get("other", configured(mine=AgentSettings(command=["x"])))
    assert "kapelle config set agents.other.command" in (caught.value.hint or "")


def test_a_well_known_name_comes_with_its_template(path: Path) -> None:
    with pytest.raises(AgentNotFound) as caught:
        registry.get("claude", Settings())
    assert """agents.claude.command '["claude", "-p", "{prompt}\"""" in (caught.value.hint or "")


def test_without_a_default_nothing_is_chosen(path: Path) -> None:
    with pytest.raises(AgentNotFound) as caught:
        registry.resolve_default(Settings())
    assert "Install a coding agent" in (caught.value.hint or "")
    with pytest.raises(AgentNotFound, match="configured are: mine") as caught:
        registry.resolve_default(configured(mine=AgentSettings(command=["x"])))
    assert caught.value.hint == "kapelle config set default_agent mine"


def test_programs_on_the_path_are_suggested(path: Path) -> None:
    install(path, "codex")
    install(path, "aider")
    with pytest.raises(AgentNotFound) as caught:
        registry.resolve_default(Settings())
    hint = caught.value.hint or ""
    assert "On your PATH: codex, aider." in hint
    assert "kapelle config set agents.codex.command '[" in hint
    assert "kapelle config set default_agent codex" in hint


def test_every_suggested_template_is_usable() -> None:
    import tomllib

    for name, template in registry.WELL_KNOWN.items():
        command = tomllib.loads(f"command = {template}")["command"]
        assert command[0] == name
        assert any("{prompt" in argument for argument in command)


def test_the_default_must_exist() -> None:
    chosen = Settings(default_agent="rehearsal")
    assert registry.resolve_default(chosen) == "rehearsal"
    with pytest.raises(AgentNotFound, match="'gone'"):
        registry.resolve_default(Settings(default_agent="gone"))


def test_all_agents_are_listed_even_broken_ones(path: Path) -> None:
    install(path, "mytool")
    settings = Settings(
        default_agent="mine",
        agents={
            "mine": AgentSettings(command=["mytool", "{model}", "{prompt}"]),
            "absent": AgentSettings(command=["nowhere"]),
            "broken": AgentSettings(type="telepathy"),
        },
    )
    listed = {info.name: info for info in registry.available(settings)}
    assert list(listed) == ["absent", "broken", "mine", "rehearsal"]
    assert listed["mine"].is_default
    assert listed["mine"].installed == str(path / "mytool")
    assert listed["mine"].capabilities.model
    assert not listed["mine"].capabilities.system_prompt
    assert listed["absent"].installed is None
    assert "telepathy" in (listed["broken"].problem or "")
    assert listed["rehearsal"].type == "rehearsal"


def test_an_adapter_that_cannot_be_loaded_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import EntryPoint

    broken = EntryPoint("bad", "no_such_module:Agent", registry.GROUP)
    monkeypatch.setattr(registry, "_adapters", lambda: {"bad": broken})
    with pytest.raises(AgentMisconfigured, match="no_such_module"):
        registry.get("bad", Settings())
    (info,) = registry.available(Settings())
    assert "no_such_module" in (info.problem or "")
