"""Settings: precedence, origins, errors that name the place, and edits that keep comments."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from docs.generate import configuration
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from kapelle.domain.environment import looks_secret
from kapelle.domain.errors import Conflict, InvalidInput
from kapelle.domain.specs import CheckKind
from kapelle.home import Home
from kapelle.settings import Settings, load, reset_value, set_value
from kapelle.settings.config import mask_value, validate
from kapelle.settings.models import EnvironmentSettings, default_max_attempts
from kapelle.settings.trust import drop, find_executable, grant, read_records

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "repository" / ".git").mkdir(parents=True)
    return tmp_path / "repository"


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def user(home: Home, text: str) -> Path:
    return write(home.config, text)


def shared(repository: Path, text: str) -> Path:
    return write(repository / ".kapelle" / "config.toml", text)


def test_defaults(home: Home) -> None:
    loaded = load(home, None, {"PATH": "/bin", "KAPELLE_HOME": "x"})
    assert loaded.settings == Settings()
    assert set(loaded.origin.values()) == {"default"}


def test_environment_beats_repository_beats_user(home: Home, repository: Path) -> None:
    mine = user(home, 'default_agent = "a"\nproject = "a"\n[tasks]\ngrace_s = 1\ntimeout_s = 1\n')
    theirs = shared(repository, 'project = "b"\n[tasks]\ntimeout_s = 2\n')
    loaded = load(home, repository, {"KAPELLE_TASKS__TIMEOUT_S": "3"})
    assert loaded.settings.default_agent == "a"
    assert loaded.settings.project == "b"
    assert loaded.settings.tasks.timeout_s == 3
    assert loaded.settings.tasks.grace_s == 1
    assert loaded.origin["default_agent"] == f"user config {mine}"
    assert loaded.origin["project"] == f"repository config {theirs}"
    assert loaded.origin["tasks.timeout_s"] == "environment KAPELLE_TASKS__TIMEOUT_S"
    assert loaded.origin["limits.max_attempts"] == "default"


def test_agents_are_merged_key_by_key(home: Home, repository: Path) -> None:
    user(home, '[agents.my-tool]\ncommand = ["a"]\nenv = {A = "1"}\n')
    shared(repository, '[agents.my-tool.env]\nB = "2"\n')
    environ = {
        "KAPELLE_AGENTS__MY_TOOL__ENV__C_d__E": "3",
        "KAPELLE_AGENTS__MY_TOOL__MODEL": "4",
        "KAPELLE_TRUST": "all",
    }
    agent = load(home, repository, environ).settings.agents["my-tool"]
    assert agent.command == ["a"]
    assert agent.env == {"A": "1", "B": "2", "C_d__E": "3"}
    assert agent.model == "4"


def test_checks_may_be_plain_text(home: Home) -> None:
    user(home, 'checks = ["pytest -q", "diff_not_empty"]\n')
    first, second = load(home, None, {}).settings.checks
    assert (first.command, second.kind) == ("pytest -q", CheckKind.DIFF_NOT_EMPTY)


def test_reserved_words_are_spelt_plainly_in_files(home: Home) -> None:
    user(home, '[environment]\npass = ["AWS_*"]\n[workspace]\ncopy = [".env"]\n')
    settings = load(home, None, {"KAPELLE_ENVIRONMENT__SET__Region": "eu"}).settings
    assert settings.environment == EnvironmentSettings(pass_=["AWS_*"], set={"Region": "eu"})
    assert settings.workspace.copy_ == [".env"]
    user(home, '[environment]\npass_ = ["AWS_*"]\n')
    with pytest.raises(InvalidInput, match=r"did you mean environment\.pass"):
        load(home, None, {})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[limits]\nmax_attempt = 3\n", ["limits.max_attempt", "did you mean limits.max_attempts"]),
        ("[limit]\n", ["no setting limit", "did you mean limits"]),
        ("[agents.x]\ncomand = []\n", ["agents.x.comand", "agents.x.command"]),
        ("[[checks]]\ncomand = 'a'\n", ["checks.0.comand", "checks.0.command"]),
        ("zzzzzz = 1\n", ["no setting zzzzzz", "valid names are", "default_agent"]),
        ("[limits]\nmax_attempts = 'many'\n", ["limits.max_attempts", "'many'", "a whole number"]),
        ("[agents.'a b']\nmodel = 'x'\n", ["agents.a b"]),
        ("limits = 3\n", ["limits", "(it is 3)"]),
        ("a = [\n", ["line 1", "column 6"]),
        ("a = 1\nb = = 2\n", ["line 2", "column 5"]),
        ("a = " + "[" * 5000, ["cannot be read"]),
    ],
)
def test_mistakes_are_named_with_their_place(home: Home, text: str, words: list[str]) -> None:
    path = user(home, text)
    with pytest.raises(InvalidInput) as caught:
        load(home, None, {})
    for word in [str(path), *words]:
        assert word in caught.value.message


def test_bytes_that_are_not_text_are_refused(home: Home) -> None:
    user(home, "").write_bytes(b"a = '\xff'")
    with pytest.raises(InvalidInput, match="utf-8"):
        load(home, None, {})


@pytest.mark.parametrize("section", ["limits", "server", "backup", "git"])
def test_a_repository_may_not_decide_for_the_machine(
    home: Home, repository: Path, section: str
) -> None:
    path = shared(repository, f"[{section}]\n")
    with pytest.raises(InvalidInput, match=rf"{path}: {section} cannot be set here"):
        load(home, repository, {})
    shared(repository, 'database_url = "postgresql://x"\n')
    with pytest.raises(InvalidInput, match="database_url cannot be set here"):
        load(home, repository, {})


def test_a_wrong_secret_is_not_quoted(home: Home) -> None:
    user(home, "[agents.x.env]\nAPI_KEY = 123456\n")
    with pytest.raises(InvalidInput) as caught:
        load(home, None, {})
    assert "123456" not in caught.value.message


@pytest.mark.parametrize(
    "name", ["KAPELLE_LIMIT__MAX_ATTEMPTS", "KAPELLE_LIMITS__MAX", "KAPELLE_DEFAULT_AGNET"]
)
def test_misspelt_variables_are_errors(home: Home, name: str) -> None:
    with pytest.raises(InvalidInput, match=name):
        load(home, None, {name: "3"})


@pytest.mark.parametrize(
    "name",
    [
        *("HOME", "URL", "TOKEN", "OTHER"),
        *("TASK_ID", "ATTEMPT_ID", "RUN_DIR", "ATTEMPT_NUMBER", "FAILPOINT"),
    ],
)
def test_variables_for_other_purposes_are_left_alone(home: Home, name: str) -> None:
    assert load(home, None, {f"KAPELLE_{name}": "3"}).settings == Settings()


def test_an_empty_variable_counts_as_not_set(home: Home) -> None:
    assert load(home, None, {"KAPELLE_DEFAULT_AGENT": ""}).settings == Settings()


def test_a_variable_with_a_bad_value_is_named(home: Home) -> None:
    with pytest.raises(InvalidInput, match=r"KAPELLE_SERVER__PORT: server\.port"):
        load(home, None, {"KAPELLE_SERVER__PORT": "99999"})


def test_a_changed_file_is_read_again(home: Home) -> None:
    user(home, 'project = "a"\n')
    assert load(home, None, {}).settings.project == "a"
    set_value(home.config, "project", "b")
    assert load(home, None, {}).settings.project == "b"


def test_set_keeps_comments_and_writes_privately(home: Home) -> None:
    user(home, '# mine\nproject = "a" # why\n\n[limits]\n# so many\nmax_attempts = 2\n')
    set_value(home.config, "limits.max_attempts", "3")
    set_value(home.config, "default_agent", "42")
    set_value(home.config, "checks", '["pytest -q"]')
    set_value(home.config, "agents.x.env.API_KEY", "= not toml")
    text = home.config.read_text(encoding="utf-8")
    for comment in ("# mine", "# why", "# so many"):
        assert comment in text
    settings = load(home, None, {}).settings
    assert settings.limits.max_attempts == 3
    assert settings.default_agent == "42"
    assert settings.checks[0].command == "pytest -q"
    assert settings.agents["x"].env == {"API_KEY": "= not toml"}
    assert home.config.stat().st_mode & 0o777 == 0o600


def test_a_name_with_dots_stands_in_quotes(home: Home) -> None:
    set_value(home.config, 'prices."gpt-4.1"', "{ input = 2, output = 8 }")
    set_value(home.config, 'prices."gpt-4.1".cached', "0.5")
    set_value(home.config, 'prices."m1"', "{ input = 3, output = 15 }")
    found = load(home, None, {})
    assert {name: price.input for name, price in found.settings.prices.items()} == {
        "gpt-4.1": 2,
        "m1": 3,
    }
    assert 'prices."gpt-4.1".cached' in {key for key, _, _ in found.show()}
    reset_value(home.config, 'prices."gpt-4.1"')
    assert list(load(home, None, {}).settings.prices) == ["m1"]
    with pytest.raises(InvalidInput) as refused:
        set_value(home.config, "prices.gpt-4.1", "{ input = 2, output = 8 }")
    assert refused.value.hint == 'In quotes: prices."gpt-4.1"'


@pytest.mark.parametrize(
    "layout",
    [
        "[limits]\nmax_attempts = 2\n\n[[checks]]\ncommand = 'a'\n\n[agents.x]\nmodel = 'm'\n",
        "limits = {max_attempts = 2}\nagents = {x = {model = 'm'}}\nchecks = ['a', 'b']\n",
        "[agents.x]\nmodel = 'm'\n[limits]\nmax_attempts = 2\n[agents.y]\nmodel = 'm'\n",
    ],
)
def test_any_layout_can_be_edited(home: Home, layout: str) -> None:
    user(home, layout)
    set_value(home.config, "checks", '["b"]')
    set_value(home.config, "limits.min_free_disk_mb", "1")
    set_value(home.config, "agents.x.command", '["x"]')
    set_value(home.config, "agents.z.env", '{A = "1"}')
    set_value(home.config, "project", "p")
    settings = load(home, None, {}).settings
    assert [check.command for check in settings.checks] == ["b"]
    assert (settings.limits.max_attempts, settings.limits.min_free_disk_mb) == (2, 1)
    assert (settings.agents["x"].model, settings.agents["x"].command) == ("m", ["x"])
    assert settings.agents["z"].env == {"A": "1"}
    assert settings.project == "p"


def test_a_layout_that_would_be_broken_is_left_to_its_owner(home: Home) -> None:
    path = user(home, "agents.x.model = 'm'\nproject = 'p'\n")
    before = path.read_bytes()
    with pytest.raises(InvalidInput, match=r"agents\.z\.env cannot be changed automatically"):
        set_value(path, "agents.z.env", '{A = "1"}')
    assert path.read_bytes() == before


def test_reset_goes_back_to_the_default(home: Home) -> None:
    set_value(home.config, "agents.x.command", '["x"]')
    set_value(home.config, "limits.max_attempts", "3")
    reset_value(home.config, "limits.max_attempts")
    reset_value(home.config, "agents.x")
    reset_value(home.config, "backup.hours")
    assert load(home, None, {}).settings == Settings()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("limits.max_attempt", "3"),
        ("limits", "3"),
        ("limits.max_attempts", "0"),
        ("limits.max_attempts.x", "3"),
        ("", "3"),
        ("agents..model", "x"),
        ("agents.a b.model", "x"),
        ("workspace.default", "elsewhere"),
        ("agents.x.command", "not a list"),
    ],
)
def test_a_bad_edit_changes_nothing(home: Home, key: str, value: str) -> None:
    path = user(home, "[limits]\nmax_attempts = 2 # two\n")
    before = path.read_bytes()
    with pytest.raises(InvalidInput):
        set_value(path, key, value)
    assert path.read_bytes() == before


def test_an_edit_of_a_repository_keeps_to_its_sections(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    set_value(path, "workspace.setup", "make deps", "repository")
    with pytest.raises(InvalidInput, match="cannot be set here"):
        set_value(path, "limits.max_attempts", "3", "repository")
    with pytest.raises(InvalidInput, match="no setting"):
        reset_value(path, "workspace.setpu", "repository")


@examples(deadline=None, max_examples=50)
@given(text=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_any_text_can_be_set_as_it_is(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("home") / "config.toml"
    set_value(path, "workspace.setup", f"sh {text}")
    assert load(Home(path.parent), None, {}).settings.workspace.setup == f"sh {text}"


def test_secrets_are_masked_when_shown(home: Home) -> None:
    user(
        home,
        'database_url = "postgresql://me:hidden@host/db"\n'
        '[agents.x.env]\nAPI_KEY = "sk-0123456789abcdef"\nREGION = "eu"\n'
        '[environment.set]\nMY_TOKEN = "short"\n',
    )
    shown = {key: value for key, value, _ in load(home, None, {}).show()}
    assert shown["agents.x.env.API_KEY"] == "sk-…def"
    assert shown["agents.x.env.REGION"] == "eu"
    assert shown["environment.set.MY_TOKEN"] == "***"
    assert shown["database_url"] == "postgresql://me:***@host/db"


def test_what_looks_secret() -> None:
    assert all(map(looks_secret, ["API_KEY", "github_token", "DB_PASSWORD", "AWS_CREDENTIALS"]))
    assert not looks_secret("PATH")
    assert mask_value("PATH", "/bin") == "/bin"


@pytest.mark.parametrize(
    ("cores", "gib", "expected"), [(2, 16, 4), (8, 4, 4), (1, 0, 1), (64, 256, 128)]
)
def test_attempts_fit_the_machine(cores: int, gib: int, expected: int) -> None:
    assert default_max_attempts(cores, gib * 2**30) == expected


def test_every_setting_is_described() -> None:
    assert "None |" not in configuration()


def test_a_repository_cannot_choose_where_keys_are_sent() -> None:
    values = {"agents": {"claude": {"base_url": "https://elsewhere.example"}}}
    assert validate(values, "here").agents["claude"].base_url
    with pytest.raises(InvalidInput, match=r"agents\.claude\.base_url cannot be set here"):
        validate(values, "here", "repository")


@pytest.mark.parametrize("address", ["notaurl", "ftp://x", "", "http://", "https:// x"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(InvalidInput, match="base_url"):
        validate({"agents": {"claude": {"base_url": address}}}, "here")


@pytest.mark.parametrize(
    "name",
    [
        "ANTHROPIC_BASE_URL", "OPENAI_API_BASE", "HTTPS_PROXY", "http_proxy", "LD_PRELOAD",
        "DYLD_INSERT_LIBRARIES", "NODE_OPTIONS", "PYTHONPATH", "PYTHONSTARTUP", "GIT_SSH_COMMAND",
        "GIT_CONFIG_COUNT", "PATH", "HOME", "BASH_ENV", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE",
        "CLAUDE_CONFIG_DIR", "CODEX_HOME", "KAPELLE_HOME", "AWS_ENDPOINT_URL_BEDROCK_RUNTIME",
        "OPENCODE_CONFIG_CONTENT",
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "table", ["environment.set", "agents.claude.env", "mcp.m.env", "agents.claude.mcp.m.env"]
)
def test_even_a_trusted_repository_does_not_say_where_programs_are_led(
    home: Home, repository: Path, name: str, table: str
) -> None:
    command = f'[{table.removesuffix(".env")}]\ncommand = ["x"]\n' if "mcp" in table else ""
    shared(repository, f'{command}[{table}]\n{name} = "x"\n')
    for environ in ({}, {"KAPELLE_TRUST": "all"}):
        with pytest.raises(InvalidInput, match=f"{table}.{name} cannot be set here"):
            load(home, repository, environ)


def test_other_variables_are_a_trusted_repositorys_own(home: Home, repository: Path) -> None:
    shared(
        repository, '[environment]\npass = ["CI", "JAVA_HOME"]\n[environment.set]\nDEBUG = "1"\n'
    )
    held = load(home, repository, {})
    assert (held.settings.environment.pass_, held.settings.environment.set) == ([], {})
    assert held.held_back == ["environment.pass", "environment.set.DEBUG"]
    settings = load(home, repository, {"KAPELLE_TRUST": f"/nowhere:{repository}"}).settings
    assert settings.environment.pass_ == ["CI", "JAVA_HOME"]
    assert settings.environment.set == {"DEBUG": "1"}


@pytest.mark.parametrize(
    ("own", "theirs", "untrusted", "trusted"),
    [
        (None, "never", "once", "never"),
        (None, "required", "required", "required"),
        ("required", "never", "required", "required"),
        ("required", "always", "required", "required"),
        ("never", "once", "once", "once"),
    ],
)
def test_no_repository_has_less_proved_than_a_person_asks_for(
    home: Home, repository: Path, own: str | None, theirs: str, untrusted: str, trusted: str
) -> None:
    user(home, f'[tasks]\nprove = "{own}"\n' if own else "")
    shared(repository, f'[tasks]\nprove = "{theirs}"\n')
    assert load(home, repository, {}).settings.tasks.prove == untrusted
    assert load(home, repository, {"KAPELLE_TRUST": "all"}).settings.tasks.prove == trusted


def test_no_word_about_trust_is_lost_among_others(home: Home, tmp_path: Path) -> None:
    places = [tmp_path / f"{number}" for number in range(24)]
    for place in places:
        (place / ".git").mkdir(parents=True)
        shared(place, 'checks = ["true"]\n')
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda place: grant(home, find_executable(home, place)), places))
    assert set(read_records(home)) == {*map(str, places)}


@pytest.mark.parametrize("text", ["{", "[]", '{"/a": {"digest": "x"}}', '{"/a": {"later": 1}}'])
def test_what_cannot_be_read_about_trust_is_not_written_over(
    home: Home, repository: Path, text: str
) -> None:
    write(home.trust, text)
    shared(repository, 'checks = ["true"]\n')
    for change in (
        lambda: grant(home, find_executable(home, repository)),
        lambda: drop(home, repository, forget=True),
    ):
        with pytest.raises(Conflict, match=r"trust\.json cannot be read"):
            change()
    assert home.trust.read_text(encoding="utf-8") == text


@pytest.mark.parametrize(
    "name", ["ANTHROPIC_API_KEY", "AWS_SECRET_ACCESS_KEY", "A*", "SSH_AUTH_SOCK"]
)
def test_no_repository_passes_secrets_on(home: Home, repository: Path, name: str) -> None:
    shared(repository, f'[environment]\npass = ["{name}"]\n')
    with pytest.raises(InvalidInput, match=r"environment\.pass cannot contain"):
        load(home, repository, {"KAPELLE_TRUST": "all"})


def test_a_file_without_an_end_is_not_read(home: Home, repository: Path) -> None:
    (repository / ".kapelle").mkdir()
    (repository / ".kapelle" / "config.toml").symlink_to("/dev/zero")
    with pytest.raises(InvalidInput, match="is not a regular file"):
        load(home, repository, {})
    (repository / ".kapelle" / "config.toml").unlink()
    shared(repository, "# " + "x" * 1_000_000)
    with pytest.raises(InvalidInput, match="is larger than 1 MB"):
        load(home, repository, {})


def test_a_container_without_an_image_or_a_service_is_refused(home: Home) -> None:
    user(home, '[workspace.docker]\nengine = "podman"\n')
    assert load(home, None, {}).settings.workspace.docker.engine == "podman"
    workdir = {"KAPELLE_WORKSPACE__DOCKER__WORKDIR": "/srv"}
    with pytest.raises(
        InvalidInput, match=r"docker\.workdir is set, but neither an image"
    ) as error:
        load(home, None, workdir)
    assert "[workspace.docker]" in str(error.value.hint)
    image = {"KAPELLE_WORKSPACE__DOCKER__IMAGE": "php:8.3-cli"}
    assert load(home, None, workdir | image).settings.workspace.docker.is_configured


@pytest.mark.parametrize("key", ["engine", "image", "service"])
def test_what_an_engine_would_take_for_an_option_is_refused(home: Home, key: str) -> None:
    user(home, f'[workspace.docker]\n{key} = "--privileged"\n')
    with pytest.raises(InvalidInput, match=rf"workspace\.docker: {key} begins with a dash"):
        load(home, None, {})
